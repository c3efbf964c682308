package extproc

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func boardOf(t *testing.T, sets ...[]*worker.Worker) *activation.Board {
	t.Helper()
	b := activation.New()
	for i, ws := range sets {
		snap, err := worker.NewSnapshot(uint64(i+1), ws)
		require.NoError(t, err)
		b.Follow(snap, discovery.Change{}, time.Now())
	}
	return b
}

func TestAModelWhoseWorkersAreAllAwayIsNotUnknown(t *testing.T) {
	ask := func(board *activation.Board, path openai.Path, body string) string {
		srv := &Server{cfg: Config{Board: board}}
		var r openai.Request
		require.NoError(t, openai.Scan(path, []byte(body), &r))
		_, f := srv.question(&r, []byte(body))
		require.NotNil(t, f)
		return f.code
	}
	workers := testWorkers(t)
	body := `{"model":"` + workers[0].Models[0] + `","prompt":"hi"}`
	require.Equal(t, "not_ready", ask(boardOf(t), openai.Completions, body))
	require.Equal(t, "model_not_found", ask(boardOf(t, nil), openai.Completions, body))
	gone := boardOf(t, workers, nil)
	require.Equal(t, "no_worker", ask(gone, openai.Completions, body))
	require.Equal(t, "no_worker", ask(gone, openai.Generate, `{"text":"hi"}`), "which model is clear: there was one")
	require.Equal(t, "model_not_found", ask(gone, openai.Completions, `{"model":"other","prompt":"hi"}`))
	another := testWorkers(t)
	for _, w := range another {
		w.Models = []string{"other"}
		w.ID += 10
	}
	require.Equal(t, "missing_field", ask(boardOf(t, workers, another), openai.Generate, `{"text":"hi"}`), "one is there, one only away: which is not clear")
}

