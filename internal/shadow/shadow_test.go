package shadow

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/whatif"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func rank(i int) worker.Rank { return worker.Rank{ID: worker.ID(i + 1)} }

// fill records conversations over four prefill ranks and one of decode, picked in turn, so many each 200 ms.
func fill(t *testing.T, m *record.Memory, n int) {
	t.Helper()
	var ws []*worker.Worker
	for i := range 5 {
		at, err := worker.ParseEndpoint("10.0.0.1:" + string(rune('1'+i)))
		require.NoError(t, err)
		w := &worker.Worker{ID: worker.ID(i + 1), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"}, DPSize: 1, BlockSize: 64, CapacityBlocks: 2000,
			Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998}, KVEvents: worker.KVEvents{Host: "10.0.0.1", Port: 5557}}
		if i == 4 {
			w.Role, w.Bootstrap = worker.Decode, worker.Bootstrap{}
		}
		ws = append(ws, w)
	}
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	r, err := record.New(record.Config{
		Version: "1", Stores: []record.Store{m}, World: func() *worker.Snapshot { return s }, Lost: func() { t.Error("lost") },
		Speeds: func(*worker.Snapshot) (out []record.Speed) {
			for i := range 4 {
				out = append(out, record.Speed{Rank: rank(i), PerToken: 1.0 / 8000, PerRequest: 0.02})
			}
			return append(out, record.Speed{Rank: rank(4), PerRequest: 0.02})
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	began := time.Now()
	for i := range n {
		conversation, turn := uint64(i%397), i/397
		number := r.Decided(func(d *record.Decision) {
			d.At, d.Model, d.Tokens, d.BlockTokens = began.Add(time.Duration(i)*200*time.Millisecond), "m", 64*(10+turn)+1, 64
			for k := range uint64(10 + turn) {
				d.Chain = append(d.Chain, conversation<<32|k)
			}
			d.Prefill, d.Decode = record.Pick{Rank: rank(i % 4)}, record.Pick{Rank: rank(4)}
		})
		r.Ended(&record.End{Number: number, Outcome: "ok", First: 150 * time.Millisecond, Whole: 400 * time.Millisecond, Output: int64(5 + rand.IntN(5)), Cached: 64})
		require.NoError(t, r.Run(ctx))
	}
}

func policies() (active, another whatif.Config) {
	active, another = whatif.Default(), whatif.Default()
	active.Prefill.Mode = picker.RoundRobin
	return active, another
}

func TestASecondPolicyIsComparedWithTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := Memory()
		active, another := policies()
		s := New(m, active, another)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		fill(t, m, 50)
		require.Nil(t, s.Latest())
		<-time.After(every + time.Second)
		require.Equal(t, "too few requests of late", s.Latest().Why)
		fill(t, m, 2000)
		for range 100 { // the clock stands still while it works, so it hardly pauses
			<-time.After(every)
			if s.Latest().Why == "" {
				break
			}
		}
		r := s.Latest()
		require.Empty(t, r.Why)
		require.NotNil(t, r.Active.Error)
		require.Greater(t, r.Another.Played.Hit, r.Active.Played.Hit, "the second one looks where prompts are")
		require.Positive(t, r.Active.Requests)
		require.LessOrEqual(t, r.Active.Requests, mostRequests/2+1)
		require.Less(t, r.Active.Span, window/2+time.Minute)
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestItEndsWithItsContextInTheMiddleOfWork(t *testing.T) {
	m := Memory()
	fill(t, m, 1000)
	active, another := policies()
	s := New(m, active, another)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.Equal(t, context.Canceled.Error(), s.look(ctx).Why)
}

// TestItTakesItsShareOfACore: what it works is counted by the clock, so that a busy machine makes it pause longer.
func TestItTakesItsShareOfACore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := &paused{ctx: context.Background(), since: began}
		for range 100 {
			<-time.After(slice / 2) // work
			require.NoError(t, p.between())
		}
		require.InDelta(t, share, (100*slice/2).Seconds()/time.Since(began).Seconds(), 0.002)
	})
}

func TestNoShadowDoesNothing(t *testing.T) {
	var s *Shadow
	require.NoError(t, s.Run(context.Background()))
	require.Nil(t, s.Latest())
}
