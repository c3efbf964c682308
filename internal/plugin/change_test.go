package plugin

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func testWorker(t *testing.T, id worker.ID, role worker.Role, port string) *worker.Worker {
	t.Helper()
	e, err := worker.ParseEndpoint("127.0.0.1:" + port)
	require.NoError(t, err)
	return &worker.Worker{
		ID: id, Role: role, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
		Bootstrap: worker.Bootstrap{Host: "127.0.0.1", Port: 8998},
	}
}

// publisher is a prefill worker, 5, that publishes events where nobody answers.
func publisher(t *testing.T) *worker.Worker {
	t.Helper()
	w := testWorker(t, 5, worker.Prefill, "1001")
	w.KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: 1}
	return w
}

// told is a plugin that is told of sets by the test, and what it logs.
type told struct {
	*plugin
	t   *testing.T
	log syncbuf.Buffer
	old *worker.Snapshot
}

// problems are the texts of what discovery and the set of workers have wrong.
func (x *told) problems() (texts []string) {
	for _, p := range x.state().Problems {
		texts = append(texts, p.Text)
	}
	return texts
}

func newTold(t *testing.T, settings ...string) *told {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(settings, "")), 0o600))
	c, err := config.Read(file)
	require.NoError(t, err)
	c.Discovery.File = filepath.Join(t.TempDir(), "none.yaml")
	x := &told{t: t, old: &worker.Snapshot{}}
	x.plugin, err = newPlugin(c, &x.log)
	require.NoError(t, err)
	t.Cleanup(func() {
		x.grpc.Stop()
		x.tokens.Close()
		require.NoError(t, x.tele.Shutdown(context.Background()))
	})
	return x
}

// followEvents has the events of workers followed until the test ends.
func (x *told) followEvents() {
	x.t.Helper()
	ctx, cancel := context.WithCancel(x.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- x.events.Run(ctx) }()
	x.t.Cleanup(func() { cancel(); require.NoError(x.t, <-ended) })
}

func (x *told) set(c discovery.Change, ws ...*worker.Worker) {
	x.t.Helper()
	now, err := worker.NewSnapshot(x.old.Revision()+1, ws)
	require.NoError(x.t, err)
	x.onChange(x.old, now, c)
	x.old = now
}

// TestNothingIsKeptOfAWorkerThatHasLeft is docs/behaviour.md#leaves-nothing, part by part.
func TestNothingIsKeptOfAWorkerThatHasLeft(t *testing.T) {
	x := newTold(t)
	x.followEvents()
	publishes := publisher(t)
	silent := testWorker(t, 6, worker.Prefill, "1002")
	stays := testWorker(t, 1, worker.Decode, "1003")
	x.set(discovery.Change{Joined: []worker.ID{1, 5, 6}}, publishes, silent, stays)
	rank := func(id worker.ID) worker.Rank { return worker.Rank{ID: id} }
	attached := func(id worker.ID) bool { _, ok := x.index.Stats(rank(id)); return ok }
	require.Eventually(t, func() bool { return attached(5) }, 20*time.Second, time.Millisecond)
	require.NoError(t, x.index.Store(rank(5), kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: 1}}}))
	x.routes.Note(rank(6), []kvindex.LocalHash{1, 2}, kvindex.Estimated, time.Now())
	routed := func() int {
		st, _ := x.index.Stats(rank(6))
		return st.Routed
	}
	require.Equal(t, 2, routed())
	for _, id := range []worker.ID{1, 5, 6} {
		_, booked := x.book.Load(rank(id))
		require.True(t, booked)
	}

	x.set(discovery.Change{Left: []worker.ID{5, 6}}, stays)
	require.Eventually(t, func() bool { return !attached(5) }, 20*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return routed() == 0 }, 20*time.Second, time.Millisecond)
	for _, id := range []worker.ID{5, 6} {
		_, booked := x.book.Load(rank(id))
		require.False(t, booked)
		require.Nil(t, x.board.Load().Worker(id))
	}
	_, booked := x.book.Load(rank(1))
	require.True(t, booked)
}

