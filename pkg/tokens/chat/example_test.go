package chat_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

func Example() {
	tpl, err := chat.FromConfig([]byte(`{"bos_token": "<s>", "chat_template":
		"{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"}`),
		"", jinja.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	store := chat.NewStore(1 << 20)
	for _, messages := range []string{
		`[{"role":"user","content":"hi"}]`,
		`[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"},{"role":"user","content":"bye"}]`,
	} {
		p, err := tpl.Render(chat.VLLM, &chat.Request{Messages: []byte(messages)}, store)
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
