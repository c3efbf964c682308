package extproc

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A model that cannot be served, because disaggregation is enforced, is not listed
// (docs/behaviour.md#can-serve).
func TestModelsAreOfferedWhenTheyCanBeServed(t *testing.T) {
	offered := func(enforced bool, workers []*worker.Worker) int {
		srv := &Server{cfg: Config{Board: routetest.Board(time.Now(), workers), EnforceDisagg: enforced, Health: healthOf(t)}}
		im := srv.models("", true)
		require.Equal(t, 200, im.Status)
		var list struct{ Data []struct{ ID string } }
		require.NoError(t, json.Unmarshal(im.Body, &list))
		return len(list.Data)
	}
	all := routetest.Workers()
	require.Equal(t, 1, offered(true, all))
	require.Equal(t, 0, offered(true, all[2:]), "decode alone")
	require.Equal(t, 0, offered(true, routetest.Workers()[:2]), "prefill alone: no side is active")
	require.Equal(t, 1, offered(false, routetest.Workers()[2:]))
	foreign := routetest.Workers()
	for _, w := range foreign {
		w.Namespace = "foreign"
	}
	require.Equal(t, 0, offered(false, foreign))
	blind := &Server{cfg: Config{Board: activation.New()}}
	for _, retry := range []bool{true, false} {
		im := blind.models("", retry)
		require.Equal(t, 503, im.Status, "before the first set")
		require.Equal(t, retry, slices.Contains(im.Headers, wire.Header{Name: prefill.HeaderRetry, Value: "1"}), "another replica may know more")
	}
}

// healthOf returns a tracker that knows no worker.
func healthOf(t *testing.T) *health.Tracker {
	t.Helper()
	h := health.New(health.Config{})
	return h
}

// askedFor returns the model that a GET of the path asks for. It returns false if the path is
// not about models.
func askedFor(path string) (model string, ok bool) {
	get := &wire.Headers{Method: http.MethodGet, Path: path}
	for _, e := range mainOf(testRules(), leg.Way{}).Step(testStart, &leg.Event{Kind: leg.EventRequestHeaders, Headers: get, EndOfStream: true}) {
		if e.Op == leg.OpModels {
			return e.Model, true
		}
	}
	return "", false
}

// A plugin that takes us for a worker has to see that we are none, also before we know ours.
func TestEachAnswerOfOurOwnSaysWhoseItIs(t *testing.T) {
	ready := true
	srv := &Server{cfg: Config{Board: routetest.Board(time.Now(), mixed(t, worker.VLLM, worker.VLLM, nil)), Health: healthOf(t), Ready: func() (bool, string) { return ready, "" }}, legClient: new(legClient)}
	unknowing := &Server{cfg: Config{Board: activation.New()}}
	for _, row := range []struct {
		srv    *Server
		effect leg.Effect
		ready  bool
		status int
	}{
		{srv, leg.Effect{Op: leg.OpModels}, true, 200},
		{srv, leg.Effect{Op: leg.OpModels, Model: "m"}, true, 200},
		{srv, leg.Effect{Op: leg.OpModels, Model: "nobody"}, true, 404},
		{unknowing, leg.Effect{Op: leg.OpModels, Retry: true}, true, 503},
		{srv, leg.Effect{Op: leg.OpHealth}, true, 200},
		{srv, leg.Effect{Op: leg.OpHealth}, false, 503},
		{unknowing, leg.Effect{Op: leg.OpHealth}, true, 503},
	} {
		ready = row.ready
		im := ownAnswer(row.srv, &row.effect)
		require.Equal(t, row.status, im.Status)
		require.Contains(t, im.Headers, wire.Header{Name: "x-answered-by", Value: "baton"}, row.status)
	}
}

