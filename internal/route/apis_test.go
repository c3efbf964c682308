package route

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// sent is a request on a path, read as the leg reads it.
func sent(t *testing.T, path, body string) Request {
	t.Helper()
	req := Request{Now: time.Now(), Scan: new(openai.Request), Body: []byte(body)}
	p, read := openai.ParsePath(path)
	switch {
	case body == "":
		req.Passing, req.Scan, req.Body = path, nil, nil
	case read:
		require.NoError(t, openai.Scan(p, req.Body, req.Scan))
	default:
		req.Passing = path
		require.NoError(t, openai.ScanOther("application/json", req.Body, req.Scan))
	}
	return req
}

// TestEachApiIsServedAsItsEngineCan: apart where the engine takes the hand-off, else by one worker of
// a role that can, or refused.
func TestEachApiIsServedAsItsEngineCan(t *testing.T) {
	response, message := `{"model":"m","input":"a"}`, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"}]}`
	ids := `{"model":"m","token_ids":[1,2,3],"sampling_params":{}}`
	pair, decode, prefills := []worker.ID{1, 2}, []worker.ID{3, 4}, []worker.ID{1, 2}
	for _, c := range []struct {
		engine  worker.Engine
		roles   string // of the four workers
		accepts bool   // decode takes requests without a prefill
		path    string
		body    string
		apart   bool
		by      []worker.ID // prefill's, if apart
		refused Reason
	}{
		{worker.SGLang, "ppdd", false, "/v1/responses", response, true, pair, ""},
		{worker.SGLang, "ppdd", false, "/v1/messages", message, false, nil, NeedsAlone},
		{worker.SGLang, "ppdd", true, "/v1/messages", message, false, decode, ""},
		{worker.SGLang, "ppdd", false, "/v1/messages/count_tokens", message, false, decode, ""},
		{worker.SGLang, "pppp", false, "/tokenize", `{"model":"m","prompt":"a"}`, false, []worker.ID{1, 2, 3, 4}, ""},
		{worker.SGLang, "ppdd", false, "/v1/embeddings", `{"model":"m","input":"a"}`, false, nil, NeedsAlone},
		{worker.SGLang, "ppdd", false, "/v1/responses", `{"model":"m","input":"a","background":true}`, false, nil, NoHandoff},
		{worker.VLLM, "ppdd", true, "/v1/responses", response, true, pair, ""},
		{worker.VLLM, "ppdd", true, "/v1/messages", message, true, pair, ""},
		{worker.VLLM, "ppdd", true, "/v1/messages", message[:len(message)-1] + `,"tool_choice":{"type":"tool","name":"f"}}`, false, decode, ""},
		{worker.VLLM, "ppdd", true, "/v1/messages", message[:len(message)-1] + `,"tool_choice":{"type":"auto"}}`, true, pair, ""},
		{worker.VLLM, "ppdd", true, "/inference/v1/generate", ids, true, pair, ""},
		{worker.VLLM, "ppdd", true, "/inference/v1/generate", `{"token_ids":[1],"sampling_params":{"prompt_logprobs":1}}`, false, decode, ""},
		{worker.VLLM, "ppdd", true, "/v1/responses", `{"model":"m","input":"a","tools":[{"type":"function","name":"f"},{"type":"code_interpreter"}]}`, false, decode, ""},
		{worker.VLLM, "ppdd", true, "/v1/responses", `{"model":"m","input":"a","truncation":"auto"}`, false, decode, ""},
		{worker.VLLM, "ppdd", true, "/v1/responses", `{"model":"m","input":"a","truncation":"disabled","tools":[{"type":"function","name":"f"}]}`, true, pair, ""},
		{worker.VLLM, "ppdd", true, "/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, false, prefills, ""},
		{worker.VLLM, "ppdd", false, "/v1/embeddings", `{"model":"m","input":"a"}`, false, prefills, ""},
		{worker.VLLM, "ppdd", true, "/v1/score", `{"model":"m"}`, false, decode, ""},
		{worker.VLLMMooncake, "ppdd", true, "/v1/responses", response, true, pair, ""},
		{worker.VLLMMooncake, "ppdd", true, "/v1/messages", message, false, decode, ""},
		{worker.VLLMMooncake, "ppdd", true, "/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, false, prefills, ""},
		{worker.TensorRTLLM, "ppdd", false, "/v1/messages", message, false, nil, NeedsAlone},
	} {
		t.Run(fmt.Sprint(c.engine, c.path, c.body), func(t *testing.T) {
			ws := engineOf(routetest.Workers(), c.engine)
			for i, w := range ws {
				w.Role = map[byte]worker.Role{'p': worker.Prefill, 'd': worker.Decode}[c.roles[i]]
				w.AcceptsAggregated = c.accepts && w.Role == worker.Decode
				w.KVEvents = worker.KVEvents{}
				if c.engine == worker.VLLMMooncake && w.Role == worker.Prefill {
					w.Bootstrap.EngineIDs = []string{"e"}
				}
			}
			r := newRig(t, ws, func(cfg *Config) { cfg.Policy.Rules.Listener = true })
			q, f := r.Ask(sent(t, c.path, c.body))
			if c.refused != "" {
				require.Equal(t, string(c.refused), reasonIn(f))
				if c.refused == NeedsAlone {
					require.Equal(t, c.path, f.Path)
				}
				return
			}
			require.Nil(t, f)
			sc := NewScratch()
			p, ok := q.Prompt()
			if !ok {
				p, _ = r.resolver.Fast(q.Query(), &sc.Tokens)
			}
			d, f := r.Decide(q, p, sc, time.Now())
			require.Nil(t, f)
			require.Equal(t, c.apart, d.Apart)
			by := d.Decode.Rank.ID
			if d.Apart {
				by = d.Prefill.Rank.ID
			}
			require.True(t, slices.Contains(c.by, by), by)
			d.Cancel(time.Now())
			require.Zero(t, r.cfg.Book.Totals().Held)
		})
	}
}

// TestAResponseGoesOnAtTheWorkerThatKeepsIt: its id says which worker that is. One that has left, or
// an id of another router's, is said.
func TestAResponseGoesOnAtTheWorkerThatKeepsIt(t *testing.T) {
	id := func(w worker.ID) string { return string(openai.AppendResponseID(nil, 7, uint64(w))) }
	after := func(id string) string { return fmt.Sprintf(`{"model":"m","input":"a","previous_response_id":%q}`, id) }
	for _, c := range []struct {
		name, path, body string
		engine           worker.Engine
		accepts          bool
		only             bool // one decode worker alone
		by               worker.ID
		refused          Reason
	}{
		{name: "on its worker", path: "/v1/responses", body: after(id(4)), engine: worker.VLLM, accepts: true, by: 4},
		{name: "… though another is idle", path: "/v1/responses", body: after(id(3)), engine: worker.VLLM, accepts: true, by: 3},
		{name: "its worker has left", path: "/v1/responses", body: after(id(99)), engine: worker.VLLM, accepts: true, refused: NoResponse},
		{name: "an engine's own id", path: "/v1/responses", body: after("resp_abc"), engine: worker.VLLM, accepts: true, refused: NoResponse},
		{name: "an engine's own id, and one worker", path: "/v1/responses", body: after("resp_abc"), engine: worker.VLLM, accepts: true, only: true, by: 3},
		{name: "no text", path: "/v1/responses", body: `{"model":"m","input":"a","previous_response_id":5}`, engine: worker.VLLM, accepts: true, refused: NoResponse},
		{name: "no worker serves alone", path: "/v1/responses", body: after(id(4)), engine: worker.SGLang, refused: NoHandoff},
		{name: "of a prefill worker", path: "/v1/responses", body: after(id(1)), engine: worker.VLLM, accepts: true, refused: NoResponse},
		{name: "asked for", path: "/v1/responses/" + id(4), engine: worker.VLLM, accepts: true, by: 4},
		{name: "cancelled", path: "/v1/responses/" + id(3) + "/cancel", body: "{}", engine: worker.VLLM, accepts: true, by: 3},
		{name: "asked for at a worker that has left", path: "/v1/responses/" + id(98), engine: worker.VLLM, accepts: true, refused: NoResponse},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := engineOf(routetest.Workers(), c.engine)
			for _, w := range ws {
				w.AcceptsAggregated, w.KVEvents = c.accepts && w.Role == worker.Decode, worker.KVEvents{}
			}
			if c.only {
				ws = ws[:3]
			}
			r := newRig(t, ws, func(cfg *Config) { cfg.Policy.Rules.Listener = true })
			for range 4 { // whoever else would be next
				by, refused := r.served(sent(t, c.path, c.body))
				require.Equal(t, string(c.refused), refused)
				require.Equal(t, c.by, by)
			}
		})
	}
}
