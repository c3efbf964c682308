package extproc

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestNoTaskRunsAfterTheEnd(t *testing.T) {
	var set tasks
	var running, ended, left atomic.Int64
	left.Store(100_000)
	var late atomic.Bool
	var again func()
	again = func() { // each task starts the next, as the end of a leg starts a collecting leg
		running.Add(1)
		defer running.Add(-1)
		late.Store(late.Load() || ended.Load() > 0)
		if left.Add(-1) > 0 {
			set.run(again)
		}
	}
	var starters sync.WaitGroup
	for range 8 {
		starters.Go(func() {
			for left.Load() > 0 && set.run(again) {
			}
		})
	}
	set.close()
	require.Zero(t, running.Load())
	ended.Add(1)
	starters.Wait()
	require.False(t, set.run(func() { ended.Add(1) }))
	require.False(t, late.Load())
	require.EqualValues(t, 1, ended.Load())
}

// slowPrefill answers a prefill leg when let is closed, and the collecting leg after it when
// letCollect is closed.
type slowPrefill struct {
	came, collects, let, letCollect chan struct{}
	canceled, collected, asked      atomic.Int64
}

func newSlowPrefill() *slowPrefill {
	return &slowPrefill{make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}), make(chan struct{}), atomic.Int64{}, atomic.Int64{}, atomic.Int64{}}
}

func (l *slowPrefill) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	came, let := l.came, l.let
	collects := l.asked.Add(1) > 1
	if collects {
		came, let = l.collects, l.letCollect
	}
	came <- struct{}{}
	select {
	case <-let:
		if collects {
			l.collected.Add(1)
		}
		_, _ = io.WriteString(w, `{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":{"remote_engine_id":"e"}}`)
	case <-r.Context().Done():
		l.canceled.Add(1)
	}
}

// prefilling starts a replica with one request, whose prefill leg is at the worker.
func prefilling(t *testing.T, l *slowPrefill) (*replica, *proxy) {
	at := listener(t, l.ServeHTTP)
	r := newReplicaOf(t, "a", prefillFirst(t, func(w *worker.Worker) { w.DPSize = 1 }), func(c *Config) {
		c.PrefillListener, c.OrphanGrace, c.StartTimeout = at, time.Minute, time.Minute
	})
	p := r.open(filterMain)
	p.asks(eightTokens)
	<-l.came
	return r, p
}

// leftAlone is prefilling, after the client has left.
func leftAlone(t *testing.T, l *slowPrefill) *replica {
	r, p := prefilling(t, l)
	p.cancel()
	require.Eventually(t, func() bool { return r.srv.Streams() == 0 }, 20*time.Second, time.Millisecond)
	return r
}

// awaitStage waits until a drain has come to the stage s.
func (r *replica) awaitStage(s stage) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.srv.door.reached(s) }, 20*time.Second, time.Millisecond)
}

// docs/behaviour.md#client-leaves while the process drains.
func TestADrainWaitsForThePrefillThatAClientHasLeft(t *testing.T) {
	l := newSlowPrefill()
	r := leftAlone(t, l)
	drained := make(chan error, 1)
	go func() { drained <- r.srv.Drain(t.Context(), time.Minute) }()
	r.awaitStage(stageRefusing)
	close(l.let)
	<-l.collects
	require.Empty(t, drained)
	close(l.letCollect)
	require.NoError(t, <-drained)
	require.EqualValues(t, 1, l.collected.Load())
	require.Zero(t, l.canceled.Load())
	r.requireIdle()
}

