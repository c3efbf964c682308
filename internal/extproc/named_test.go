package extproc

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// through opens a main leg whose filter has the metadata in pairs.
func (r *replica) through(pairs ...string) *proxy {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), append([]string{filterKey, filterMain}, pairs...)...), 30*time.Second)
	s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	require.NoError(r.t, err)
	return &proxy{r.t, s, cancel}
}

func direct(pairs ...string) []string { return append([]string{routingKey, "direct"}, pairs...) }

// routed returns what is set on a request, and what is removed.
func routed(t *testing.T, m *extprocv3.ProcessingResponse) (set map[string]string, removed []string) {
	t.Helper()
	require.NotNil(t, m.GetRequestBody(), "%v", m)
	h := m.GetRequestBody().GetResponse().GetHeaderMutation()
	return setHeaders(h), h.GetRemoveHeaders()
}

func codeOf(t *testing.T, m *extprocv3.ProcessingResponse) (status int, code, param string) {
	t.Helper()
	im := m.GetImmediateResponse()
	require.NotNil(t, im, "%v", m)
	var body struct{ Error struct{ Code, Param string } }
	require.NoError(t, json.Unmarshal(im.GetBody(), &body))
	return int(im.GetStatus().GetCode()), body.Error.Code, body.Error.Param
}

func TestAFilterThatSaysWhatNobodyKnowsIsRefused(t *testing.T) {
	var said syncbuf.Buffer
	r := newReplica(t, "a", func(c *Config) { c.StartTimeout, c.Logger = time.Minute, slog.New(slog.NewTextHandler(&said, nil)) })
	for _, bad := range [][]string{
		{routingKey, "normal"}, {routingKey, "Direct"}, {routingKey, "direct", routingKey, "direct"},
		{routingRepickKey, "yes"}, {routingFieldsKey, "no"},
	} {
		p := r.through(bad...)
		_, err := p.s.Recv()
		require.ErrorContains(t, err, "InvalidArgument", bad)
		require.ErrorContains(t, err, bad[0]+" is")
		require.ErrorContains(t, err, "expected one of")
		p.cancel()
	}
	// An unknown key may be misspelt, and was perhaps meant to refuse names in bodies.
	for _, filter := range []string{filterMain, filterPrefill, filterSync} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), filterKey, filter, routingKey, "direct", "x-baton-routing-field", "refuse", "x-other", "fine")
		s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
		require.NoError(t, err)
		_, err = s.Recv()
		require.ErrorContains(t, err, "InvalidArgument")
		require.ErrorContains(t, err, "x-baton-routing-field is not known")
		require.ErrorContains(t, err, routingFieldsKey)
	}
	require.Equal(t, 1, strings.Count(said.String(), "x-baton-routing-field is not known"), "it is said once, in the log that operators read")
	require.Equal(t, 6, strings.Count(said.String(), "a filter's streams are refused"))
	p := r.through(direct(routingRepickKey, "true", routingFieldsKey, "refuse", protocolKey, "gateway", "x-other", "fine")...)
	routed(t, p.ask(eightTokens, "x-prefill-instance-id", "2", "x-worker-instance-id", "4"))
	p.cancel()
	r.forgetLegs()
	r.requireIdle()
}

