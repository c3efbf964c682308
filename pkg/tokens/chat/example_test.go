package chat_test

import (
	"fmt"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func Example() {
	tpl, err := chat.FromConfig([]byte(`{"bos_token": "<s>", "chat_template":
		"{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"}`),
		"", jinja.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	vllm, store := tokens.CallerOf(worker.VLLM), chat.NewStore(1<<20)
	for _, messages := range []string{
		`[{"role":"user","content":"hi"}]`,
		`[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"},{"role":"user","content":"bye"}]`,
	} {
		p, err := tpl.Render(vllm, &chat.Request{Messages: []byte(messages)}, store)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%q, %d of them as before\n", p.Pieces, p.Kept)
	}
	// Output:
	// ["<s>" "<user>hi" "<assistant>"], 0 of them as before
	// ["<s>" "<user>hi" "<assistant>hello" "<user>bye" "<assistant>"], 1 of them as before
}

// A caller of an engine that keeps two members of a message, and takes texts alone.
func ExampleCaller() {
	mine := &chat.Caller{
		Name: "mine",
		Message: func(m *jinja.Dict, _ bool) (*jinja.Dict, bool, error) {
			role, _ := m.Get("role")
			content, _ := m.Get("content")
			text, ok := content.(string)
			if !ok {
				return nil, false, &jinja.Error{Kind: jinja.Refused, What: "content that is no text"}
			}
			made := jinja.NewDict(2)
			made.Set("role", role)
			made.Set("content", strings.TrimSpace(text))
			return made, false, nil
		},
		AddGenerationPrompt: true,
	}
	tpl, err := chat.Compile("{% for m in messages %}{{ m | tojson }}{% endfor %}{{ add_generation_prompt }}", nil, jinja.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, messages := range []string{`[{"name":"n","role":"user","content":" hi "}]`, `[{"role":"user","content":[]}]`} {
		p, err := tpl.Render(mine, &chat.Request{Messages: []byte(messages)}, nil)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(p.Text())
	}
	// Output:
	// {"role": "user", "content": "hi"}True
	// chat template refused: content that is no text
}
