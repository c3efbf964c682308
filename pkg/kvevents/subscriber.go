package kvevents

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Subscriber keeps an index in step with the workers of a snapshot: it attaches
// their ranks, follows the events of those that publish them, and detaches the
// ranks of workers that left. Its methods are safe for concurrent use.
type Subscriber struct {
	cfg Config // read-only

	next atomic.Pointer[worker.Snapshot]
	wake chan struct{} // of size 1: next has changed

	// mu guards ranks. The run goroutine alone writes the map; it holds mu only
	// for that. Taken before a stream's own lock.
	mu    sync.Mutex
	ranks map[worker.Rank]*follower
}

// source is what a rank's stream depends on; a change starts it anew.
type source struct {
	addr, replayAddr string // "" when there is none
	topic            string
	blockSize        uint32
}

// follower is a rank with its stream, if it has one.
type follower struct {
	source source
	stream *stream
	cancel context.CancelFunc
	done   chan struct{} // closed when the stream's goroutine has ended
}

// NewSubscriber returns a subscriber that follows nobody yet.
func NewSubscriber(cfg Config) (*Subscriber, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Subscriber{
		cfg:   cfg.withDefaults(),
		wake:  make(chan struct{}, 1),
		ranks: make(map[worker.Rank]*follower),
	}, nil
}

// Update gives the workers to follow. It never blocks; of several updates only
// the last counts.
func (s *Subscriber) Update(snap *worker.Snapshot) {
	s.next.Store(snap)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run follows the workers until ctx ends. It returns nil, when all goroutines
// have ended; the index keeps what it holds then. Run must be called once.
func (s *Subscriber) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			s.reconcile(ctx, s.next.Load(), &wg)
		}
	}
}

// reconcile makes the followed ranks those of snap.
func (s *Subscriber) reconcile(ctx context.Context, snap *worker.Snapshot, wg *sync.WaitGroup) {
	want := make(map[worker.Rank]source)
	for _, w := range snap.Workers() {
		for dp := range w.DPSize {
			r := worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)}
			want[r] = sourceOf(w, dp)
		}
	}
	// Those that left or changed are all told to stop before any is waited for.
	var stopped []worker.Rank
	for r, f := range s.ranks {
		if src, ok := want[r]; !ok || src != f.source {
			f.cancel()
			stopped = append(stopped, r)
		}
	}
	for _, r := range stopped {
		<-s.ranks[r].done
		// D5: its blocks go at once, and only after its stream can add none.
		s.cfg.Index.Detach(r)
		s.mu.Lock()
		delete(s.ranks, r)
		s.mu.Unlock()
	}
	for r, src := range want {
		if s.ranks[r] == nil {
			s.cfg.Index.Attach(r)
			s.follow(ctx, r, src, wg)
		}
	}
}

func (s *Subscriber) follow(ctx context.Context, r worker.Rank, src source, wg *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{source: src, cancel: cancel, done: make(chan struct{}), stream: newStream(&s.cfg, r, src)}
	s.mu.Lock()
	s.ranks[r] = f
	s.mu.Unlock()
	if src.addr == "" {
		close(f.done)
		return
	}
	wg.Go(func() {
		defer close(f.done)
		f.stream.run(ctx)
	})
}

// sourceOf returns where rank dp of the worker publishes: port base plus rank.
// A port beyond 65535 is no source.
func sourceOf(w *worker.Worker, dp uint32) source {
	src := source{topic: w.KVEvents.Topic, blockSize: w.BlockSize}
	if w.KVEvents.IsZero() {
		return src
	}
	at := func(base uint16) string {
		port := uint64(base) + uint64(dp)
		if base == 0 || port > 65535 {
			return ""
		}
		return net.JoinHostPort(w.KVEvents.Host, strconv.FormatUint(port, 10))
	}
	src.addr, src.replayAddr = at(w.KVEvents.Port), at(w.KVEvents.ReplayPort)
	return src
}

// Status returns the state of every rank, sorted by rank. The slice is the
// caller's.
func (s *Subscriber) Status() []RankStatus {
	s.mu.Lock()
	out := make([]RankStatus, 0, len(s.ranks))
	for _, f := range s.ranks {
		out = append(out, f.stream.snapshot())
	}
	s.mu.Unlock()
	for i := range out {
		st, _ := s.cfg.Index.Stats(out[i].Rank)
		out[i].Blocks = st.Blocks
	}
	slices.SortFunc(out, func(a, b RankStatus) int {
		return cmp.Or(cmp.Compare(a.Rank.ID, b.Rank.ID), cmp.Compare(a.Rank.DPRank, b.Rank.DPRank))
	})
	return out
}

func rankAttrs(r worker.Rank) []any {
	return []any{slog.Uint64("worker_id", uint64(r.ID)), slog.Uint64("dp_rank", uint64(r.DPRank))}
}
