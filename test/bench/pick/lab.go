package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	blockSize    = 16
	systemBlocks = 16 // of the prompt that all requests begin with
	turnBlocks   = 46 // of what is the conversation's own
	isl          = (systemBlocks + turnBlocks) * blockSize
)

// lab is a fleet with everything that a decision reads, as the plugin has it.
type lab struct {
	snap    *worker.Snapshot
	prefill []worker.Rank
	decode  []worker.Rank
	index   kvindex.Index
	lookup  *overlap.Lookup
	book    *load.Book
	health  *health.Tracker
	rng     *rand.Rand

	chains [][]kvindex.LocalHash // of conversations
	params picker.Params
	answer overlap.Answer
	seen   [2]load.Explanation

	held []load.Reservation // a ring: one booking for each rank of the pool
	next int
}

// newLab makes a fleet of n prefill workers, and as many for decode.
func newLab(n, dp int, seed uint64) (*lab, error) {
	l := &lab{book: load.New(seed), rng: rand.New(rand.NewPCG(seed, seed)), params: picker.DefaultParams()}
	var ws []*worker.Worker
	for i := range 2 * n {
		at, err := worker.ParseEndpoint(fmt.Sprintf("10.%d.%d.%d:30000", i>>16, i>>8&255, i&255))
		if err != nil {
			return nil, err
		}
		w := &worker.Worker{
			ID: worker.ID(i + 1), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"},
			DPSize: uint32(dp), BlockSize: blockSize, CapacityBlocks: 1 << 16,
			Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998}, KVEvents: worker.KVEvents{Host: "10.0.0.1", Port: 5557},
		}
		if i%2 == 1 {
			w.Role = worker.Decode
		}
		ws = append(ws, w)
	}
	var err error
	l.snap, err = worker.NewSnapshot(1, ws)
	if err != nil {
		return nil, err
	}
	pool := l.snap.Pool(worker.Key{Model: "m"})
	l.prefill, l.decode = pool.PrefillRanks, pool.DecodeRanks
	l.health = health.New(health.Config{Seed: seed})
	now := time.Now()
	l.book.Update(l.snap)
	l.health.Update(l.snap, now)
	for i := 0; n > 1 && i < len(ws); i += 200 {
		l.health.Report(worker.Rank{ID: ws[i].ID}, health.Report{Outcome: health.ConnectFailed}, now)
		l.health.Report(worker.Rank{ID: ws[i+1].ID}, health.Report{Outcome: health.ConnectFailed}, now)
	}
	slots := kvindex.NewSlots()
	l.index, err = kvindex.NewTree(kvindex.TreeConfig{Route: kvindex.RouteConfig{PredictedTTL: time.Hour}}, slots)
	if err != nil {
		return nil, err
	}
	l.lookup, err = overlap.New(overlap.Config{Index: l.index, Slots: slots, Predicts: true})
	if err != nil {
		return nil, err
	}
	if err := l.warm(); err != nil {
		return nil, err
	}
	return l, l.occupy()
}

// warm fills the caches of the prefill ranks.
func (l *lab) warm() error {
	chain := func(n int) []kvindex.LocalHash {
		c := make([]kvindex.LocalHash, n)
		for i := range c {
			c[i] = kvindex.LocalHash(l.rng.Uint64())
		}
		return c
	}
	system := chain(systemBlocks)
	for _, w := range l.snap.Workers() {
		for dp := range w.DPSize {
			l.index.Attach(worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)})
		}
	}
	for i, r := range l.prefill {
		held := system
		if i%8 == 0 {
			held = append(system[:systemBlocks:systemBlocks], chain(turnBlocks)...)
			l.chains = append(l.chains, held)
		}
		e := kvindex.Stored{Blocks: make([]kvindex.Block, len(held))}
		for k, h := range held {
			e.Blocks[k] = kvindex.Block{Engine: kvindex.EngineHash(k + 1), Local: h}
		}
		if err := l.index.Store(r, e); err != nil {
			return err
		}
	}
	return nil
}

