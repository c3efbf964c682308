package enginesim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/vllm"
)

const chat = "/v1/chat/completions"

func looking(address, uuid string) string {
	return fmt.Sprintf(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"what is"},`+
		`{"type":"image_url","image_url":{"url":%q},"uuid":%q},{"type":"text","text":" and why?"}]}]}`, address, uuid)
}

// lastStored returns the stores in a rank's last message.
func lastStored(t *testing.T, s *Sim) (out []map[string]any) {
	t.Helper()
	var batch []any
	batches := replay(t, s, 0, 0)
	require.NoError(t, msgpack.Unmarshal(batches[len(batches)-1][3], &batch))
	for _, e := range batch[1].([]any) {
		if e := e.(map[string]any); e["type"] == "BlockStored" {
			out = append(out, e)
		}
	}
	return out
}

// The names and places are the same in both.
func TestVLLMTellsPicturesInItsEventsAndWhereItIsAskedTo(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, Models: []string{"m"}, PageSize: 4, ScaleOut: true})
	const address = "http://pictures/1" // 4 + 17/4 tokens
	sum := sha256.Sum256([]byte(address))
	digest := hex.EncodeToString(sum[:])
	require.Equal(t, 200, post(t.Context(), s.URL()+chat, looking(address, "")).status)
	stored := lastStored(t, s)[0]
	require.Equal(t, []any{nil, []any{[]any{digest, int8(1)}}, []any{[]any{digest, int8(-3)}}, []any{[]any{digest, int8(-7)}}, nil}, stored["extra_keys"])

	var told vllm.Rendered
	r := post(t.Context(), s.URL()+chat+"/render", looking(address, ""))
	require.Equal(t, 200, r.status, r.body)
	require.Greater(t, len(r.body), 1<<20, "with what its pictures were made into")
	asked := looking(address, "")
	r = post(t.Context(), s.URL()+chat+"/render", asked[:len(asked)-1]+`,"mm_payload":"none"}`)
	require.NoError(t, json.Unmarshal([]byte(r.body), &told))
	require.Nil(t, told.Features.Data)
	require.Equal(t, map[string][]string{"image": {digest}}, told.Features.Hashes)
	require.Equal(t, []vllm.Placeholder{{Offset: 5, Length: 8}}, told.Features.Placeholders["image"])
	require.Equal(t, slices.Repeat([]uint32{5}, 8), told.TokenIDs[5:13])
	whole := len(told.TokenIDs) / 4 * 4
	require.Len(t, stored["token_ids"], whole)
	for i, id := range stored["token_ids"].([]any) {
		require.EqualValues(t, told.TokenIDs[i], id)
	}
	require.Contains(t, post(t.Context(), s.URL()+"/tokenize", looking(address, "")).body, "5,5,5,5,5,5,5,5")

	r = post(t.Context(), s.URL()+chat+"/render", looking(address, "a name"))
	require.NoError(t, json.Unmarshal([]byte(r.body), &told))
	require.Equal(t, map[string][]string{"image": {"a name"}}, told.Features.Hashes)
	r = post(t.Context(), s.URL()+chat+"/render", `{"model":"m","messages":[{"role":"user","content":"none"}]}`)
	require.Contains(t, r.body, `"features":null`)
	require.Equal(t, 404, post(t.Context(), s.URL()+chat+"/render", `{"model":"n","messages":[{"role":"user","content":"none"}]}`).status)

	closed := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM})
	require.Equal(t, 403, post(t.Context(), closed.URL()+chat+"/render", looking(address, "")).status)
	_, err := New(Config{Role: worker.Aggregated, ScaleOut: true})
	require.ErrorContains(t, err, "scale-out")
}

// Its name also depends on what the request says about reading it.
func TestAPictureIsWhatIsAtItsAddress(t *testing.T) {
	t.Parallel()
	var now atomic.Value
	now.Store("a cat")
	there := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status, err := strconv.Atoi(r.URL.Path[1:]); err == nil {
			w.WriteHeader(status)
		}
		_, _ = io.WriteString(w, now.Load().(string))
	}))
	t.Cleanup(there.Close)
	s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, Models: []string{"m"}, PageSize: 4, ScaleOut: true, TrustMMKwargs: true})
	named := func(address, uuid, more string) string {
		asked := looking(address, uuid)
		var told vllm.Rendered
		r := post(t.Context(), s.URL()+chat+"/render", asked[:len(asked)-1]+more+"}")
		require.Equal(t, 200, r.status, r.body)
		require.NoError(t, json.Unmarshal([]byte(r.body), &told))
		return told.Features.Hashes["image"][0]
	}
	cat := named(there.URL, "", "")
	require.Equal(t, cat, named("data:image/png;base64,a cat", "", ""))
	now.Store("a dog")
	require.NotEqual(t, cat, named(there.URL, "", ""))
	const kwargs = `,"mm_processor_kwargs":{"do_resize":false}`
	require.Equal(t, cat, named("data:,a cat", "", `,"mm_processor_kwargs":{},"media_io_kwargs":null`))
	require.NotEqual(t, cat, named("data:,a cat", "", kwargs))
	require.NotEqual(t, "a name", named("data:,a cat", "a name", kwargs))
	require.Equal(t, named("data:,a dog", "a name", kwargs), named("data:,a cat", "a name", kwargs))

	for path, want := range map[string]int{"/404": 422, "/503": 500} {
		require.Equal(t, want, post(t.Context(), s.URL()+chat, looking(there.URL+path, "")).status, path)
		require.Equal(t, want, post(t.Context(), s.URL()+"/tokenize", looking(there.URL+path, "")).status, path)
	}
	strict := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, Models: []string{"m"}, ScaleOut: true})
	asked := looking("data:,a cat", "")
	require.Equal(t, 400, post(t.Context(), strict.URL()+chat, asked[:len(asked)-1]+kwargs+"}").status)
	_, err := New(Config{Role: worker.Aggregated, TrustMMKwargs: true})
	require.ErrorContains(t, err, "trust-request-mm-kwargs")
}

func TestAPictureIsCachedAsWhatItIs(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.VLLM, worker.SGLang} {
		s := start(t, Config{Role: worker.Aggregated, Engine: engine, Models: []string{"m"}, PageSize: 4})
		cached := func(address string) int {
			before := s.State(false).Ranks[0].CachedTokens
			require.Equal(t, 200, post(t.Context(), s.URL()+chat, looking(address, "")).status)
			return int(s.State(false).Ranks[0].CachedTokens - before)
		}
		require.Zero(t, cached("http://pictures/1"))
		require.Equal(t, 16, cached("http://pictures/1"))
		require.Equal(t, 4, cached("http://pictures/2"), "another of the same size: what stands before it")
	}
}

// The pads in events are those of the hash of the picture's content
// (sglang.TestSGLangPadsPictures).
func TestSGLangTellsPadsInPlaceOfPictures(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Role: worker.Aggregated, Models: []string{"m"}, PageSize: 4})
	require.Equal(t, 200, post(t.Context(), s.URL()+chat, looking("http://pictures/1", "")).status)
	var tokens []any
	for _, e := range lastStored(t, s) {
		tokens = append(tokens, e["token_ids"].([]any)...)
	}
	require.Len(t, tokens, 20)
	sum := sha256.Sum256([]byte("http://pictures/1"))
	sum = sha256.Sum256(append([]byte("sglang-mm-wide-pad-v1"), sum[:8]...))
	for i := range 8 {
		pad := 1_000_000 + binary.BigEndian.Uint64(sum[8*(i%4):])&(1<<62-1)
		require.EqualValues(t, pad, tokens[5+i], i)
	}
	require.Contains(t, post(t.Context(), s.URL()+"/tokenize", looking("http://pictures/1", "")).body, "3,5,4")
}