// Named workers are taken and booked. No cursor moves.
func TestANamedPairIsBookedAndTheTurnStays(t *testing.T) {
	t.Parallel()
	r := newReplica(t, "a", func(c *Config) {
		c.Prefill.Mode, c.Decode.Mode = picker.RoundRobin, picker.RoundRobin
		c.StartTimeout = time.Minute
	})
	for range 3 {
		p := r.through(direct()...)
		set, removed := routed(t, p.ask(eightTokens, "x-dynamo-worker-instance-id", "4", "x-prefiller-host-port", "127.0.0.1:40001"))
		require.Equal(t, "2", set["x-prefill-instance-id"])
		require.Equal(t, "4", set["x-worker-instance-id"])
		require.Equal(t, "127.0.0.1:40003", set[prefill.HeaderDestination])
		require.ElementsMatch(t, []string{"x-dynamo-worker-instance-id", "x-prefiller-host-port"}, removed)
		booked, _ := r.book.Load(worker.Rank{ID: 2})
		require.EqualValues(t, 1, booked.PrefillRequests)
		require.Positive(t, booked.PrefillTokens)
		require.Equal(t, 2, r.book.Totals().Held)
		p.cancel()
		r.forgetLegs()
		r.requireIdle()
	}
	var picked []string
	for range 4 {
		p := r.open(filterMain)
		set := p.route(eightTokens)
		picked = append(picked, set["x-prefill-instance-id"]+set["x-worker-instance-id"])
		p.cancel()
	}
	require.Equal(t, []string{"13", "24", "13", "24"}, picked)
	rec := r.srv.cfg.Journal.Recent(nil, 5)[4]
	require.Equal(t, "direct", rec.Prefill.Mode)
	require.Equal(t, "named", rec.Decode.Reason)
	require.Equal(t, "the request named it; it holds by estimate 2 of the prompt's 2 blocks", rec.Prefill.Why(rec.PromptBlocks))
	r.forgetLegs()
	r.requireIdle()
}

// A request may name only one of the two workers: the plugin picks the other.
func TestWhatIsNotNamedIsPicked(t *testing.T) {
	t.Parallel()
	r := newReplica(t, "a", func(c *Config) { c.StartTimeout = time.Minute })
	for range 4 {
		p := r.through(routingKey, "prerouted")
		set, _ := routed(t, p.ask(`{"model":"m","prompt":[1,2],"nvext":{"prefill_worker_id":2}}`))
		require.Equal(t, "2", set["x-prefill-instance-id"])
		p.cancel()
		p = r.through(routingKey, "prerouted")
		set, _ = routed(t, p.ask(`{"model":"m","prompt":[1,2]}`, "x-worker-instance-id", "3"))
		require.Equal(t, "3", set["x-worker-instance-id"])
		p.cancel()
	}
	p := r.through(routingKey, "prerouted")
	routed(t, p.ask(eightTokens))
	p.cancel()
	rec := r.srv.cfg.Journal.Recent(nil, 2)
	require.Equal(t, "kv", rec[0].Decode.Mode)
	require.Equal(t, "pre-routed", rec[1].Decode.Mode)
	require.Equal(t, "kv", rec[1].Prefill.Mode)
	r.forgetLegs()
	r.requireIdle()
}

// Names have no effect through an ordinary filter, nor in a body if only names in headers are
// obeyed.
func TestWhoIsNotBelievedChoosesNothing(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.StartTimeout = time.Minute })
	for _, field := range []string{"prefill_worker_id", "decode_worker_id", "backend_instance_id", "dp_rank", "prefill_dp_rank", `d\u0070_rank`} {
		for _, filter := range [][]string{nil, {routingRepickKey, "true"}, {routingKey, "prerouted", routingFieldsKey, "refuse"}, direct(routingFieldsKey, "refuse")} {
			p := r.through(filter...)
			status, code, param := codeOf(t, p.ask(`{"model":"m","prompt":[1,2],"nvext":{"x":1,"`+field+`":1}}`, "x-worker-instance-id", "3", "x-prefill-instance-id", "1"))
			require.Equal(t, 400, status)
			require.Equal(t, "forbidden_field", code)
			require.Contains(t, param, "nvext.")
			p.cancel()
		}
	}
	p := r.open(filterMain)
	set, removed := routed(t, p.ask(eightTokens, "x-worker-instance-id", "99", "x-dynamo-prefill-instance-id", "nonsense", prefill.HeaderDestination, "192.0.2.1:80"))
	require.NotEqual(t, "99", set["x-worker-instance-id"])
	require.Contains(t, set[prefill.HeaderDestination], "127.0.0.1:")
	require.Equal(t, []string{"x-dynamo-prefill-instance-id"}, removed)
	p.cancel()
	r.forgetLegs()
	r.requireIdle()
}