// TestNothingIsKeptOfAWorkerThatHasLeftAndIsBackInOneChange: the view joins changes that come fast, such as
// those of an engine that was started anew under the same id.
func TestNothingIsKeptOfAWorkerThatHasLeftAndIsBackInOneChange(t *testing.T) {
	x := newTold(t)
	x.followEvents()
	publishes := publisher(t)
	stays := testWorker(t, 1, worker.Decode, "1003")
	x.set(discovery.Change{Joined: []worker.ID{1, 5}}, publishes, stays)
	rank := worker.Rank{ID: 5}
	blocks := func() int { st, _ := x.index.Stats(rank); return st.Blocks }
	require.Eventually(t, func() bool { _, ok := x.index.Stats(rank); return ok }, 20*time.Second, time.Millisecond)
	require.NoError(t, x.index.Store(rank, kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: 1}}}))
	require.Equal(t, 1, blocks())
	x.health.Report(rank, health.Report{Outcome: health.ServerError}, time.Now())

	again := *publishes
	x.set(discovery.Change{Left: []worker.ID{5}, Joined: []worker.ID{5}}, &again, stays)
	require.Eventually(t, func() bool { _, ok := x.index.Stats(rank); return ok && blocks() == 0 }, 20*time.Second, time.Millisecond)
	for _, h := range x.health.Status() {
		require.Zero(t, h.ConsecutiveErrors, h.Rank)
	}
}

// TestAWorkerThatIsBackAtOnceIsInTheIndex, although who follows its events may
// have seen nothing of its absence.
func TestAWorkerThatIsBackAtOnceIsInTheIndex(t *testing.T) {
	x := newTold(t)
	x.followEvents()
	w := publisher(t)
	stored := func() bool {
		return x.index.Store(worker.Rank{ID: 5}, kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: 1}}}) == nil
	}
	for range 20 {
		x.set(discovery.Change{Joined: []worker.ID{5}}, w)
		require.Eventually(t, stored, 20*time.Second, time.Millisecond)
		x.set(discovery.Change{Left: []worker.ID{5}})
	}
}

// TestAModelThatCannotBeServedIsSeen: in the log once, on the page and in the
// state for as long as it lasts, and again when it is over.
func TestAModelThatCannotBeServedIsSeen(t *testing.T) {
	x := newTold(t)
	prefill, decode := testWorker(t, 5, worker.Prefill, "1001"), testWorker(t, 1, worker.Decode, "1003")
	foreign := testWorker(t, 9, worker.Decode, "1009")
	foreign.Namespace = "foreign"
	x.set(discovery.Change{Joined: []worker.ID{1, 5, 9}}, prefill, decode, foreign)
	require.NotContains(t, x.log.String(), "cannot be served")
	x.set(discovery.Change{Left: []worker.ID{1}}, prefill, foreign)
	x.set(discovery.Change{}, prefill, foreign)
	require.Equal(t, 1, strings.Count(x.log.String(), `msg="model cannot be served" model=m reason="no decode worker takes new requests"`), x.log.String())
	require.Contains(t, x.log.String(), `left="1 (decode 127.0.0.1:1003)"`)
	x.set(discovery.Change{Left: []worker.ID{5}}, foreign)
	s := x.state()
	require.Len(t, s.Keys, 2, "the one whose workers have all left is still shown")
	require.Equal(t, "m", s.Keys[1].Model)
	require.Equal(t, "absent", s.Keys[1].Activation)
	require.Equal(t, "it has no worker", s.Keys[1].Reason)
	require.Contains(t, x.metrics(), `baton_keys{activation="absent",can_serve="false"} 1`)
	require.NotContains(t, x.metrics(), `activation="decode-waiting"`, "another namespace's models are not our trouble")
	require.Contains(t, x.metrics(), `baton_activation_transitions_total{cause="decode_joined"`)
	ready, why := x.isKeyReady(worker.Key{Model: "m"})
	require.False(t, ready)
	require.Equal(t, "it has no worker", why)
	x.set(discovery.Change{Joined: []worker.ID{1, 5}}, testWorker(t, 5, worker.Prefill, "1001"), testWorker(t, 1, worker.Decode, "1003"))
	require.Contains(t, x.log.String(), `msg="model is served again" model=m`)
	ready, _ = x.isKeyReady(worker.Key{Model: "m"})
	require.True(t, ready)

	at := time.Now()
	x.plugin.health.Report(worker.Rank{ID: 1}, health.Report{Outcome: health.ConnectFailed}, at)
	const aside = "all its decode workers (1) are set aside"
	m := x.state().Keys[0]
	require.False(t, m.CanServe)
	require.Equal(t, aside+": connect-failed", m.Reason)
	require.True(t, at.Equal(m.Since.Time))
	ready, why = x.isKeyReady(worker.Key{Model: "m"})
	require.False(t, ready)
	require.Equal(t, aside, why)
	require.Contains(t, x.metrics(), `baton_keys{activation="prefill-ready",can_serve="false"} 1`)
}

