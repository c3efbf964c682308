package extproc

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func setOf(list string) *subset.Set { return subset.Parse(structpb.NewStringValue(list)) }

// engineOf makes workers of one engine; those of a hand-off through prefill's answer
// have no bootstrap.
func engineOf(ws []*worker.Worker, e worker.Engine) fixed {
	for _, w := range ws {
		if w.Engine = e; handoff.KindOf(e).PrefillFirst() {
			w.Bootstrap = worker.Bootstrap{}
		}
	}
	return fixed(ws)
}

// The KV that nobody has fetched is collected by whom the data plane allows, at the
// port of a rank that it allows.
func TestACollectingLegGoesToAnAllowedRank(t *testing.T) {
	r := newReplicaOf(t, "a", engineOf(portedWorkers(t), worker.VLLM), nil)
	p := &plan{kind: handoff.KindOf(worker.VLLM)}
	p.decodeRequest.Key = worker.Key{Model: "m"}
	for list, want := range map[string]worker.Rank{
		"127.0.0.1:40402": {ID: 4, DPRank: 2}, "127.0.0.1:40301": {ID: 3, DPRank: 1},
		"127.0.0.1": {ID: 3}, "127.0.0.1:40102": {}, "": {},
	} {
		p.subset = setOf(list)
		w, dp := r.srv.anotherDecode(p, nil)
		if want.ID == 0 {
			require.Nil(t, w, list)
			continue
		}
		require.NotNil(t, w, list)
		require.Equal(t, want, worker.Rank{ID: w.ID, DPRank: dp}, list)
	}
	p.subset = nil
	w, dp := r.srv.anotherDecode(p, []worker.ID{3})
	require.Equal(t, worker.Rank{ID: 4}, worker.Rank{ID: w.ID, DPRank: dp})
}

// A client's header does not widen what the data plane allows, and is nothing to
// filters that do not speak the protocol.
func TestTheSelectionHeaderChoosesNoOneBesideTheDataPlanesHint(t *testing.T) {
	r := newReplicaOf(t, "a", aggregated(testWorkers(t)), func(c *Config) { enabled(c); c.Gateway.SelectionHeader = true })
	p := r.plainly()
	require.Equal(t, "127.0.0.1:40000", setHeaders(p.get(allowing("127.0.0.1:40000"), wire.HeaderSelection, "127.0.0.1:40003"))[prefill.HeaderDestination])
	p.cancel()
	p = r.plainly()
	p.sendGet(allowing(""), wire.HeaderSelection, "127.0.0.1:40003")
	_, code, _ := codeOf(t, p.recv())
	require.Equal(t, failOutside.code, code)
	p.cancel()
	p = r.plainly()
	require.Equal(t, "127.0.0.1:40003", setHeaders(p.get(nil, wire.HeaderSelection, "127.0.0.1:40003"))[prefill.HeaderDestination], "alone it counts")
	p.cancel()
	ev := &event{headers: &wire.Headers{Selection: []string{"127.0.0.1:40003"}}}
	require.Nil(t, r.srv.subsetOf(ev, false))
	require.NotNil(t, r.srv.subsetOf(ev, true))
	r.srv.cfg.Gateway.SelectionHeader = false
	require.Nil(t, r.srv.subsetOf(ev, true))
}

// A passing request has no model of its own; the worker that it names has one, and
// its pool is the one to pick from, whichever comes first.
func TestAPassingRequestThatNamesAWorkerIsOfItsModel(t *testing.T) {
	for i := range 2 {
		ws := aggregated(testWorkers(t))
		ws[i].Models = []string{"other"}
		r := newReplicaOf(t, "a", ws, enabled)
		for _, id := range []string{"1", "2"} {
			p := r.through(direct(protocolKey, "gateway")...)
			h := setHeaders(p.get(nil, "x-worker-instance-id", id))
			require.Equal(t, id, h["x-worker-instance-id"])
			p.cancel()
			p = r.through(direct(protocolKey, "gateway")...)
			at := map[string]string{"1": "127.0.0.1:40000", "2": "127.0.0.1:40001"}[id]
			h = setHeaders(p.get(nil, prefill.HeaderDestination, at))
			require.Equal(t, at, h[prefill.HeaderDestination])
			p.cancel()
		}
	}
}