// In direct mode a fresh attempt would get the same worker again.
func TestAFailureOfANamedWorkerIsRepeatedOnlyIfThePickerIsAskedAgain(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.StartTimeout = time.Minute })
	fail := func(prefillFails bool, filter []string, headers ...string) (status string, retry bool) {
		p := r.through(filter...)
		defer p.cancel()
		set, _ := routed(t, p.ask(eightTokens, headers...))
		if prefillFails {
			leg := r.open(filterPrefill)
			leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
			leg.recv()
			leg.cancel()
		} else {
			require.NoError(t, p.s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
				ResponseHeaders: &extprocv3.HttpHeaders{Headers: wiretest.HeaderMap(":status", "503", prefill.HeaderLocalReply, "UF")},
			}}))
		}
		m := p.recv()
		_, code, _ := codeOf(t, m)
		return code, setHeaders(m.GetImmediateResponse().GetHeaders())[prefill.HeaderRetry] != ""
	}
	pair := []string{"x-worker-instance-id", "3", "x-prefill-instance-id", "1"}
	for _, tt := range []struct {
		prefillFails bool
		filter       []string
		headers      []string
		retry        bool
	}{
		{true, direct(), pair, false},
		{false, direct(), pair, false},
		{true, direct(routingRepickKey, "true"), pair, true},
		{false, direct(routingRepickKey, "true"), pair, true},
		{true, direct(routingRepickKey, "false"), pair, false},
		{true, []string{routingKey, "prerouted"}, pair[:2], true},
		{false, []string{routingKey, "prerouted"}, pair[:2], false},
		{true, []string{routingKey, "prerouted"}, pair[2:], false},
		{false, []string{routingKey, "prerouted"}, pair[2:], true},
		{true, []string{routingKey, "prerouted"}, nil, true},
	} {
		code, retry := fail(tt.prefillFails, tt.filter, tt.headers...)
		require.Equal(t, map[bool]string{true: "prefill_failed", false: "decode_unreachable"}[tt.prefillFails], code)
		require.Equal(t, tt.retry, retry, "%v %v", tt.filter, tt.headers)
		r.srv.cfg.Health.Update(nil, time.Now()) // health forgets which worker has failed
		r.srv.cfg.Health.Update(r.srv.cfg.Board.Load().Snapshot, time.Now())
	}
	r.forgetLegs()
	r.requireIdle()
}

// If a picker is asked again on each attempt and has named a worker that cannot take the
// request, it may name another, as long as attempts are left.
func TestAPickerThatIsAskedAgainMayNameAnother(t *testing.T) {
	ws := routetest.Workers()
	ws[2].Draining, ws[3].Fronted = true, true
	other := *ws[2]
	other.ID, other.Draining = 5, false
	other.Endpoint, _ = worker.ParseEndpoint("127.0.0.1:40004")
	r := newReplicaOf(t, "a", fixed(append(ws, &other)), func(c *Config) { c.StartTimeout = time.Minute })
	gone := &worker.Worker{ID: 9, Role: worker.Decode, Engine: worker.SGLang, Models: []string{"m"}, DPSize: 1, BlockSize: 4}
	gone.Endpoint, _ = worker.ParseEndpoint("127.0.0.1:40009")
	old, err := worker.NewSnapshot(1, []*worker.Worker{gone})
	require.NoError(t, err)
	r.srv.OnChange(old, discovery.Change{Left: []worker.ID{9}})
	for _, row := range []struct {
		decode  []string
		code    string
		attempt string
		filter  []string
		retry   bool
	}{
		{[]string{"x-worker-instance-id", "3"}, "worker_draining", "1", direct(routingRepickKey, "true"), true},
		{[]string{"x-worker-instance-id", "3"}, "worker_draining", "2", direct(routingRepickKey, "true"), true},
		{[]string{"x-worker-instance-id", "3"}, "worker_draining", "3", direct(routingRepickKey, "true"), false},
		{[]string{"x-worker-instance-id", "3"}, "worker_draining", "1", direct(), false},
		{[]string{"x-worker-instance-id", "3"}, "worker_draining", "1", direct(routingRepickKey, "false"), false},
		{[]string{"x-worker-instance-id", "4"}, "worker_not_usable", "1", direct(routingRepickKey, "true"), true},
		{[]string{"x-worker-instance-id", "9"}, "worker_gone", "1", direct(routingRepickKey, "true"), true},
		{[]string{"x-gateway-destination-endpoint", "127.0.0.1:40009"}, "worker_gone", "1", direct(routingRepickKey, "true"), true},
		{[]string{"x-gateway-destination-endpoint", "127.0.0.1:40009"}, "worker_gone", "1", direct(), false},
		{[]string{"x-worker-instance-id", "8"}, "worker_unknown", "1", direct(routingRepickKey, "true"), false},
		{[]string{"x-worker-instance-id", "1"}, "worker_wrong_role", "1", direct(routingRepickKey, "true"), true},
		{[]string{"x-worker-instance-id", "1"}, "worker_wrong_role", "1", direct(), false},
	} {
		p := r.through(row.filter...)
		m := p.ask(eightTokens, append(row.decode, "x-prefill-instance-id", "1", "x-envoy-attempt-count", row.attempt)...)
		p.cancel()
		_, code, _ := codeOf(t, m)
		require.Equal(t, row.code, code)
		require.Equal(t, row.retry, setHeaders(m.GetImmediateResponse().GetHeaders())[prefill.HeaderRetry] != "", "%+v", row)
	}
	r.requireIdle()
}

