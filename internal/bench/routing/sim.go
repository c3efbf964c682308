package main

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fleet is what is simulated.
type fleet struct {
	Ranks      int
	Capacity   int           // blocks of the cache of each rank
	Speed      float64       // tokens a second that a rank prefills
	Overhead   time.Duration // of each prompt, whatever its length
	EventDelay time.Duration // from a rank's cache to the index
	RoutedTTL  time.Duration // how long the estimate believes in what was routed; 0: its default
	// PredictedTTL is how long what was routed is believed in before events tell
	// of it; 0: its default.
	PredictedTTL time.Duration
}

// event is something that happens at a simulated time. Those of one instant
// happen in the order in which they were planned.
type event struct {
	at    time.Duration
	order int
	do    func() error
}

type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// job is a request on its rank.
type job struct {
	*prompt
	booking load.Reservation
}

// rank is one simulated prefill rank.
type rank struct {
	id       worker.Rank
	cache    *cache
	queue    []*job // the first one is being served
	computed int64  // tokens
}

// replica is the parts of one plugin. It books and predicts what it has picked itself; events
// reach all replicas.
type replica struct {
	index  *kvindex.Tree
	lookup *overlap.Lookup
	book   *load.Book
}

// sim is one run: a fleet, a mode and the plugin's parts.
type sim struct {
	fleet
	mode   mode
	now    time.Duration
	agenda agenda
	orders int

	ranks    map[worker.Rank]*rank
	snap     *worker.Snapshot
	pool     []worker.Rank
	replicas []*replica
	arrived  int // requests
	answer   overlap.Answer
	guess    []kvindex.LocalHash

	ttft           []time.Duration // by request, in order of completion
	tokens         int64
	hits, believed int64 // tokens found, and those that the pick counted on
}

func newSim(f fleet, m mode, seed uint64) (*sim, error) {
	s := &sim{fleet: f, mode: m, ranks: map[worker.Rank]*rank{}}
	var ws []*worker.Worker
	for i := range f.Ranks {
		at, err := worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:30000", i>>8, i&255))
		if err != nil {
			return nil, err
		}
		ws = append(ws, &worker.Worker{
			ID: worker.ID(i + 1), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"},
			DPSize: 1, BlockSize: traceBlock, CapacityBlocks: uint64(f.Capacity),
			Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998}, KVEvents: worker.KVEvents{Host: "10.0.0.1", Port: 5557},
		})
	}
	var err error
	if s.snap, err = worker.NewSnapshot(1, ws); err != nil {
		return nil, err
	}
	s.pool = s.snap.Pool(worker.Key{Model: "m"}).PrefillRanks
	for _, r := range s.pool {
		s.ranks[r] = &rank{id: r, cache: newCache(f.Capacity)}
	}
	for i := range m.replicas {
		r, err := s.newReplica(seed + uint64(i)<<32)
		if err != nil {
			return nil, err
		}
		s.replicas = append(s.replicas, r)
	}
	return s, nil
}

// newReplica returns a plugin that knows the ranks, and nothing of their caches.
func (s *sim) newReplica(seed uint64) (r *replica, err error) {
	r = &replica{book: load.New(seed)}
	r.book.Update(s.snap)
	slots := kvindex.NewSlots()
	// Room for all caches several times over: the index must shed nothing.
	room := min(max(s.Ranks*s.Capacity*256, 16<<20), 8<<30)
	if r.index, err = kvindex.NewTree(kvindex.TreeConfig{
		MaxBytes: room, NoHugePages: true, Route: kvindex.RouteConfig{TTL: s.RoutedTTL, PredictedTTL: s.PredictedTTL},
	}, slots); err != nil {
		return nil, err
	}
	for _, rank := range s.pool {
		r.index.Attach(rank)
	}
	r.lookup, err = overlap.New(overlap.Config{Index: r.index, Slots: slots, PredictedWeight: 1})
	return r, err
}

// run takes all requests to their first tokens.
func (s *sim) run(trace []prompt) error {
	for next := 0; next < len(trace) || len(s.agenda) > 0; {
		if next < len(trace) && (len(s.agenda) == 0 || trace[next].at < s.agenda[0].at) {
			s.now = trace[next].at
			if err := s.arrive(&trace[next]); err != nil {
				return fmt.Errorf("request %d: %w", next, err)
			}
			next++
			continue
		}
		e := heap.Pop(&s.agenda).(event)
		s.now = e.at
		if err := e.do(); err != nil {
			return err
		}
	}
	return s.verify(trace)
}

func (s *sim) after(d time.Duration, do func() error) {
	s.orders++
	heap.Push(&s.agenda, event{at: s.now + d, order: s.orders, do: do})
}

// clock is the simulated time as the plugin's parts take it.
func (s *sim) clock() time.Time { return time.Unix(1_000_000_000, 0).Add(s.now) }