// widen gives every rank something in every view of the index: the system prompt
// is routed to all, and each has a conversation of another in host memory or on
// disk.
func (l *lab) widen() error {
	for i, r := range l.prefill {
		chain := l.chains[(i/8+1)%len(l.chains)]
		l.index.Route(r, chain[:systemBlocks+i%2*turnBlocks/2], kvindex.Predicted, time.Now())
		e := kvindex.Stored{Parent: systemBlocks, HasParent: true, Tier: kvindex.Host + kvindex.Tier(i%2)}
		for k, h := range chain[systemBlocks:] {
			e.Blocks = append(e.Blocks, kvindex.Block{Engine: kvindex.EngineHash(1<<32 + k), Local: h})
		}
		if err := l.index.Store(r, e); err != nil {
			return err
		}
	}
	return nil
}

// occupy books a request of some length on every rank of both pools.
func (l *lab) occupy() error {
	l.held = make([]load.Reservation, len(l.prefill))
	for i := range l.held {
		if err := l.reserve(worker.Prefill, l.prefill[i], 1+l.rng.IntN(4000), &l.held[i]); err != nil {
			return err
		}
		if err := l.reserve(worker.Decode, l.decode[i], 1+l.rng.IntN(16000), new(load.Reservation)); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) reserve(role worker.Role, r worker.Rank, isl int, into *load.Reservation) error {
	return l.book.Reserve(&load.Request{Params: &l.params, Pick: picker.Request{Role: role, ISLTokens: isl}}, r, 0, into)
}

// slot frees a booking of the ring for the next request.
func (l *lab) slot() *load.Reservation {
	l.next = (l.next + 1) % len(l.held)
	l.held[l.next].ReleaseIfHeld(time.Now())
	return &l.held[l.next]
}

func (l *lab) chain() []kvindex.LocalHash { return l.chains[l.rng.IntN(len(l.chains))] }

func (l *lab) request(role worker.Role, ranks []worker.Rank, p *picker.Params, now time.Time) load.Request {
	r := load.Request{
		Key: worker.Key{Model: "m"}, Ranks: ranks, Params: p, Now: now, Filter: l.health, Explain: &l.seen[0],
		Pick: picker.Request{Role: role, ISLTokens: isl, RequestBlocks: systemBlocks + turnBlocks},
	}
	if role == worker.Decode {
		r.Explain, r.Pick.NewBlocks = &l.seen[1], systemBlocks+turnBlocks
	}
	return r
}

// decide is what the plugin does between a prompt's hashes and a prefill rank.
func (l *lab) decide(chain []kvindex.LocalHash, into *load.Reservation) error {
	l.lookup.Of(l.snap, l.prefill, overlap.Prompt{Hashes: chain}, &l.answer)
	return l.pickPrefill(into)
}

// pickPrefill is the part of it that follows the look-up.
func (l *lab) pickPrefill(into *load.Reservation) error {
	r := l.request(worker.Prefill, l.prefill, &l.params, time.Now())
	r.Overlap, r.Estimated = l.answer.Overlap, l.answer.Estimated
	r.Host, r.Disk = l.answer.Host, l.answer.Disk
	_, err := l.book.PickAndReserve(&r, into)
	return err
}

// decideDecode is the same for the other leg, which asks no index.
func (l *lab) decideDecode(p *picker.Params, into *load.Reservation) error {
	r := l.request(worker.Decode, l.decode, p, time.Now())
	_, err := l.book.PickAndReserve(&r, into)
	return err
}

// columns lays the fleet out for a pick alone: loads as booked, overlaps as the
// index answers one chain.
func (l *lab) columns() *picker.Candidates {
	l.lookup.Of(l.snap, l.prefill, overlap.Prompt{Hashes: l.chain()}, &l.answer)
	rows := make([]picker.Candidate, len(l.prefill))
	for i, r := range l.prefill {
		booked, _ := l.book.Load(r)
		rows[i] = picker.Candidate{
			Rank: r, OverlapBlocks: l.answer.Overlap[i], ActivePrefillTokens: booked.PrefillTokens, ActiveRequests: booked.PrefillRequests,
		}
	}
	return picker.NewCandidates(rows...)
}