// The worker is named by its address in a header and by its id in the body.
func TestTheRankOfTheSameWorkerIsReadThoughItIsNamedTwice(t *testing.T) {
	ws := routetest.Workers()
	for _, w := range ws {
		w.DPSize = 4
	}
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.StartTimeout = time.Minute })
	p := r.through(routingKey, "prerouted")
	set, _ := routed(t, p.ask(`{"model":"m","prompt":[1,2],"nvext":{"decode_worker_id":4,"dp_rank":3}}`, "x-gateway-destination-endpoint", "127.0.0.1:40003"))
	p.cancel()
	require.Equal(t, "4/3", set["x-worker-instance-id"]+"/"+set["x-dp-rank"])
	r.forgetLegs()
	r.requireIdle()
}

// A named worker is taken although it is set aside or over a limit, since whoever names it
// may know more than the plugin. A draining one is refused.
func TestANamedWorkerIsTakenThoughItIsAsideOrBusy(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) {
		c.StartTimeout, c.MaxQueuedISLTokens, c.Prefill.PrefillTokensThreshold = time.Minute, 1, 1
	})
	held := r.queue(6, 6)
	for range 2 {
		r.srv.cfg.Health.Report(worker.Rank{ID: 1}, health.Report{Outcome: health.Overdue}, time.Now())
	}
	r.srv.cfg.Health.Report(worker.Rank{ID: 3}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.False(t, r.srv.cfg.Health.Allows(worker.Rank{ID: 1}))
	p := r.through(direct()...)
	set, _ := routed(t, p.ask(eightTokens, "x-worker-instance-id", "3", "x-prefill-instance-id", "1"))
	require.Equal(t, "1", set["x-prefill-instance-id"])
	require.Equal(t, "3", set["x-worker-instance-id"])
	p.cancel()
	for _, h := range held {
		h.Release(time.Now())
	}
	r.forgetLegs()
	r.requireIdle()
}

func TestARankOfANamedWorkerIsTakenOrPicked(t *testing.T) {
	t.Parallel()
	ws := routetest.Workers()
	for _, w := range ws {
		w.DPSize = 4
	}
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.StartTimeout, c.Prefill.Mode = time.Minute, picker.RoundRobin })
	var streams []*proxy
	ask := func(headers ...string) (set map[string]string) {
		p := r.through(routingKey, "prerouted")
		streams = append(streams, p)
		set, _ = routed(t, p.ask(eightTokens, headers...))
		return set
	}
	set := ask("x-prefill-instance-id", "2", "x-prefill-dp-rank", "3", "x-worker-instance-id", "4", "x-data-parallel-rank", "1")
	require.Equal(t, []string{"2", "3", "4", "1"}, []string{set["x-prefill-instance-id"], set["x-prefill-dp-rank"], set["x-worker-instance-id"], set["x-dp-rank"]})
	require.Equal(t, "1", set["x-data-parallel-rank"])
	seen := map[string]bool{"3": true}
	for range 3 { // each of the other ranks is less busy than those before
		set = ask("x-prefill-instance-id", "2", "x-prefill-dp-rank", "4294967295")
		require.Equal(t, "2", set["x-prefill-instance-id"])
		require.False(t, seen[set["x-prefill-dp-rank"]])
		seen[set["x-prefill-dp-rank"]] = true
	}
	set = ask()
	require.Equal(t, "1/0", set["x-prefill-instance-id"]+"/"+set["x-prefill-dp-rank"], "the turn has not moved")
	for _, p := range streams {
		p.cancel()
	}
	r.forgetLegs()
	r.requireIdle()
}