// GET /v1/models and /v1/models/ID, as clients' libraries read them.
func TestWhatIsToldOfAModel(t *testing.T) {
	ws := mixed(t, worker.VLLM, worker.VLLM, nil)
	ws[0].Models = []string{"m", "org/served"}
	ws[2].Models = []string{"m", "org/served"}
	ws[0].MaxModelLen, ws[2].MaxModelLen = 8192, 4096
	ws[1].Models, ws[3].Models, ws[3].Engine = []string{"odd"}, []string{"odd"}, worker.SGLang
	tracker := healthOf(t)
	srv := &Server{cfg: Config{Board: routetest.Board(time.Now(), ws), Health: tracker}, legClient: new(legClient)}
	told := func(path string) (status int, got map[string]any) {
		only, ok := askedFor(path)
		require.True(t, ok, path)
		im := srv.models(only, false)
		require.NoError(t, json.Unmarshal(im.Body, &got))
		return im.Status, got
	}
	status, got := told("/v1/models/org/served?x=y")
	require.Equal(t, 200, status)
	require.Equal(t, "org/served", got["id"])
	require.Equal(t, "model", got["object"])
	require.InDelta(t, time.Now().Unix(), got["created"], 100)
	require.NotContains(t, got, "status")
	require.InDelta(t, 4096, got["max_model_len"], 0, "what each of its workers takes")
	_, got = told("/v1/models/org%2Fserved")
	require.Equal(t, "org/served", got["id"])
	_, got = told("/v1/models/odd")
	require.NotContains(t, got, "max_model_len")
	require.Equal(t, "cannot be served: no common hand-off: its prefill workers are vllm, its decode workers sglang", got["status"])
	_, got = told("/v1/models/")
	require.Len(t, got["data"], 3)
	tracker.Update(srv.cfg.Board.Load().Snapshot, time.Now()) // ws[2], a decode worker, is the only one of org/served
	tracker.Report(worker.Rank{ID: ws[2].ID}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	status, got = told("/v1/models/org%2Fserved")
	require.Equal(t, 200, status, "who is set aside comes back: a client must not conclude that the model does not exist")
	require.Equal(t, "cannot be served: all its decode workers (1) are set aside", got["status"])
	status, got = told("/v1/models/no\"body\n")
	require.Equal(t, 404, status)
	require.Equal(t, `The model "no\"body\n" does not exist here. Known: "m", "odd", "org/served".`, got["error"].(map[string]any)["message"])
	for _, path := range []string{"/v1/model", "/v1/modelsx", "/models", "/v1/completions"} {
		_, ok := askedFor(path)
		require.False(t, ok, path)
	}
}

// However long the names of models are, and however many there are, the error is short.
func TestTheErrorOfAnUnknownModelIsBounded(t *testing.T) {
	ws := routetest.Workers()
	for i := range 500 {
		ws[0].Models = append(ws[0].Models, strings.Repeat("ä", 120)+strconv.Itoa(i))
	}
	srv := &Server{cfg: Config{Board: routetest.Board(time.Now(), ws)}}
	f := srv.unknownModel(strings.Repeat("\x00\xff", 1<<20))
	require.Less(t, len(f.Message), 10_000)
	require.Contains(t, f.Message, " and 481 more.")
	require.True(t, utf8.ValidString(f.Message))
	require.Equal(t, `The model "x" does not exist here. No model has a worker.`, (&Server{cfg: Config{Board: routetest.Board(time.Now(), nil)}}).unknownModel("x").Message)
}

// Each reason why a model cannot be served has a row of the failure table. Clients are told
// to come back, except where waiting cannot mend it.
func TestEachReasonHasItsRowOfTheFailureTable(t *testing.T) {
	srv := new(Server)
	for _, reason := range []route.Reason{
		route.NotReady, route.NoWorker, route.Pending, route.NoPrefill, route.NoDecode, route.NoAggregated, route.NeedsAlone, route.NoCommon,
		route.PrefillGone, route.NoListener, route.NoHandoff, route.Saturated, route.NoTaint, route.Outside, route.Enforced, route.NamedLeft,
	} {
		f := srv.failureOf(&route.Refusal{Reason: reason})
		require.Equal(t, string(reason), f.Code)
		never := reason == route.NoListener || reason == route.NoCommon || reason == route.NeedsAlone
		again := !never && reason != route.NoHandoff
		require.Equal(t, never, f.Status == 501, reason)
		require.Equal(t, again, f.RetryAfter > 0, reason)
		require.Equal(t, reason == route.Saturated, f.Status == 429, reason)
		require.Equal(t, reason == route.NoHandoff, f.Status == 400, reason)
	}
}

// TestNoRequestIsRefusedWhileAllWorkersAreReplacedAtOnce: this happens again and again, as
// after a loss of data in the store, when all workers register anew.
func TestNoRequestIsRefusedWhileAllWorkersAreReplacedAtOnce(t *testing.T) {
	stop, decided := make(chan struct{}), make(chan struct{}, 1)
	r := newReplicaOf(t, "a", swapping{stop, decided}, nil)
	body := []byte(`{"model":"m","prompt":"hi"}`)
	var scan openai.Request
	require.NoError(t, openai.Scan(openai.Completions, body, &scan))
	sc := route.NewScratch()
	pairs := map[worker.ID]bool{}
	// As many more as it takes on a machine that gives the goroutine that replaces them little time.
	for i := 0; i < 20_000 || len(pairs) <= 10 && i < 5_000_000; i++ {
		q, f := r.srv.router.Ask(route.Request{Now: time.Now(), Scan: &scan, Body: body})
		require.Nil(t, f)
		d, f := r.srv.router.Decide(q, tokens.Prompt{}, sc, time.Now())
		require.Nil(t, f)
		pairs[d.Decode.Worker.ID/10] = true // the first digits of the id say in which set the worker was
		d.Prefill.Booking.ReleaseIfHeld(time.Now())
		d.Decode.Booking.ReleaseIfHeld(time.Now())
		select {
		case decided <- struct{}{}:
		default:
		}
	}
	close(stop)
	require.Greater(t, len(pairs), 10, "the workers were not replaced")
}

// TestARequestIsJudgedInTheWorldOfNow: workers came while the tokens of the request were
// counted; the earlier workers are still there.
func TestARequestIsJudgedInTheWorldOfNow(t *testing.T) {
	r := newReplica(t, "a", nil)
	body := []byte(eightTokens)
	var scan openai.Request
	require.NoError(t, openai.Scan(openai.Completions, body, &scan))
	world := r.srv.cfg.Board.Load()
	q, f := r.srv.router.Ask(route.Request{Now: time.Now(), Scan: &scan, Body: body})
	require.Nil(t, f)
	ws := routetest.Workers()
	for _, w := range routetest.Workers() {
		w.ID += 10
		w.Endpoint, _ = worker.ParseEndpoint("127.0.0.2:" + w.ID.String())
		ws = append(ws, w)
	}
	snap, err := worker.NewSnapshot(world.Revision()+1, ws)
	require.NoError(t, err)
	r.book.Update(snap)
	r.srv.cfg.Board.Follow(snap, discovery.Change{}, time.Now())
	d, f := r.srv.router.Decide(q, tokens.Prompt{}, route.NewScratch(), time.Now())
	require.Nil(t, f)
	require.Equal(t, 4, d.Prefill.Candidates, "of the new world")
	d.Prefill.Booking.Release(time.Now())
	d.Decode.Booking.Release(time.Now())
}

// With settings that allow a prefill to take for ever, it is bounded by its time-out, and not
// overdue at once.
func TestWhenAPrefillIsOverdueNeverOverflows(t *testing.T) {
	c := Config{PrefillTimeout: 5 * time.Minute, OverdueBase: 2 * time.Second, OverduePerToken: time.Millisecond}
	require.Equal(t, 2*time.Second, c.overdueAfter(0))
	require.Equal(t, 12*time.Second, c.overdueAfter(10_000))
	require.Equal(t, 5*time.Minute, c.overdueAfter(299_000))
	require.Equal(t, 5*time.Minute, c.overdueAfter(math.MaxInt64))
	c.OverduePerToken = 8760 * time.Hour
	require.Equal(t, 5*time.Minute, c.overdueAfter(1))
	require.Equal(t, 2*time.Second, c.overdueAfter(0))
	c.OverdueBase = math.MaxInt64
	require.Equal(t, 5*time.Minute, c.overdueAfter(0))
	c.OverduePerToken = time.Millisecond
	require.Equal(t, 5*time.Minute, c.overdueAfter(1))
	c.OverduePerToken, c.OverdueBase = 0, time.Second
	require.Equal(t, time.Second, c.overdueAfter(1000))
}