// A deactivation says what it means for requests: whether one worker may serve them.
func TestTheLogOfADeactivationSaysWhetherOneWorkerMayServe(t *testing.T) {
	for _, enforced := range []string{"true", "false"} {
		x := newTold(t, "enforce_disagg: "+enforced+"\n")
		decode := testWorker(t, 1, worker.Decode, "1003")
		x.set(discovery.Change{}, testWorker(t, 5, worker.Prefill, "1001"), decode)
		x.set(discovery.Change{Left: []worker.ID{5}}, decode)
		require.Regexp(t, `msg="prefill activation" .*to=deactivated .*deactivated=1 enforce_disagg=`+enforced, x.log.String())
	}
}

// A model whose prefill and decode workers cannot hand KV over to each other says so
// wherever somebody looks, and so does one that is never split.
func TestWhetherAndHowAModelIsServedIsSaidEverywhere(t *testing.T) {
	x := newTold(t, "models: {whole: {disaggregation: off}}\n")
	named := func(w *worker.Worker, model string, engine worker.Engine) *worker.Worker {
		w.Models, w.Engine, w.AcceptsAggregated = []string{model}, engine, model == "whole"
		return w
	}
	x.set(discovery.Change{},
		named(testWorker(t, 1, worker.Prefill, "1001"), "odd", worker.VLLM), named(testWorker(t, 2, worker.Decode, "1002"), "odd", worker.SGLang),
		named(testWorker(t, 3, worker.Prefill, "1003"), "whole", worker.SGLang), named(testWorker(t, 4, worker.Decode, "1004"), "whole", worker.SGLang))
	const why = "no common hand-off: its prefill workers are vllm, its decode workers sglang"
	ready, said := x.isKeyReady(worker.Key{Model: "odd"})
	require.False(t, ready)
	require.Equal(t, why, said)
	s := x.state()
	require.Equal(t, []string{"odd", "whole"}, []string{s.Keys[0].Model, s.Keys[1].Model})
	require.Equal(t, why, s.Keys[0].Reason)
	require.True(t, s.Keys[1].CanServe)
	require.Equal(t, "one worker: its disaggregation is off", s.Keys[1].How)
	require.Contains(t, x.log.String(), `msg="model cannot be served" model=odd reason="`+why+`"`)
}