// A request that only asks who would serve it is answered if the request would be served,
// and also while prefill becomes ready.
func TestAQuestionIsAnsweredAndLeavesNoTrace(t *testing.T) {
	const ids = `"nvext":{"worker_id":{`
	question := func(more string) string {
		return `{"model":"m","prompt":[1,2,3,4,5,6,7,8],"stream":true,"nvext":{"annotations":["query_instance_id:"]` + more + `}}`
	}
	pending := routetest.Workers()
	for _, w := range pending[:2] {
		w.Bootstrap = worker.Bootstrap{}
	}
	alone := routetest.Workers()[2:]
	for _, w := range alone {
		w.AcceptsAggregated = true
	}
	able := []string{routingKey, "prerouted"}
	for _, tt := range []struct {
		name    string
		workers []*worker.Worker
		filter  []string
		body    string
		want    string // of the answer; or the code of the error
		status  int
	}{
		{"a stranger's", routetest.Workers(), nil, question(""), "forbidden_field", 400},
		{"in a stranger's body", routetest.Workers(), []string{routingKey, "prerouted", routingFieldsKey, "refuse"}, question(""), "forbidden_field", 400},
		{"of a gateway's client", routetest.Workers(), []string{protocolKey, "gateway"}, question(""), "forbidden_field", 400},
		{"a pair", routetest.Workers(), able, question(""), ids + `"prefill_worker_id":1,"prefill_dp_rank":0,"decode_worker_id":3,"decode_dp_rank":0}}`, 200},
		{"one worker", alone, able, question(""), ids + `"decode_worker_id":3,"decode_dp_rank":0}}`, 200},
		{"prefill becomes ready", pending, able, question(""), ids + `"decode_worker_id":3,"decode_dp_rank":0}}`, 200},
		{"a named one", routetest.Workers(), able, question(`,"decode_worker_id":4`), ids + `"prefill_worker_id":1,"prefill_dp_rank":0,"decode_worker_id":4,"decode_dp_rank":0}}`, 200},
		{"a named one while prefill becomes ready", pending, able, question(`,"decode_worker_id":4`), ids + `"decode_worker_id":4,"decode_dp_rank":0}}`, 200},
		{"one that may not be named", routetest.Workers(), nil, question(`,"decode_worker_id":4`), "forbidden_field", 400},
		{"an unknown one", routetest.Workers(), able, question(`,"decode_worker_id":9`), "worker_unknown", 404},
		{"nobody to serve it", routetest.Workers()[2:], able, question(""), "no_aggregated_worker", 503},
		{"another model", routetest.Workers(), able, `{"model":"x","prompt":"p","nvext":{"annotations":["query_instance_id:"]}}`, "model_not_found", 404},
	} {
		r := newReplicaOf(t, "a", fixed(tt.workers), func(c *Config) {
			c.Prefill.Mode, c.Decode.Mode, c.Aggregated.Mode, c.DebugHeader = picker.RoundRobin, picker.RoundRobin, picker.RoundRobin, true
		})
		for range 2 { // the cursor does not move
			p := r.through(tt.filter...)
			im := p.ask(tt.body, prefill.HeaderDebug, "1").GetImmediateResponse()
			require.EqualValues(t, tt.status, im.GetStatus().GetCode(), "%s: %s", tt.name, im.GetBody())
			require.Contains(t, string(im.GetBody()), tt.want, tt.name)
			require.True(t, json.Valid(im.GetBody()))
			if tt.status == 200 {
				require.Contains(t, string(im.GetBody()), `"object":"text_completion"`)
				require.Contains(t, string(im.GetBody()), `"choices":[]`)
				set := setHeaders(im.GetHeaders())
				require.Equal(t, "application/json", set["content-type"])
				require.Contains(t, set[prefill.HeaderDecision], " reason=")
				require.Equal(t, decision.Answered, r.srv.cfg.Journal.Recent(nil, 1)[0].Outcome, tt.name)
			}
			require.Zero(t, r.book.Totals().Held, tt.name)
			for _, w := range tt.workers {
				st, _ := r.srv.cfg.Index.Stats(worker.Rank{ID: w.ID})
				require.Zero(t, st.Routed, "nothing is remembered")
			}
			p.cancel()
		}
		r.requireIdle()
	}
}

