package extproc

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// tape is a recorder into memory.
type tape struct {
	*record.Recorder
	record.Memory
}

func newTape(t testing.TB, world func() *worker.Snapshot) *tape {
	t.Helper()
	tp := &tape{Memory: record.Memory{MaxBytes: 64 << 20, FileBytes: 4 << 20}}
	var err error
	tp.Recorder, err = record.New(record.Config{
		Version: "test", Stores: []record.Store{&tp.Memory}, World: world, Lost: func() { t.Error("a record is lost") },
		Speeds: func(*worker.Snapshot) []record.Speed { return nil },
	})
	require.NoError(t, err)
	return tp
}

// read writes what is queued and reads all.
func (tp *tape) read(t testing.TB) *record.Log {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, tp.Run(ctx))
	l := record.NewLog()
	for _, f := range tp.Files() {
		require.NoError(t, l.Read(bytes.NewReader(f)))
	}
	l.Done()
	return l
}

func taped(t *testing.T, change func(*Config)) (*replica, *tape) {
	var tp *tape
	r := newReplica(t, "a", func(c *Config) {
		board := c.Board
		tp = newTape(t, func() *worker.Snapshot { return board.Load().Snapshot })
		c.Recorder = tp.Recorder
		if change != nil {
			change(c)
		}
	})
	return r, tp
}

func TestADecisionAndItsEndAreRecorded(t *testing.T) {
	t.Parallel()
	r, tp := taped(t, nil)
	for range 2 {
		p := r.open(filterMain)
		p.route(eightTokens)
		p.cancel()
	}
	r.forgetLegs()
	r.requireIdle()
	l := tp.read(t)
	require.Empty(t, l.Notes)
	require.Len(t, l.Requests, 2)
	for i := range l.Requests {
		q := &l.Requests[i]
		require.Equal(t, []any{"m", 8, 1, "", false}, []any{q.Model, q.Tokens, q.Attempt, q.Refused, q.Bound})
		require.NotZero(t, q.Prefill.Rank.ID)
		require.NotZero(t, q.Decode.Rank.ID)
		require.NotEmpty(t, q.End.Outcome)
		require.Equal(t, int64(-1), q.End.Cached, "nobody has told it")
	}
	require.Equal(t, l.Chain(nil, &l.Requests[0]), l.Chain(nil, &l.Requests[1]))
	roles := map[worker.Role]int{}
	for _, x := range l.Fleets[len(l.Fleets)-1].Ranks {
		roles[x.Role]++
	}
	require.Positive(t, roles[worker.Prefill])
	require.Positive(t, roles[worker.Decode])
}

func TestARefusalIsRecorded(t *testing.T) {
	r, tp := taped(t, func(c *Config) { c.MaxQueuedISLTokens = 1 })
	first := r.open(filterMain)
	first.route(eightTokens)
	second := r.open(filterMain)
	second.requestHeaders()
	second.recv()
	second.requestBody(eightTokens)
	require.NotNil(t, second.recv().GetImmediateResponse())
	first.cancel()
	second.cancel()
	r.forgetLegs()
	r.requireIdle()
	l := tp.read(t)
	require.Len(t, l.Requests, 2)
	require.NotEmpty(t, l.Requests[1].Refused)
	require.Zero(t, l.Requests[1].Decode.Rank.ID)
	require.Equal(t, 8, l.Requests[1].Tokens)
}

func TestARecordHasNoTextOfAPrompt(t *testing.T) {
	r, tp := taped(t, nil)
	p := r.open(filterMain)
	p.route(`{"model":"m","prompt":"the quick brown fox jumps over the lazy dog, again and again and again, until it is tired of jumping"}`)
	p.cancel()
	r.forgetLegs()
	r.requireIdle()
	require.Len(t, tp.read(t).Requests, 1)
	for _, f := range tp.Files() {
		for _, word := range []string{"quick", "brown", "lazy", "again"} {
			require.NotContains(t, string(f), word)
		}
	}
}

// decideLong notes the decision on a request of 5,000 tokens of which three quarters are cached, and its end.
func (tp *tape) decideLong(i int) {
	number := tp.Decided(func(d *record.Decision) {
		d.At, d.Model, d.Tokens, d.BlockTokens = time.Now(), "m", 5000, 64
		for k := range uint64(78) {
			h := k
			if k > 60 {
				h += uint64(i) << 32
			}
			d.Chain = append(d.Chain, h)
		}
		for k := range 16 {
			d.Loads = append(d.Loads, record.Load{Rank: worker.Rank{ID: worker.ID(k%4 + 1)}, PrefillTokens: int64(i * k)})
		}
		d.Prefill, d.Decode = record.Pick{Rank: worker.Rank{ID: 1}, Mode: "kv", Reason: "tie"}, record.Pick{Rank: worker.Rank{ID: 3}, Mode: "kv", Reason: "tie"}
	})
	tp.Ended(&record.End{Number: number, Outcome: "ok", Cached: 100})
}

// BenchmarkRecording takes what a request costs to be recorded, in its own goroutine and in the writer's. What the
// plugin does with such a request in all takes some thirty times as much (`make bench`).
func BenchmarkRecording(b *testing.B) {
	s := routetest.Board(time.Now(), routetest.Workers()).Load().Snapshot
	tp := newTape(b, func() *worker.Snapshot { return s })
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	g.Go(func() { _ = tp.Run(ctx) })
	i := 0
	for b.Loop() {
		tp.decideLong(i)
		if i++; i%1000 == 999 {
			require.Eventually(b, func() bool { return tp.Queued() < 2000 }, time.Minute, time.Millisecond)
		}
	}
	cancel()
	g.Wait()
}