// Requests that come while older ones run are served, those that come later are refused, and
// legs are served at any time.
func TestADrainServesWhatComesUntilTheOldHaveEnded(t *testing.T) {
	t.Parallel()
	r := newReplica(t, "a", func(c *Config) { c.StartTimeout = time.Minute })
	old := r.open(filterMain)
	routed(t, old.ask(eightTokens))
	drained := make(chan error, 1)
	go func() { drained <- r.srv.Drain(t.Context(), time.Minute) }()
	r.awaitStage(stageDraining)
	newer := r.open(filterMain)
	set, _ := routed(t, newer.ask(eightTokens))
	old.cancel()
	r.awaitStage(stageRefusing)

	late := r.open(filterMain)
	_, err := late.s.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	late.cancel()
	leg := r.open(filterPrefill)
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	require.NotNil(t, leg.recv().GetRequestHeaders(), "it is let in")
	leg.cancel()
	require.Empty(t, drained)
	newer.cancel()
	require.NoError(t, <-drained)
	r.forgetLegs()
	r.requireIdle()
}

func TestADrainWaitsForWhatCollects(t *testing.T) {
	l := newSlowPrefill()
	r := leftAlone(t, l)
	close(l.let)
	<-l.collects
	type end struct {
		err       error
		collected int64
	}
	drained := make(chan end, 1)
	go func() {
		err := r.srv.Drain(t.Context(), time.Minute)
		drained <- end{err, l.collected.Load()}
	}()
	r.awaitStage(stageDraining)
	close(l.letCollect)
	require.Equal(t, end{nil, 1}, <-drained)
	require.Zero(t, l.canceled.Load())
	r.requireIdle()
}

// The client leaves when the hand-off is sent to decode. Only Envoy's access log can tell
// whether decode has seen the hand-off. If it has not, only this replica would have the KV
// collected, so the drain waits.
func TestADrainWaitsForWordOfAHandOff(t *testing.T) {
	l := newSlowPrefill()
	close(l.letCollect)
	r, p := prefilling(t, l)
	close(l.let)
	routed(t, p.recv())
	p.cancel()
	require.Eventually(t, func() bool { return r.srv.Streams() == 0 }, 20*time.Second, time.Millisecond)
	drained := make(chan error, 1)
	go func() { drained <- r.srv.Drain(t.Context(), time.Minute) }()
	r.awaitStage(stageRefusing)
	for _, s := range r.srv.attempts.all() {
		s.post(just(leg.Event{Kind: leg.EventLogged, Seen: blame.ClientLeft})) // decode was not reached
	}
	require.NoError(t, <-drained)
	require.EqualValues(t, 1, l.collected.Load())
	r.requireIdle()
}

// legApart starts a request at one replica, with the prefill leg at another one.
func legApart(t *testing.T) (owner, other *replica, main, leg *proxy) {
	owner, other = newReplica(t, "owner", nil), newReplica(t, "other", nil)
	main = owner.open(filterMain)
	set := main.route(someBody)
	leg = other.open(filterPrefill)
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	require.NotNil(t, leg.recv().GetRequestHeaders())
	return owner, other, main, leg
}

// A drain waits for a leg of another replica's request: if it were cut, it would count as
// failed.
func TestADrainWaitsForTheLegsOfOtherReplicas(t *testing.T) {
	owner, other, main, leg := legApart(t)
	drained := make(chan error, 1)
	go func() { drained <- other.srv.Drain(t.Context(), time.Minute) }()
	other.awaitStage(stageRefusing)
	require.Equal(t, 1, other.srv.guests.len())
	require.Empty(t, drained)
	leg.cancel()
	require.NoError(t, <-drained)
	require.Zero(t, other.srv.guests.len())
	main.cancel()
	owner.requireIdle()
}

// A leg that outlasts the drain is cut, and its worker is not charged for that.
func TestALegThatADrainCutsIsNoFaultOfItsWorker(t *testing.T) {
	owner, other, main, leg := legApart(t)
	leg.requestBody(someBody)
	require.NotNil(t, leg.recv().GetRequestBody())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, other.srv.Drain(ctx, time.Minute), context.Canceled)
	leg.cancel() // as Stop does
	im := main.recv().GetImmediateResponse()
	require.Equal(t, "1", setHeaders(im.GetHeaders())[prefill.HeaderRetry], "another attempt is made")
	main.cancel()
	owner.requireIdle()
	for id := range worker.ID(5) {
		require.False(t, owner.srv.cfg.Health.Aside(worker.Rank{ID: id}), id)
	}
}