func TestTheAnswerToAQuestionIsOfItsOwnKind(t *testing.T) {
	r := newReplica(t, "a", nil)
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"m","messages":[],"nvext":{"annotations":["query_instance_id:"]}}`,
		"/generate":            `{"text":"hi","nvext":{"annotations":["query_instance_id:"]}}`,
	} {
		p := r.through(routingKey, "prerouted")
		im := p.ask(body, ":path", path).GetImmediateResponse()
		p.cancel()
		var got struct {
			Object string
			Text   *string
			NVExt  struct {
				WorkerID map[string]json.Number `json:"worker_id"`
			}
		}
		require.NoError(t, json.Unmarshal(im.GetBody(), &got), string(im.GetBody()))
		require.Len(t, got.NVExt.WorkerID, 4)
		require.Equal(t, path == "/generate", got.Text != nil)
		require.Equal(t, path != "/generate", got.Object == "chat.completion")
	}
	r.requireIdle()
}

// A decode worker that the request names stays, whatever happens while prefill runs. In a
// pool of two engines the picked worker has the engine of the named one.
func TestAPickedWorkerFitsTheNamedOne(t *testing.T) {
	t.Parallel()
	ws := routetest.Workers()
	ws[1].Engine, ws[3].Engine = worker.TensorRTLLM, worker.TensorRTLLM
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) { c.StartTimeout = time.Minute })
	for range 5 {
		p := r.through(routingKey, "prerouted")
		set, _ := routed(t, p.ask(eightTokens, "x-worker-instance-id", "3"))
		require.Equal(t, "1", set["x-prefill-instance-id"])
		p.cancel()
	}
	p := r.through(routingKey, "prerouted")
	_, code, param := codeOf(t, p.ask(eightTokens, "x-worker-instance-id", "4", "x-prefill-instance-id", "1"))
	require.Equal(t, "workers_do_not_fit", code)
	require.Equal(t, "x-worker-instance-id", param)
	p.cancel()
	r.forgetLegs()
	r.requireIdle()
}

// TestAFilterWithOneLegObeysAPicker as one with two does, and makes one attempt: the data plane
// makes no fresh ones.
func TestAFilterWithOneLegObeysAPicker(t *testing.T) {
	r := newReplicaOf(t, "a", aggregated(routetest.Workers()), enabled)
	p := r.through(direct(protocolKey, protocolOneLeg, routingRepickKey, "true")...)
	h := setHeaders(p.get(nil, prefill.HeaderDestination, "127.0.0.1:40001"))
	require.Equal(t, "127.0.0.1:40001", h[prefill.HeaderDestination])
	p.cancel()
	p = r.through(direct(protocolKey, protocolOneLeg, routingRepickKey, "true")...)
	m := p.ask(eightTokens, "x-worker-instance-id", "77")
	_, code, _ := codeOf(t, m)
	require.Equal(t, "worker_unknown", code)
	require.Empty(t, setHeaders(m.GetImmediateResponse().GetHeaders())[prefill.HeaderRetry])
	p.cancel()
	r.requireIdle()
}

// TestAPlainFilterSaysNothingOfItself: a filter with any metadata of Baton's is not plain, and
// must have x-baton-filter.
func TestAPlainFilterSaysNothingOfItself(t *testing.T) {
	r := newReplica(t, "a", func(c *Config) { c.Gateway.Enabled = true })
	for key, value := range map[string]string{
		routingKey: "direct", routingRepickKey: "true", routingFieldsKey: "refuse", protocolKey: "gateway",
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), key, value)
		s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
		require.NoError(t, err)
		_, err = s.Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err), key)
		require.ErrorContains(t, err, filterKey)
	}
}
