package tokens

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// paged is an engine that tokenizes as its chats' bytes, and has a page of its own for each path but
// those that it lacks.
type paged struct {
	mu    sync.Mutex
	lacks string
	asked []string
}

func (p *paged) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, req.URL.Path)
	if p.lacks != "" && strings.HasSuffix(req.URL.Path, p.lacks) {
		return answered(http.StatusForbidden, "disabled")
	}
	var q map[string]json.RawMessage
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	member := "tokens"
	if strings.HasSuffix(req.URL.Path, "/render") {
		member = "token_ids"
		if string(q["mm_payload"]) != `"none"` {
			return answered(http.StatusBadRequest, "")
		}
	}
	out, err := json.Marshal(map[string]any{member: bytesOf(string(body)), "features": nil})
	if err != nil {
		return nil, err
	}
	return answered(http.StatusOK, string(out))
}

func (p *paged) took() (asked []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked, p.asked = p.asked, nil
	return asked
}

func resolved(t *testing.T, r *Resolver, engine worker.Engine, path, body string) Prompt {
	t.Helper()
	p, ok := openai.ParsePath(path)
	require.True(t, ok)
	q := Query{Key: worker.Key{Model: "m"}, Request: new(openai.Request), Body: []byte(body), BlockSize: 4, Engine: engine}
	require.NoError(t, openai.Scan(p, q.Body, q.Request))
	ep, err := worker.ParseEndpoint("192.0.2.1:1")
	require.NoError(t, err)
	return r.Resolve(t.Context(), r.Read(q), []worker.Endpoint{ep}, new(Scratch))
}

// TestAConversionIsUsedUntilACountDiffers: then, and for what is not converted, the engine's own page is
// asked, and without one the prompt is estimated.
func TestAConversionIsUsedUntilACountDiffers(t *testing.T) {
	e := new(paged)
	r, err := New(Config{Mode: Auto, Transport: e})
	require.NoError(t, err)
	defer r.Close()
	message := func(text string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"` + text + `"}]}`
	}
	p := resolved(t, r, worker.VLLM, "/v1/messages", message("one"))
	require.Equal(t, []string{"/tokenize"}, e.took())
	require.Equal(t, FromEngine, p.Source)
	require.NotEmpty(t, p.Hashes)
	require.False(t, p.Exact, "nobody has counted it yet")
	p.Claim.Counted(p.ISLTokens)
	p = resolved(t, r, worker.VLLM, "/v1/messages", message("two"))
	require.True(t, p.Exact)
	require.Equal(t, []string{"/tokenize"}, e.took())
	p = resolved(t, r, worker.VLLM, "/v1/messages", message("two"))
	require.Empty(t, e.took(), "it is known")
	require.True(t, p.Cached)

	other := resolved(t, r, worker.VLLM, "/v1/responses", `{"model":"m","input":"a","instructions":"s"}`)
	require.False(t, other.Exact, "a conversion of its own")
	require.Equal(t, []string{"/tokenize"}, e.took())

	p.Claim.Counted(p.ISLTokens + 1)
	p = resolved(t, r, worker.VLLM, "/v1/messages", message("three"))
	require.Equal(t, []string{"/v1/messages/render"}, e.took(), "what differs is not used again")
	require.Equal(t, FromEngine, p.Source)
	require.Positive(t, p.ISLTokens)
	p.Claim.Counted(p.ISLTokens) // of no conversion
	_ = resolved(t, r, worker.VLLM, "/v1/messages", message("three"))
	require.Empty(t, e.took(), "it is known")

	thinking := `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"}]}]}`
	e.lacks = "/render"
	p = resolved(t, r, worker.VLLM, "/v1/messages", thinking)
	require.Equal(t, Estimate, p.Source)
	require.Equal(t, ReasonUntold, p.Reason)
	require.NotEmpty(t, e.took())
	p = resolved(t, r, worker.VLLM, "/v1/responses", `{"model":"m","input":"b"}`)
	require.Equal(t, FromEngine, p.Source, "who has no such page still tokenizes")
	e.took()

	for _, q := range [][2]string{{"/v1/messages", message("a")}, {"/v1/responses", `{"model":"m","input":[{"type":"reasoning","summary":[]}]}`}} {
		p = resolved(t, r, worker.SGLang, q[0], q[1])
		require.Equal(t, Estimate, p.Source, "of no conversion, and no page")
		require.Equal(t, ReasonUnconverted, p.Reason)
		require.True(t, p.Estimated)
		require.Positive(t, p.ISLTokens)
	}
	require.Empty(t, e.took())
}

