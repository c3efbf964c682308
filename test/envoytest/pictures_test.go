//go:build e2e

package envoytest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// askedOfPictures: what was routed predicts nothing, and engines are asked of pictures. How fast workers seem on a
// busy machine decides nothing.
const askedOfPictures = "tokens: {wait: 3s, pictures: auto}\nrouting: {predicted_ttl: 0s, prefill: {cost: blocks}}\n"

// asking is a chat request about a picture, whose address is what it shows.
func asking(before int, address, behind string) string {
	return fmt.Sprintf(`{"model":"m","max_tokens":2,"messages":[{"role":"system","content":%q},{"role":"user","content":[`+
		`{"type":"text","text":"look at"},{"type":"image_url","image_url":{"url":%q}},{"type":"text","text":%q}]}]}`, words(9, before), address, behind)
}

// address is that of a picture of so many blocks.
func address(name string, blocks int) string {
	return "http://pictures/" + name + strings.Repeat("-", 4*16*blocks)
}

// asker sends a request whose pictures an engine tells of, and says what was predicted of
// the prefill worker that was picked, what that then had, and which it is.
func asker(t *testing.T, f *fleet) func(body string) (predicted, had int, at string) {
	return func(body string) (predicted, had int, at string) {
		t.Helper()
		f.forget()
		r := f.send(t.Context(), "/v1/chat/completions", body)
		require.Equal(t, 200, r.status, r.body)
		prefill, _ := f.legs()
		f.awaitTold()
		d := f.decisions()[0]
		require.Equal(t, "engine tokenize", d.TokenSource)
		require.Equal(t, "tokenized with its pictures", d.TokenReason)
		return d.Prefill.Overlap, prefill.CachedTokens, d.Prefill.WorkerID
	}
}

// TestARequestWithAPictureGoesToTheWorkerThatHoldsIt: which of vLLM's workers has prefilled
// a picture is known by their events, and what is in a request by an engine's word. What is
// predicted is what the worker then finds, block for block.
func TestARequestWithAPictureGoesToTheWorkerThatHoldsIt(t *testing.T) {
	t.Parallel()
	l := layoutOf(layout{prefill: 3, decode: 1, config: askedOfPictures, simArgs: []string{"--scale-out"}}, worker.VLLM)
	both(t, l, func(t *testing.T, f *fleet) {
		ask := asker(t, f)
		_, had, first := ask(asking(20, address("a", 4), " what is it?"))
		require.Zero(t, had)
		for i, other := range []string{"b", "c"} {
			predicted, had, _ := ask(asking(20, address(other, 4), " what is it?"))
			require.Equal(t, had, 16*predicted)
			require.LessOrEqual(t, predicted, 1, "picture %d has what stands before it alone, if that", i)
		}
		for range 2 {
			predicted, had, at := ask(asking(20, address("a", 4), " and why?"))
			require.Equal(t, had, 16*predicted)
			require.GreaterOrEqual(t, predicted, 5)
			require.Equal(t, first, at)
		}
		predicted, had, _ := ask(asking(21, address("a", 4), " and why?"))
		require.Equal(t, had, 16*predicted)
		require.LessOrEqual(t, predicted, 1, "the same picture at another place")
	})
}

// TestAPictureIsKnownByWhatItIsNow: not by its address, its size or its place among others,
// and by what the request says of reading it.
func TestAPictureIsKnownByWhatItIsNow(t *testing.T) {
	t.Parallel()
	var now atomic.Value
	there := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, now.Load().(string))
	}))
	t.Cleanup(there.Close)
	of := func(name string) string { return name + strings.Repeat("-", 4*16*4) } // of four blocks
	l := layoutOf(layout{prefill: 3, decode: 1, config: askedOfPictures, simArgs: []string{"--scale-out", "--trust-request-mm-kwargs"}}, worker.VLLM)
	f := newFleet(t, l)
	ask := asker(t, f)
	known := func(body, why string) {
		t.Helper()
		predicted, had, _ := ask(body)
		require.Equal(t, had, 16*predicted, why)
		require.GreaterOrEqual(t, predicted, 5, why)
	}
	unknown := func(body, why string) {
		t.Helper()
		predicted, had, _ := ask(body)
		require.Equal(t, had, 16*predicted, why)
		require.LessOrEqual(t, predicted, 1, why)
	}
	now.Store(of("cat"))
	asked := asking(20, there.URL, " what is it?")
	unknown(asked, "the first")
	known(asked, "the same")
	now.Store(of("dog"))
	unknown(asked, "another at the same address")
	known(asked, "which is known by then")
	now.Store(of("cat"))
	known(asked, "and so is the one before")
	known(asking(20, "data:,"+of("cat"), " what is it?"), "wherever it comes from")

	const kwargs = `,"mm_processor_kwargs":{"do_resize":false}}`
	unknown(strings.TrimSuffix(asked, "}")+kwargs, "read in another way")
	known(strings.TrimSuffix(asked, "}")+kwargs, "in the same way")

	pair := func(one, other string) string {
		return fmt.Sprintf(`{"model":"m","max_tokens":2,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,%s"}},`+
			`{"type":"image_url","image_url":{"url":"data:,%s"}}]}]}`, of(one), of(other))
	}
	unknown(pair("hen", "cow"), "two")
	known(pair("hen", "cow"), "the same two")
	unknown(pair("cow", "hen"), "exchanged")
}

// TestOfAPictureThatNobodyTellsOfTheRestIsGuessed: what stands before it is known, and the
// rest goes where such a prompt was routed lately.
func TestOfAPictureThatNobodyTellsOfTheRestIsGuessed(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.VLLM, worker.SGLang} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, layoutOf(layout{prefill: 3, decode: 1, config: askedOfPictures}, engine))
			ask := func(body string) (overlap, predicted int, at string) {
				f.forget()
				r := f.send(t.Context(), "/v1/chat/completions", body)
				require.Equal(t, 200, r.status, r.body)
				d := f.decisions()[0]
				require.Equal(t, "tokenized up to its first picture", d.TokenReason)
				for _, row := range d.Prefill.Table {
					if row.WorkerID == d.Prefill.WorkerID {
						predicted = row.Predicted
					}
					require.Empty(t, row.Note, "blocks that cannot be read degrade no rank")
				}
				return d.Prefill.Overlap, predicted, d.Prefill.WorkerID
			}
			before, _, first := ask(asking(40, address("a", 8), " what is it?"))
			require.Zero(t, before)
			f.await("what stands before the picture is told", func() bool {
				return f.metric("baton_worker_index_blocks", fmt.Sprintf(`worker_id="%s"`, first)) >= 2
			})
			overlap, predicted, at := ask(asking(40, address("a", 8), " what is it?"))
			require.Equal(t, first, at)
			require.Positive(t, predicted, "the rest is a guess, and marked as one")
			require.GreaterOrEqual(t, overlap-predicted, 2, "what stands before it is known")
		})
	}
}