// A model that enforced disaggregation cannot serve is not offered
// (docs/behaviour.md#can-serve).
func TestModelsAreOfferedWhenTheyCanBeServed(t *testing.T) {
	offered := func(enforced bool, workers []*worker.Worker) int {
		srv := &Server{cfg: Config{Board: boardOf(t, workers), EnforceDisagg: enforced}}
		im := srv.models("", true)
		require.Equal(t, 200, im.Status)
		var list struct{ Data []struct{ ID string } }
		require.NoError(t, json.Unmarshal(im.Body, &list))
		return len(list.Data)
	}
	all := testWorkers(t)
	require.Equal(t, 1, offered(true, all))
	require.Equal(t, 0, offered(true, all[2:]), "decode alone")
	require.Equal(t, 0, offered(true, testWorkers(t)[:2]), "prefill alone: no side is active")
	require.Equal(t, 1, offered(false, testWorkers(t)[2:]))
	foreign := testWorkers(t)
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

// GET /v1/models and /v1/models/ID, as clients' libraries read them.
func TestWhatIsToldOfAModel(t *testing.T) {
	ws := mixed(t, worker.VLLM, worker.VLLM, nil)
	ws[0].Models = []string{"m", "org/served"}
	ws[2].Models = []string{"m", "org/served"}
	ws[0].MaxModelLen, ws[2].MaxModelLen = 8192, 4096
	ws[1].Models, ws[3].Models, ws[3].Engine = []string{"odd"}, []string{"odd"}, worker.SGLang
	srv := &Server{cfg: Config{Board: boardOf(t, ws)}, legClient: new(legClient)}
	told := func(path string) (status int, got map[string]any) {
		only, ok := modelsPath(path)
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
	status, got = told("/v1/models/no\"body\n")
	require.Equal(t, 404, status)
	require.Equal(t, `The model "no\"body\n" does not exist here. Known: "m", "odd", "org/served".`, got["error"].(map[string]any)["message"])
	for _, path := range []string{"/v1/model", "/v1/modelsx", "/models", "/v1/completions"} {
		_, ok := modelsPath(path)
		require.False(t, ok, path)
	}
}

// Nothing that a client or a fleet has chosen makes an error long.
func TestTheErrorOfAnUnknownModelIsBounded(t *testing.T) {
	ws := testWorkers(t)
	for i := range 500 {
		ws[0].Models = append(ws[0].Models, strings.Repeat("ä", 120)+strconv.Itoa(i))
	}
	srv := &Server{cfg: Config{Board: boardOf(t, ws)}}
	f := srv.unknownModel(strings.Repeat("\x00\xff", 1<<20))
	require.Less(t, len(f.message), 10_000)
	require.Contains(t, f.message, " and 481 more.")
	require.True(t, utf8.ValidString(f.message))
	require.Equal(t, `The model "x" does not exist here. No model has a worker.`, (&Server{cfg: Config{Board: boardOf(t, nil)}}).unknownModel("x").message)
}

// What a model is refused for is told to clients with a row of the failure table, that
// they may come back but where only a listener is missing.
func TestEachReasonHasItsRowOfTheFailureTable(t *testing.T) {
	rows := map[string]activation.Reason{}
	for reason := activation.NoWorker; reason <= activation.NoAggregated; reason++ {
		if reason == activation.Foreign || reason == activation.NoListener {
			continue // a request of another namespace finds no model; splittable judges the listener
		}
		f := refusal(activation.Outlook{Reason: reason})
		require.NotNil(t, f, reason)
		require.Equal(t, 503, f.status)
		require.Positive(t, f.retryAfter)
		require.NotContains(t, rows, f.code)
		rows[f.code] = reason
	}
	require.Equal(t, activation.PrefillGone, rows["prefill_gone"])
	require.Equal(t, activation.NoCommon, rows["no_common_handoff"])
	require.Nil(t, refusal(activation.Outlook{Reason: activation.NoListener}))
	require.Nil(t, refusal(activation.Outlook{Way: activation.Alone, Reason: activation.PrefillGone}))
	require.Equal(t, &failNoCommon, refusal(activation.Outlook{Way: activation.Alone, Reason: activation.NoCommon, Fallback: true}), "what one worker serves in place of")
}

// TestARequestFollowsItsModelIntoANewerWorld: all workers are replaced while it
// is being decided (docs/behaviour.md#decode-returns).
func TestARequestFollowsItsModelIntoANewerWorld(t *testing.T) {
	r := newReplica(t, "a", nil)
	var scan openai.Request
	body := []byte(`{"model":"m","prompt":"hi"}`)
	require.NoError(t, openai.Scan(openai.Completions, body, &scan))
	q, f := r.srv.question(&scan, body)
	require.Nil(t, f)
	require.Nil(t, r.srv.newer(q), "there is none")
	fresh := testWorkers(t)
	for _, w := range fresh {
		w.ID += 10
	}
	snap, err := worker.NewSnapshot(q.snap.Revision()+1, fresh)
	require.NoError(t, err)
	r.book.Update(snap)
	var v verdict
	reservations := [2]load.Reservation{}
	r.srv.judge(&v, q, tokens.Prompt{}, newScratch(), &reservations[0], &reservations[1])
	require.NotNil(t, v.fail, "the old workers cannot be booked any more")
	r.srv.cfg.Board.Follow(snap, discovery.Change{}, time.Now())
	q.admitted, q.before.ranks = true, []worker.Rank{{ID: 3}}
	n := r.srv.newer(q)
	require.NotNil(t, n)
	require.True(t, n.admitted)
	require.Equal(t, q.before.ranks, n.before.ranks)
	v = verdict{}
	r.srv.judge(&v, n, tokens.Prompt{}, newScratch(), &reservations[0], &reservations[1])
	require.Nil(t, v.fail)
	require.Greater(t, v.decode.decision.Rank.ID, worker.ID(10))
	reservations[0].Release(time.Now())
	reservations[1].Release(time.Now())
}

// TestNoRequestIsRefusedWhileAllWorkersAreReplacedAtOnce, again and again: what
// a store that has lost its data does when everybody registers anew.
func TestNoRequestIsRefusedWhileAllWorkersAreReplacedAtOnce(t *testing.T) {
	stop := make(chan struct{})
	r := newReplicaOf(t, "a", swapping{t, stop}, nil)
	body := []byte(`{"model":"m","prompt":"hi"}`)
	var scan openai.Request
	require.NoError(t, openai.Scan(openai.Completions, body, &scan))
	sc := newScratch()
	worlds := map[uint64]bool{}
	for range 20_000 {
		q, f := r.srv.question(&scan, body)
		require.Nil(t, f)
		var v verdict
		var prefill, decode load.Reservation
		q = r.srv.judgeInTime(&v, q, tokens.Prompt{}, sc, &prefill, &decode)
		require.Nil(t, v.fail)
		worlds[q.snap.Revision()] = true
		prefill.ReleaseIfHeld(time.Now())
		decode.ReleaseIfHeld(time.Now())
	}
	close(stop)
	require.Greater(t, len(worlds), 10, "the workers were not replaced")
}

// TestARequestIsJudgedInTheWorldOfNow: workers came while its tokens were
// counted; those it knew are still there.
func TestARequestIsJudgedInTheWorldOfNow(t *testing.T) {
	r := newReplica(t, "a", nil)
	body := []byte(eightTokens)
	var scan openai.Request
	require.NoError(t, openai.Scan(openai.Completions, body, &scan))
	q, f := r.srv.question(&scan, body)
	require.Nil(t, f)
	ws := testWorkers(t)
	for _, w := range testWorkers(t) {
		w.ID += 10
		w.Endpoint, _ = worker.ParseEndpoint("127.0.0.2:" + w.ID.String())
		ws = append(ws, w)
	}
	snap, err := worker.NewSnapshot(q.snap.Revision()+1, ws)
	require.NoError(t, err)
	r.book.Update(snap)
	r.srv.cfg.Board.Follow(snap, discovery.Change{}, time.Now())
	var v verdict
	var prefill, decode load.Reservation
	now := r.srv.judgeInTime(&v, q, tokens.Prompt{}, newScratch(), &prefill, &decode)
	require.Nil(t, v.fail)
	require.Equal(t, snap.Revision(), now.snap.Revision())
	require.Equal(t, 4, v.prefill.decision.Candidates)
	prefill.Release(time.Now())
	decode.Release(time.Now())
}

// A prefill that may take for ever by its settings is bounded by its time-out,
// never overdue at once.
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