// Who may serve a request of which only the headers count.
func TestWhoServesAPassingRequest(t *testing.T) {
	two := func(ws []*worker.Worker) { ws[0].Models, ws[1].Models = []string{"n"}, []string{"n"} }
	pairs := func(ws []*worker.Worker) { ws[1].Models, ws[3].Models = []string{"n"}, []string{"n"} }
	alone := func(ws []*worker.Worker) { ws[3].AcceptsAggregated = true }
	pair := []worker.Role{worker.Prefill, worker.Prefill, worker.Decode, worker.Decode}
	all := slices.Repeat([]worker.Role{worker.Aggregated}, 4)
	for _, c := range []struct {
		name       string
		roles      []worker.Role
		change     func([]*worker.Worker)
		enforced   bool
		allow      string
		bare       *failure // nil: served
		body       string   // the code of the same with a body that names no model
		decodeOnly bool     // of headers alone
		from       string   // who serves these, if it is told by the model
	}{
		{name: "one model", roles: all, from: "m"},
		{name: "several models: only headers may go to any", roles: all, change: two, body: "missing_field"},
		{name: "… and to one that is allowed", roles: all, change: two, allow: "127.0.0.1:40000", body: "missing_field", from: "n"},
		{name: "… whichever it is", roles: all, change: two, allow: "127.0.0.1:40003", body: "missing_field", from: "m"},
		{name: "enforced: a body may be a generation", roles: all, enforced: true, body: "disaggregation_enforced"},
		{name: "who decodes may be asked, not for a generation", roles: pair, decodeOnly: true, body: "no_aggregated_worker"},
		{name: "… that is allowed", roles: pair, change: pairs, allow: "127.0.0.1:40002", decodeOnly: true, body: "missing_field", from: "m"},
		{name: "… of whichever model", roles: pair, change: pairs, allow: "127.0.0.1:40003", decodeOnly: true, body: "missing_field", from: "n"},
		{name: "decode that serves alone", roles: pair, change: alone},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := testWorkers(t)
			for i, role := range c.roles {
				ws[i].Role = role
			}
			if c.change != nil {
				c.change(ws)
			}
			r := newReplicaOf(t, "a", fixed(ws), func(cfg *Config) { cfg.EnforceDisagg = c.enforced })
			w := wish{endpoints: 1}
			if c.allow != "" {
				w.subset = setOf(c.allow)
			}
			q, f := r.srv.passingQuestion(w, "/health", nil, nil)
			require.Equal(t, c.bare, f)
			require.Equal(t, c.decodeOnly, q.decodeOnly)
			require.Equal(t, "/health", q.passing)
			require.NotZero(t, q.query.BlockSize)
			if c.from != "" {
				require.Equal(t, c.from, q.query.Key.Model)
			}
			var none openai.Request
			q, f = r.srv.passingQuestion(w, "/v1/responses", &none, nil)
			if c.body != "" {
				require.Equal(t, c.body, f.code)
				return
			}
			require.Nil(t, f)
			require.False(t, q.decodeOnly)
		})
	}
}

// Nobody is there, or nobody that could be asked.
func TestNobodyServesAPassingRequest(t *testing.T) {
	ws := testWorkers(t)
	r := newReplicaOf(t, "a", fixed(ws[:2]), nil) // prefill alone
	for _, bare := range []bool{true, false} {
		scan := new(openai.Request)
		if bare {
			scan = nil
		}
		_, f := r.srv.passingQuestion(wish{}, "/v1/responses", scan, nil)
		require.Equal(t, failNoAggregated.code, f.code, bare)
	}
	r = newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.Namespace = "elsewhere" })
	_, f := r.srv.passingQuestion(wish{}, "/health", nil, nil)
	require.Equal(t, failNoWorker.code, f.code)
	r = newReplicaOf(t, "a", fixed(nil), nil)
	_, f = r.srv.passingQuestion(wish{}, "/health", nil, nil)
	require.Equal(t, failNoWorker.code, f.code)
}

