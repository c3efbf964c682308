//go:build e2e

package envoytest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// cutting is a layout of vLLM workers whose model has a length that is known.
func cutting(length int, l layout) layout {
	l.simArgs = append(l.simArgs, "--max-model-len", fmt.Sprint(length))
	l.describe = func(f *fleet) {
		for _, w := range f.workers {
			w.Info.MaxModelLen = uint32(length)
		}
	}
	return layoutOf(l, worker.VLLM)
}

// cutTo is a completion whose prompt is to be cut.
func cutTo(prompt string, tokens int, cut string) string {
	return fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":%d,%s}`, prompt, tokens, cut)
}

// requireAnswerTo requires the answer to these tokens of a prompt.
func requireAnswerTo(t *testing.T, r *reply, prompt []uint32, tokens int) {
	t.Helper()
	require.NoError(t, r.err)
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, strings.TrimSpace(enginesim.Answer(prompt, tokens)), strings.TrimSpace(r.text()), r.body)
}

// TestAPromptThatIsCutToFitIsServedByOneWorker: of versions of vLLM that leave room for the
// answer's limit, prefill, which is asked for one token, would keep more of a long prompt
// than decode. A prompt that is not cut goes to both.
func TestAPromptThatIsCutToFitIsServedByOneWorker(t *testing.T) {
	t.Parallel()
	const length, tokens = 200, 40
	l := cutting(length, layout{
		prefill: 1, decode: 1, simArgs: []string{"--cut-for-answer"}, decodeArgs: []string{"--accepts-aggregated"}, config: "tokens: {wait: 3s}\n",
	})
	both(t, l, func(t *testing.T, f *fleet) {
		long, short := words(0, 300), words(0, 100)
		ids := enginesim.Tokenize(long)
		r := f.send(t.Context(), "/v1/completions", cutTo(long, tokens, `"truncate_prompt_tokens":-1`))
		requireAnswerTo(t, r, ids[len(ids)-(length-tokens):], tokens)
		require.Empty(t, f.gotAll(f.prefill))
		require.EqualValues(t, 1, f.metric("baton_served_alone_total", `reason="cut_prompt"`))

		r = f.send(t.Context(), "/v1/completions", cutTo(short, tokens, `"truncate_prompt_tokens":-1`))
		requireAnswerTo(t, r, enginesim.Tokenize(short), tokens)
		require.Len(t, f.gotAll(f.prefill), 1)
		require.EqualValues(t, 1, f.metric("baton_served_alone_total"))
	})
}

// TestACutPromptIsTheSameOnBothLegs: a number cuts alike wherever the prompt goes, whatever
// the limit of the answer is. What is booked of the prompt is what is left of it.
func TestACutPromptIsTheSameOnBothLegs(t *testing.T) {
	t.Parallel()
	both(t, cutting(1000, layout{prefill: 1, decode: 1, config: "tokens: {mode: estimate}\n"}), func(t *testing.T, f *fleet) {
		long := words(0, 300)
		ids := enginesim.Tokenize(long)
		const keep, tokens = 64, 12
		for side, left := range map[string][]uint32{`"left"`: ids[len(ids)-keep:], `"right"`: ids[:keep], "null": ids[len(ids)-keep:]} {
			f.forget()
			r := f.send(t.Context(), "/v1/completions", cutTo(long, tokens, fmt.Sprintf(`"truncate_prompt_tokens":%d,"truncation_side":%s`, keep, side)))
			requireAnswerTo(t, r, left, tokens)
			prefill, decode := f.legs()
			require.Equal(t, []int{keep, keep}, []int{prefill.PromptTokens, decode.PromptTokens})
			require.Equal(t, keep, f.decisions()[0].ISLTokens)
		}
	})
}

// TestACutPromptIsKnownAsItsWorkersCutIt: what is predicted of a prompt that is cut is what
// the workers then find, block for block, from either side.
func TestACutPromptIsKnownAsItsWorkersCutIt(t *testing.T) {
	t.Parallel()
	l := cutting(1000, layout{prefill: 2, decode: 1, config: askedOfPictures, simArgs: []string{"--scale-out"}})
	both(t, l, func(t *testing.T, f *fleet) {
		ask := asker(t, f)
		cut := func(from int, more string) string {
			return strings.TrimSuffix(asking(from, address("a", 4), " what is it?"), "}") + more + "}"
		}
		_, had, _ := ask(cut(20, ""))
		require.Zero(t, had)
		whole := f.decisions()[0].ISLTokens
		right := fmt.Sprintf(`,"truncate_prompt_tokens":%d,"truncation_side":"right"`, whole-3)
		left := fmt.Sprintf(`,"truncate_prompt_tokens":%d`, whole-3)
		for _, c := range []struct {
			body  string
			known bool
			why   string
		}{
			{cut(20, ""), true, "the whole"},
			{cut(20, right), true, "its beginning is the same"},
			{cut(20, left), false, "it begins elsewhere"},
			{cut(20, left), true, "as the one before"},
			{cut(21, left), false, "another text"},
		} {
			predicted, had, _ := ask(c.body)
			require.Equal(t, had, 16*predicted, c.why)
			require.Equal(t, c.known, predicted >= 4, c.why)
			if c.body != cut(20, "") {
				require.Equal(t, whole-3, f.decisions()[0].ISLTokens, c.why)
				prefill, decode := f.legs()
				require.Equal(t, []int{whole - 3, whole - 3}, []int{prefill.PromptTokens, decode.PromptTokens}, c.why)
			}
		}
	})
}