// TestAnEstimateOfAMessageCountsItsTexts: what its tools have answered is text, and a picture is not.
func TestAnEstimateOfAMessageCountsItsTexts(t *testing.T) {
	r, err := New(Config{Mode: EstimateOnly})
	require.NoError(t, err)
	defer r.Close()
	long := strings.Repeat("word ", 400)
	for _, c := range []struct{ path, body string }{
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":"` + long + `"}]}]}`},
		{"/v1/messages", `{"model":"m","system":"` + long + `","messages":[{"role":"user","content":"a"}]}`},
		{"/v1/responses", `{"model":"m","instructions":"` + long + `","input":"a"}`},
		{"/v1/responses", `{"model":"m","input":[{"type":"function_call_output","call_id":"i","output":"` + long + `"}]}`},
	} {
		p := resolved(t, r, worker.VLLM, c.path, c.body)
		require.InDelta(t, len(long)/4, p.ISLTokens, 40, c.body[:60])
		require.NotEmpty(t, p.Hashes)
	}
	picture := `{"type":"image","source":{"type":"base64","data":"` + long + `"}}`
	for _, c := range []struct{ path, body string }{
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":[` + picture + `]}]}`},
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[` + picture + `]}]}]}`},
		{"/v1/responses", `{"model":"m","input":[{"type":"function_call_output","call_id":"i","output":[{"type":"input_image","image_url":"` + long + `"}]}]}`},
	} {
		require.Less(t, resolved(t, r, worker.VLLM, c.path, c.body).ISLTokens, 300, c.body[:80])
	}
}

// TestWithMembersThatChangeTokensNothingIsClaimed: such a prompt is not made here, no count of it shows
// anything of the files, and beside a text each picture has blocks of its own.
func TestWithMembersThatChangeTokensNothingIsClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, told := filesResolver(t, &counting{m: filesModel(t), of: worker.SGLang})
		defer r.Close()
		chat := func(more string) string {
			return `{"model":"m","messages":[{"role":"user","content":"what is this?"}]` + more + `}`
		}
		const chats, native = "/v1/chat/completions", "/generate"
		resolved(t, r, worker.SGLang, chats, `{"model":"m","messages":[{"role":"user","content":"hello"}]}`) // begins the trial
		synctest.Wait()
		require.Len(t, *told, 2)
		plain := resolved(t, r, worker.SGLang, chats, chat(`,"reasoning":null`))
		require.Equal(t, FromLocal, plain.Source)
		require.True(t, plain.Exact)
		for _, more := range []string{`,"reasoning":{"effort":"none"}`, `,"thinking":true`, `,"task":"action"`} {
			p := resolved(t, r, worker.SGLang, chats, chat(more))
			require.Equal(t, FromEngine, p.Source, more)
			require.False(t, p.Exact, more)
			p.Claim.Counted(p.ISLTokens + 3)
			require.Equal(t, plain.Hashes, p.Hashes, "most of it is what it was")
			q := filesQuery(t, openai.ChatCompletions, chat(more))
			q.Engine = worker.SGLang
			require.False(t, r.Count(r.Read(q), worker.Endpoint{}, nil))
		}
		require.True(t, resolved(t, r, worker.VLLM, chats, chat(`,"thinking":true`)).Exact, "which vLLM does not read")
		for _, prompt := range []string{`{"text":"what is this?"`, `{"input_ids":[1,2,3,4,5,6,7,8]`} {
			of := func(more string) Prompt { return resolved(t, r, worker.SGLang, native, prompt+more) }
			require.True(t, of("}").Exact)
			one := of(`,"image_data":"one"}`)
			require.False(t, one.Exact)
			require.NotEmpty(t, one.Hashes)
			require.Equal(t, one.Hashes, of(`,"image_data":"one"}`).Hashes)
			for _, other := range []string{"}", `,"image_data":["two"]}`, `,"video_data":"one","audio_data":"two"}`} {
				require.NotEqual(t, one.Hashes[0], of(other).Hashes[0], other)
			}
		}
		require.Len(t, *told, 2, "the files are as good as before")
	})
}

func TestTwoPicturesUnderOneTextAreNoEstimatedPrefix(t *testing.T) {
	r, err := New(Config{Mode: EstimateOnly, EstimateBytesPerToken: 1})
	require.NoError(t, err)
	defer r.Close()
	of := func(picture string) Prompt {
		return resolved(t, r, worker.SGLang, "/generate", `{"text":"what is this? tell me more","image_data":"`+picture+`"}`)
	}
	one, two := of("one"), of("two")
	require.NotEmpty(t, one.Hashes)
	require.NotEqual(t, one.Hashes[0], two.Hashes[0])
}