// What the index had no memory for and what waits at a pool's prefill workers
// are shown: the first is no doubt of what is still known.
func TestWhatTheIndexDropsAndWhatIsQueuedIsShown(t *testing.T) {
	x := newTold(t, "index: {max_bytes: 1048576}\nprefill: {max_queued_isl_tokens: 90}\n")
	foreign := testWorker(t, 9, worker.Prefill, "1009")
	foreign.Namespace = "foreign"
	x.set(discovery.Change{Joined: []worker.ID{5, 9}}, testWorker(t, 5, worker.Prefill, "1001"), foreign)
	rank := worker.Rank{ID: 5}
	x.index.Attach(rank)
	for i, e := range make([]kvindex.Stored, 2000) { // 20,000 blocks at 40 bytes and more
		for j := range 10 {
			n := i*10 + j + 1
			e.Blocks = append(e.Blocks, kvindex.Block{Engine: kvindex.EngineHash(n), Local: kvindex.LocalHash(n)})
		}
		require.NoError(t, x.index.Store(rank, e))
	}
	params, _ := x.cfg.Routing.Prefill.Params(worker.Prefill)
	var r load.Reservation
	req := &load.Request{Params: &params}
	req.Pick.Role, req.Pick.ISLTokens = worker.Prefill, 64
	require.NoError(t, x.book.Reserve(req, rank, 0, &r))

	row := x.state().Workers[0].Ranks[0]
	st, _ := x.index.Stats(rank)
	require.Positive(t, row.ShedBlocks)
	require.EqualValues(t, st.Shed, row.ShedBlocks)
	require.False(t, row.Events.Degraded)
	metrics := x.metrics()
	require.Contains(t, metrics, fmt.Sprintf(`baton_worker_index_shed_blocks_total{dp_rank="0",role="prefill",worker_id="5"} %d`, st.Shed))

	key := x.state().Keys[1]
	require.Equal(t, "foreign", key.Namespace)
	require.Zero(t, key.MaxQueuedTokens, "none of our trouble")
	key = x.state().Keys[0]
	require.Equal(t, []int64{64, 90}, []int64{key.QueuedTokens, key.MaxQueuedTokens})
	require.Contains(t, metrics, `baton_prefill_queued_tokens{model="m"} 64`)
	require.Contains(t, metrics, `baton_prefill_queue_limit_tokens 90`)
	r.Release(time.Now())
}

func TestTheQueueLimitIsShownBeforeThereIsAModel(t *testing.T) {
	require.Contains(t, newTold(t, "prefill: {max_queued_isl_tokens: 90}").metrics(), "baton_prefill_queue_limit_tokens 90")
}

// A worker whose ranks have ports of their own is aside in part since the first of them
// is, and altogether since the last.
func TestSinceWhenAWorkerOfSeveralPortsIsSo(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Unix(0, 0).Add(time.Duration(minute) * time.Minute) }
	rank := func(state health.State, minute int) health.RankHealth {
		return health.RankHealth{OwnPort: true, State: state, Since: at(minute)}
	}
	for name, c := range map[string]struct {
		ranks []health.RankHealth
		shown admin.Health
		since int
	}{
		"all healthy":      {[]health.RankHealth{rank(health.Healthy, 1), rank(health.Healthy, 3), rank(health.Healthy, 2)}, admin.Healthy, 3},
		"two of three":     {[]health.RankHealth{rank(health.Aside, 7), rank(health.Probing, 5), rank(health.Healthy, 9)}, admin.Partly, 5},
		"all":              {[]health.RankHealth{rank(health.Aside, 5), rank(health.Probing, 7), rank(health.Aside, 6)}, admin.Aside, 7},
		"one may be tried": {[]health.RankHealth{rank(health.Recovering, 6), rank(health.Recovering, 4), rank(health.Healthy, 8)}, admin.Recovering, 4},
		"one is aside yet": {[]health.RankHealth{rank(health.Recovering, 4), rank(health.Aside, 6), rank(health.Healthy, 8)}, admin.Partly, 6},
	} {
		got := stateOf(&worker.Worker{}, c.ranks)
		require.Equal(t, c.shown, got.Health, name)
		require.Equal(t, at(c.since), got.since, name)
	}
}

func TestManyIDsAreCutShortInTheLog(t *testing.T) {
	require.Empty(t, few(nil, nil))
	require.Equal(t, "1, 2", few(nil, []worker.ID{1, 2}))
	require.Equal(t, "1, 2, 3, 4, 5, 6, 7, 8 and 2 more", few(nil, []worker.ID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}))
}

// metrics scrapes the plugin.
func (x *told) metrics() string {
	x.t.Helper()
	stop, err := x.tele.Instruments.Observe(x.observe)
	require.NoError(x.t, err)
	defer func() { require.NoError(x.t, stop()) }()
	w := httptest.NewRecorder()
	x.tele.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(x.t, http.StatusOK, w.Code)
	return w.Body.String()
}