// A hand-off is good for any decode worker. The record shows that another one got it.
func TestADecodeWorkerThatIsReplacedWhilePrefillRunsIsInTheRecord(t *testing.T) {
	for why, act := range map[string]func(r *replica, s leaving){
		"was set aside": func(r *replica, _ leaving) {
			r.srv.cfg.Health.Report(worker.Rank{ID: 3}, health.Report{Outcome: health.ConnectFailed}, time.Now())
		},
		"left": func(r *replica, s leaving) {
			told := make(chan discovery.Change, 2)
			defer r.srv.cfg.View.Subscribe(func(_, _ *worker.Snapshot, c discovery.Change) { told <- c })()
			<-told
			close(s.now)
			require.Equal(r.t, []worker.ID{3}, (<-told).Left)
			require.Eventually(r.t, func() bool { return r.srv.cfg.Board.Load().Worker(3) == nil }, 20*time.Second, time.Millisecond)
		},
	} {
		t.Run(why, func(t *testing.T) {
			l := newSlowPrefill()
			at := listener(t, l.ServeHTTP)
			source := leaving{prefillFirst(t, nil), make(chan struct{}), 3}
			r := newReplicaOf(t, "a", source, func(c *Config) {
				c.PrefillListener, c.StartTimeout, c.Decode.Mode = at, time.Minute, picker.RoundRobin
			})
			p := r.open(filterMain)
			p.asks(eightTokens)
			<-l.came
			first := r.srv.cfg.Journal.Recent(nil, 1)[0].Decode
			require.Equal(t, worker.ID(3), first.Rank.ID)
			require.Empty(t, first.Replaced)
			act(r, source)
			close(l.let)
			set, _ := routed(t, p.recv())
			require.Equal(t, "4", set["x-worker-instance-id"])
			got := r.srv.cfg.Journal.Recent(nil, 1)[0].Decode
			require.Equal(t, worker.ID(4), got.Rank.ID)
			require.Equal(t, "127.0.0.1:40003", got.Endpoint)
			require.Equal(t, "picked in place of 3/0, which "+why+" while prefill ran", got.Why(2))
			p.cancel()
			r.accessLog()
			r.forgetLegs()
			r.requireIdle()
		})
	}
}

func TestADrainThatEndsBeforeWhatCollectsLeavesItToClose(t *testing.T) {
	l := newSlowPrefill()
	r := leftAlone(t, l)
	close(l.let)
	<-l.collects
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.srv.Drain(ctx, time.Minute), context.Canceled)
	r.srv.stopLegs() // as Close does, after the gRPC server was stopped
	require.Eventually(t, func() bool { return l.canceled.Load() == 1 }, 20*time.Second, time.Millisecond)
	r.requireIdle()
}

// A machine may ask for a leg after the server was closed. Then nothing is sent, and the
// bookings are given back.
func TestAClosedServerSendsNoLeg(t *testing.T) {
	l := newSlowPrefill()
	close(l.let)
	client, err := newLegClient(listener(t, l.ServeHTTP), 0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer client.close()
	srv := &Server{bodies: budget.New(0), legs: context.Background(), legClient: client, cfg: Config{Telemetry: new(telemetry.Instruments)}}
	srv.senders.close()
	s := &mainStream{stream: stream{srv: srv}}
	s.m = *routedBy(new(leg.Plan))
	got := make(chan *notice, 2)
	s.act.handle = func(ev *notice) { got <- ev }
	s.askPrefill(&leg.Effect{Wait: time.Minute}, false)
	s.collect(&leg.Effect{})
	first, second := <-got, <-got
	require.Equal(t, leg.EventPrefilled, first.Kind)
	require.ErrorIs(t, first.Answer.Err, errClosed)
	require.Equal(t, leg.EventCollected, second.Kind)
	require.Zero(t, l.asked.Load())
}