// The body says of which model; only what asks for tokens alone goes to a decode worker
// that cannot serve without a prefill, and past what is enforced.
func TestAPassingRequestIsOfTheModelThatItsBodyNames(t *testing.T) {
	ws := testWorkers(t)
	ws[1].Models, ws[3].Models = []string{"n"}, []string{"n"}
	ws[3].AcceptsAggregated = true
	for _, row := range []struct {
		path, body string
		change     func(*Config)
		want       string // the decode worker, or the code
	}{
		{"/v1/responses", `{"model":"n"}`, nil, "4"},
		{"/v1/responses", `{"model":"m"}`, nil, "no_aggregated_worker"},
		{"/v1/responses", `{"model":"x"}`, nil, "model_not_found"},
		{"/v1/responses", `{"input":"x"}`, nil, "missing_field"},
		{"/tokenize", `{"model":"m"}`, nil, "3"},
		{"/v1/tokenize?x", `{"model":"m"}`, nil, "3"},
		{"/v1/embeddings", `{"model":"n"}`, func(c *Config) { c.EnforceDisagg = true }, "disaggregation_enforced"},
		{"/v1/embeddings", `{"model":"n"}`, func(c *Config) { c.EnforceDisagg, c.NeverSplit = true, map[string]bool{"n": true} }, "4"},
		{"/tokenize", `{"model":"m"}`, func(c *Config) { c.EnforceDisagg = true }, "3"},
		{"/flush_cache", `{"model":"n"}`, nil, "unknown_path"},
		{"/v1/responses", `{"model":"n"}`, func(c *Config) { c.RefuseOther = true }, "unknown_path"},
		{"/v1/messages", `{"model":"n","kv_transfer_params":{"do_remote_prefill":true}}`, nil, "forbidden_field"},
		{"/v1/messages", `{"model":"n","a":[{"bootstrap_room":1}]}`, nil, "forbidden_field"},
		{"/v1/messages", `["n"]`, nil, "not_json"},
	} {
		r := newReplicaOf(t, "a", fixed(ws), row.change)
		for _, filter := range [][]string{{}, {protocolKey, "gateway"}} {
			p := r.through(filter...)
			m := p.askAt(row.path, row.body)
			got := ""
			if im := m.GetImmediateResponse(); im != nil {
				_, got, _ = codeOf(t, m)
			} else {
				set, _ := routed(t, m)
				got = set["x-worker-instance-id"]
				require.Empty(t, set["x-prefill-instance-id"])
			}
			require.Equal(t, row.want, got, "%s %s", row.path, row.body)
			p.cancel()
		}
		r.requireIdle()
	}
}

// A plain gateway carries one leg. A hand-off that needs a mirrored one is done
// without, if it may be and somebody can; one through prefill's answer needs only
// our listener.
func TestWhatAPlainGatewayCarries(t *testing.T) {
	listener := func(c *Config) { c.PrefillListener = "unix:///nowhere/prefill.sock" }
	enforced := func(c *Config) { c.EnforceDisagg = true }
	for _, c := range []struct {
		name   string
		engine worker.Engine
		alone  bool // decode can serve alone
		change func(*Config)
		twoLeg bool
		fail   *failure
		disagg bool
	}{
		{name: "mirrored: one worker instead", engine: worker.SGLang, alone: true},
		{name: "mirrored, and nobody can", engine: worker.SGLang, fail: &failNoAggregated},
		{name: "mirrored, enforced", engine: worker.SGLang, alone: true, change: enforced, fail: &failEnforced},
		{name: "mirrored, with a listener that is no help", engine: worker.SGLang, alone: true, change: listener},
		{name: "through the answer", engine: worker.VLLM, change: listener, disagg: true},
		{name: "through the answer, without a listener", engine: worker.VLLM, alone: true},
		{name: "through the answer, enforced without a listener", engine: worker.VLLM, alone: true, change: enforced, fail: &failEnforced},
		{name: "two legs", engine: worker.SGLang, twoLeg: true, disagg: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := engineOf(testWorkers(t), c.engine)
			ws[2].AcceptsAggregated = c.alone
			r := newReplicaOf(t, "a", ws, c.change)
			var req openai.Request
			require.NoError(t, openai.Scan(openai.Completions, []byte(someBody), &req))
			q, f := r.srv.questionOf(&req, []byte(someBody), wish{endpoints: 1, oneLeg: !c.twoLeg}, nil)
			require.Equal(t, c.fail, f)
			if f != nil {
				return
			}
			require.Equal(t, c.disagg, q.disagg)
			want := splitReason("")
			if !c.disagg {
				want = splitOneLeg
			}
			require.Equal(t, want, q.alone)
		})
	}
}

// Tokens are counted by whom the data plane allows, and nobody else.
func TestTokensAreCountedWithinTheSubset(t *testing.T) {
	r := newReplica(t, "a", nil)
	snap := r.srv.cfg.Board.Load()
	q := &question{snap: snap, pool: snap.Pool(worker.Key{Model: "m"})}
	asked := func() (out []string) {
		for _, e := range r.srv.tokenizers(q) {
			out = append(out, e.String())
		}
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{"127.0.0.1:40000", "127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:40003"}, asked())
	q.wish.subset = setOf("127.0.0.1:40001,127.0.0.1:40002")
	require.Equal(t, []string{"127.0.0.1:40001", "127.0.0.1:40002"}, asked())
	q.wish.subset = setOf("")
	require.Empty(t, asked())
}
