package chat_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// manner is a template of our own in the manner of those of today: tools, reasoning that is
// dropped, tool calls, answers of tools, a generation prompt.
const manner = `
{%- if tools %}{{ '<sys>' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '</sys>' }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<a>' }}
        {%- if m.reasoning_content and loop.index0 > ns.last %}{{ '<t>' + m.reasoning_content + '</t>' }}{% endif %}
        {{- m.content or '' }}
        {%- for c in m.tool_calls or [] %}{{ '<c>' + c.function.name + (c.function.arguments | tojson) }}{% endfor %}
        {{- '</a>' }}
    {%- else %}
        {{- '<' + m.role + '>' + (m.content or '') + '</>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<a>' }}{% endif %}`

func compiled(t testing.TB, source string) *chat.Template {
	t.Helper()
	tpl, err := chat.Compile(source, []chat.Special{{Name: "bos_token", Text: "<s>"}}, jinja.Limits{})
	require.NoError(t, err)
	return tpl
}

// grow renders a conversation turn by turn, with one store, and without any.
func grow(t *testing.T, tpl *chat.Template, c *chat.Caller, seed uint64) {
	g := newGenerator(seed)
	store := chat.NewStore(1 << 20)
	messages := g.messages(12)
	q := g.requestOf(messages)
	q.ContinueFinalMessage = false
	for n := 1; n <= len(messages); n++ {
		q.Messages = encode(messages[:n])
		want := rendered(t, tpl, c, q, nil)
		require.Equal(t, want, rendered(t, tpl, c, q, store), "seed %d, %d messages", seed, n)
		q.Plain = true
		require.Equal(t, want, rendered(t, tpl, c, q, store), "seed %d, %d messages, plain", seed, n)
		q.Plain = false
	}
}

func TestAStoreChangesNothing(t *testing.T) {
	tpl := compiled(t, manner)
	for _, c := range callers {
		for seed := range uint64(40) {
			grow(t, tpl, c, seed)
		}
	}
}

func TestAStoreChangesNothingOfPublishedTemplates(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			tpl := loadFamily(t, family)
			for _, c := range callers {
				for seed := range uint64(15) {
					grow(t, tpl, c, seed)
				}
			}
		})
	}
}

// plainTurns are n exchanges without tools and reasoning.
func plainTurns(n int) []pairs {
	var list []pairs
	for i := range n {
		list = append(list, pairs{{"role", "user"}, {"content", fmt.Sprintf("question %d", i)}},
			pairs{{"role", "assistant"}, {"content", fmt.Sprintf("answer %d", i)}})
	}
	return list
}

// TestTheNextTurnKeepsAllPiecesButTheLast shows it for each published template.
func TestTheNextTurnKeepsAllPiecesButTheLast(t *testing.T) {
	add := true
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			tpl := loadFamily(t, family)
			store := chat.NewStore(1 << 20)
			list := plainTurns(20)
			render := func(n int) *chat.Prompt {
				p, err := tpl.Render(vllm, &chat.Request{Messages: encode(list[:n]), AddGenerationPrompt: &add}, store)
				require.NoError(t, err)
				return p
			}
			before := render(37)
			after := render(39)
			same := 0
			for i, p := range before.Pieces {
				if i < len(after.Pieces) && after.Pieces[i] == p {
					same++
				}
			}
			// The generation prompt was the last piece.
			require.GreaterOrEqual(t, same, len(before.Pieces)-1)
			require.GreaterOrEqual(t, after.Kept, 36)
		})
	}
}

func TestAStoreKeepsToItsLimit(t *testing.T) {
	tpl := compiled(t, manner)
	store := chat.NewStore(50_000)
	for i := range 300 {
		q := &chat.Request{Messages: encode([]pairs{{{"role", "user"}, {"content", strings.Repeat("x", i%40*20) + fmt.Sprint(i)}}})}
		_, err := tpl.Render(vllm, q, store)
		require.NoError(t, err)
		used, members := store.Used()
		require.LessOrEqual(t, used, 50_000)
		require.Positive(t, members)
	}
	big := &chat.Request{Messages: encode([]pairs{{{"role", "user"}, {"content", strings.Repeat("x", 50_000)}}})}
	_, err := tpl.Render(vllm, big, store)
	require.NoError(t, err)
}

// FuzzElements compares with encoding/json: what is JSON is cut as it cuts it.
func FuzzElements(f *testing.F) {
	f.Add([]byte(`[{"a": "]\"\\"}, [1, 2], "x,\\\"y", 3 ]`))
	f.Add([]byte(` [ ] `))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := chat.Elements(nil, raw)
		var want []json.RawMessage
		if json.Unmarshal(raw, &want) != nil || want == nil {
			return
		}
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, string(bytes.TrimSpace(want[i])), string(got[i]))
		}
	})
}
