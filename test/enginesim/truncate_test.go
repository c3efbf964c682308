package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/vllm"
)

// words are n tokens of text.
func words(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, " w%d", i)
	}
	return b.String()
}

// What vLLM leaves of a prompt, or what it says of a length that it refuses
// (docs/engines.md#truncation).
func TestVLLMCutsPrompts(t *testing.T) {
	t.Parallel()
	const length = 20 // of the model
	prompt := Tokenize(words(30))
	short := Tokenize(words(6))
	ids, err := json.Marshal(prompt)
	require.NoError(t, err)
	long, brief := fmt.Sprintf("%q", words(30)), fmt.Sprintf("%q", words(6))
	for name, c := range map[string]struct {
		prompt, more string
		old          bool
		want         []uint32
		tokens       int    // of the answer
		refused      string // with 400
	}{
		"to the last":                          {prompt: long, more: `"truncate_prompt_tokens":7,"max_tokens":3`, want: prompt[23:], tokens: 3},
		"to the last, as is said":              {prompt: long, more: `"truncate_prompt_tokens":7,"truncation_side":"left","max_tokens":3`, want: prompt[23:], tokens: 3},
		"to the first":                         {prompt: long, more: `"truncate_prompt_tokens":7,"truncation_side":"right","max_tokens":3`, want: prompt[:7], tokens: 3},
		"token ids":                            {prompt: string(ids), more: `"truncate_prompt_tokens":7,"max_tokens":3`, want: prompt[23:], tokens: 3},
		"a prompt that is short enough":        {prompt: brief, more: `"truncate_prompt_tokens":7,"max_tokens":3`, want: short, tokens: 3},
		"to what fits, but for one":            {prompt: long, more: `"truncate_prompt_tokens":-1,"max_tokens":3`, want: prompt[11:], tokens: 1},
		"to what fits, by default":             {prompt: long, more: `"truncate_prompt_tokens":-1`, want: prompt[11:], tokens: 1},
		"nothing fits less":                    {prompt: brief, more: `"truncate_prompt_tokens":-1,"max_tokens":3`, want: short, tokens: 3},
		"nothing is said":                      {prompt: brief, more: `"truncate_prompt_tokens":null,"truncation_side":null,"max_tokens":3`, want: short, tokens: 3},
		"an answer that does not fit":          {prompt: brief, more: `"max_tokens":19`, want: short, tokens: 14},
		"to the model's whole length":          {prompt: long, more: `"truncate_prompt_tokens":20,"max_tokens":3`, refused: "max_tokens must be at least 1, got 0."},
		"to more than that":                    {prompt: brief, more: `"truncate_prompt_tokens":21,"max_tokens":3`, refused: "truncate_prompt_tokens=21 cannot be greater than max_model_len = 20."},
		"to nothing":                           {prompt: long, more: `"truncate_prompt_tokens":0,"max_tokens":3`, refused: "cannot be empty"},
		"not at all":                           {prompt: long, more: `"max_tokens":3`, refused: "maximum context length is 20 tokens. However, your prompt contains 30 input tokens."},
		"beside an answer that is too long":    {prompt: brief, more: `"max_tokens":21`, refused: "max_tokens=21 cannot be greater than max_model_len=20."},
		"to what is no length":                 {prompt: brief, more: `"truncate_prompt_tokens":-2`, refused: "greater than or equal to -1"},
		"to what is no number":                 {prompt: brief, more: `"truncate_prompt_tokens":"x"`, refused: "valid integer"},
		"to neither side":                      {prompt: brief, more: `"truncation_side":"both"`, refused: "Input should be 'left' or 'right'"},
		"of older versions, to what fits":      {old: true, prompt: long, more: `"truncate_prompt_tokens":-1,"max_tokens":3`, want: prompt[13:], tokens: 3},
		"of older versions, by default":        {old: true, prompt: long, more: `"truncate_prompt_tokens":-1`, want: prompt[26:], tokens: 16},
		"of older versions, to more than fits": {old: true, prompt: brief, more: `"truncate_prompt_tokens":18,"max_tokens":3`, refused: "truncate_prompt_tokens=18 cannot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, MaxModelLen: length, CutForAnswer: c.old})
			r := post(t.Context(), s.URL()+completions, `{"model":"sim","prompt":`+c.prompt+`,`+c.more+`}`)
			if c.refused != "" {
				require.Equal(t, http.StatusBadRequest, r.status)
				require.Contains(t, r.body, c.refused)
				return
			}
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Contains(t, r.body, fmt.Sprintf(`"text":%q`, Answer(c.want, c.tokens)))
			require.Contains(t, r.body, fmt.Sprintf(`"prompt_tokens":%d,`, len(c.want)))
		})
	}
}

// A chat request that does not limit its answer leaves no room for one if its prompt fills
// the model's length. Engines other than vLLM cut nothing.
func TestWhoCutsNoPrompt(t *testing.T) {
	t.Parallel()
	asked := fmt.Sprintf(`{"model":"sim","truncate_prompt_tokens":-1,"truncation_side":"both","messages":[{"role":"user","content":%q}]}`, words(30))
	s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, MaxModelLen: 20})
	require.Contains(t, post(t.Context(), s.URL()+chat, strings.Replace(asked, "both", "left", 1)).body, "max_tokens must be at least 1, got 0.")
	s = start(t, Config{Role: worker.Aggregated, MaxModelLen: 60})
	require.Contains(t, post(t.Context(), s.URL()+chat, asked).body, Digest(ChatTokens([]Message{{Role: "user", Content: words(30)}}, true)))
}

// A picture is left whole at its new place, or the request is refused; /render says so, too.
func TestVLLMCutsNoPicture(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, ScaleOut: true, MaxModelLen: 100})
	asked := func(more string) string {
		return fmt.Sprintf(`{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":[{"type":"text","text":%q},`+
			`{"type":"image_url","image_url":{"url":"data:,12345678"}},{"type":"text","text":%q}]}],%s}`, words(9), words(5), more)
	}
	render := func(more string) (out vllm.Rendered) {
		r := post(t.Context(), s.URL()+chat+"/render", asked(more))
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.NoError(t, json.Unmarshal([]byte(r.body), &out))
		return out
	}
	whole := render(`"n":1`)
	at := whole.Features.Placeholders["image"][0]
	n := len(whole.TokenIDs)
	left := render(fmt.Sprintf(`"truncate_prompt_tokens":%d`, n-at.Offset))
	require.Equal(t, whole.TokenIDs[at.Offset:], left.TokenIDs)
	require.Equal(t, []vllm.Placeholder{{Offset: 0, Length: at.Length}}, left.Features.Placeholders["image"])
	right := render(fmt.Sprintf(`"truncate_prompt_tokens":%d,"truncation_side":"right"`, at.Offset+at.Length))
	require.Equal(t, whole.TokenIDs[:at.Offset+at.Length], right.TokenIDs)
	for _, more := range []string{
		fmt.Sprintf(`"truncate_prompt_tokens":%d`, n-at.Offset-1),
		fmt.Sprintf(`"truncate_prompt_tokens":%d,"truncation_side":"right"`, at.Offset+at.Length-1),
	} {
		for _, path := range []string{chat, chat + "/render"} {
			r := post(t.Context(), s.URL()+path, asked(more))
			require.Equal(t, http.StatusBadRequest, r.status)
			require.Contains(t, r.body, "would split or drop a(n) image item")
		}
	}
}