// arrive picks a rank for a request, as the replica whose turn it is does for its prefill leg.
func (s *sim) arrive(p *prompt) error {
	j, by := &job{prompt: p}, s.replicas[s.arrived%len(s.replicas)]
	s.arrived++
	req := load.Request{
		Key: worker.Key{Model: "m"}, Ranks: s.pool, Params: &s.mode.params, Now: s.clock(),
		Pick: picker.Request{Role: worker.Prefill, ISLTokens: p.tokens, RequestBlocks: len(p.chain), Estimated: s.mode.estimated},
	}
	chain := p.chain
	if s.mode.estimated { // not those of tokens, so no event speaks of them
		chain = s.guess[:0]
		for _, h := range p.chain {
			chain = append(chain, ^h)
		}
		s.guess = chain
	}
	if s.mode.params.Mode == picker.KV {
		by.index.Expire(req.Now)
		by.lookup.Of(s.snap, s.pool, overlap.Prompt{Hashes: chain, Estimated: s.mode.estimated}, &s.answer)
		req.Overlaps, req.Estimated = s.answer.Blocks, s.answer.Guessed
	}
	d, err := by.book.PickAndReserve(&req, &j.booking)
	if err != nil {
		return err
	}
	switch {
	case s.mode.estimated:
		by.index.Route(d.Rank, chain, kvindex.Estimated, req.Now)
	case s.mode.predicted:
		by.index.Route(d.Rank, chain, kvindex.Predicted, req.Now)
	}
	s.believed += int64(d.OverlapBlocks) * traceBlock
	r := s.ranks[d.Rank]
	if r.queue = append(r.queue, j); len(r.queue) == 1 {
		s.begin(r)
	}
	return nil
}

// begin serves the first request of a rank's queue.
func (s *sim) begin(r *rank) {
	j := r.queue[0]
	compute := j.tokens - min(r.cache.held(j.chain), j.reusable())*traceBlock
	s.tokens += int64(j.tokens)
	s.hits += int64(j.tokens - compute)
	r.computed += int64(compute)
	took := s.Overhead + time.Duration(float64(compute)/s.Speed*float64(time.Second))
	s.after(took, func() error {
		s.ttft = append(s.ttft, s.now-j.at)
		j.booking.Release(s.clock())
		s.tell(r, j.chain)
		r.queue[0] = nil
		if r.queue = r.queue[1:]; len(r.queue) > 0 {
			s.begin(r)
		}
		return nil
	})
}

// tell puts a served prompt into the rank's cache and, after the delay of
// events, what that changed into the index of every replica.
func (s *sim) tell(r *rank, chain []kvindex.LocalHash) {
	from, evicted := r.cache.put(chain)
	stored := kvindex.Stored{HasParent: from > 0}
	if from > 0 {
		stored.Parent = engineHash(chain[from-1])
	}
	for _, h := range chain[from:] {
		stored.Blocks = append(stored.Blocks, kvindex.Block{Engine: engineHash(h), Local: h})
	}
	if len(stored.Blocks) == 0 && len(evicted) == 0 {
		return
	}
	s.after(s.EventDelay, func() error {
		for _, to := range s.replicas {
			if err := to.hear(r.id, stored, evicted); err != nil {
				return err
			}
		}
		return nil
	})
}

// hear takes the events of a rank.
func (r *replica) hear(rank worker.Rank, stored kvindex.Stored, evicted []kvindex.EngineHash) error {
	if len(stored.Blocks) > 0 {
		if err := r.index.Store(rank, stored); err != nil {
			return fmt.Errorf("store of rank %v: %w", rank, err)
		}
	}
	if len(evicted) == 0 {
		return nil
	}
	return r.index.Remove(rank, kvindex.Removed{Blocks: evicted})
}

// verify compares the index of every replica with the caches, and its book with nothing.
func (s *sim) verify(trace []prompt) error {
	for _, r := range s.replicas {
		if err := s.verifyOne(r, trace); err != nil {
			return err
		}
	}
	return nil
}

func (s *sim) verifyOne(of *replica, trace []prompt) error {
	for _, r := range s.ranks {
		st, _ := of.index.Stats(r.id)
		if n := r.cache.used.Len(); st.Blocks != n || st.UnknownRemoves > 0 {
			return fmt.Errorf("rank %v: %d blocks in the index, %d unknown removals: expected %d and none", r.id, st.Blocks, st.UnknownRemoves, n)
		}
	}
	if t := of.book.Totals(); t.Held > 0 || t.PrefillTokens != 0 {
		return fmt.Errorf("%d bookings and %d tokens left in the book: expected none", t.Held, t.PrefillTokens)
	}
	var told kvindex.Overlap
	for i := range trace {
		of.index.Overlap(trace[i].chain, &told)
		for _, r := range s.ranks {
			slot, _ := of.index.Slot(r.id)
			if got, want := told.At(slot), r.cache.held(trace[i].chain); int(got) != want {
				return fmt.Errorf("rank %v: the index has %d blocks of request %d: expected %d", r.id, got, i, want)
			}
		}
	}
	return of.index.Check()
}
