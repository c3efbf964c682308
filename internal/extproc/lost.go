package extproc

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/hitloss"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file finds out why tokens that a rank was believed to hold were computed all the same,
// and which ranks hold less than their events say.

// mostKept is how many block hashes of a prompt are kept until its worker has told how much
// was cached: 8 KiB. Blocks beyond them count as evicted if they are not delivered, since
// engines evict the ends of prompts first.
const mostKept = 1024

// belief is what was known at the pick of how much of a prompt its rank holds.
type belief struct {
	rank     worker.Rank
	known    hitloss.Prompt
	told     int64               // tokens of which the rank's events told, also if not all of them counted
	chain    []kvindex.LocalHash // of told; at most mostKept
	removals uint64
	picked   time.Time
	events   bool // what the rank holds is known by its events
	judged   bool // known has what is known at the end
}

// believe returns what was known at the pick of the rank that computes the prompt.
func believe(d *route.Decision, q *route.Question) belief {
	c := &d.Decode
	if d.Apart {
		c = &d.Prefill
	}
	size := int64(d.BlockSize)
	b := belief{rank: c.Rank, told: int64(c.Held.Told) * size, removals: c.Held.Removals, picked: time.Now(), events: c.Held.Events}
	of := func(blocks uint32) int64 { return int64(blocks) * size }
	b.known = hitloss.Prompt{
		Tokens: int64(d.Prompt.ISLTokens), BlockSize: size, Best: of(c.Held.Best), Out: c.Held.Out, Available: of(c.MostOverlap), Missing: c.Held.Missing,
		Predicted: of(c.OverlapBlocks), Told: of(c.OverlapBlocks - min(c.Held.Guessed, c.OverlapBlocks)), Silent: c.Held.Silent,
		Heard: of(c.Held.Heard), Barred: c.OverlapBlocks > 0 && q.Barred(),
	}
	b.chain = slices.Clone(d.Prompt.Hashes[:min(int(c.Held.Told), len(d.Prompt.Hashes), mostKept)])
	return b
}

// conclude asks, if the worker told less than its events had, how much of that these have
// taken back since the pick. It is to be called when the worker tells: later evictions mean
// nothing.
func (b *belief) conclude(srv *Server, delivered int64) {
	if b.judged {
		return
	}
	b.judged = true
	k := &b.known
	k.Delivered, k.Counted, k.Kept = delivered, true, b.told
	if delivered < b.told {
		k.Kept = min(b.told, int64(srv.cfg.Index.Kept(b.rank, b.chain, b.removals))*k.BlockSize)
	}
	b.chain = nil
}

// hearCounts stores what the event says about tokens.
func hearCounts(s *mainStream, ev *notice) {
	if s.answered.counts.hear(ev) {
		s.decided.belief.conclude(s.srv, s.answered.counts.cached)
	}
}

// lose counts what was lost of a prompt that was served, and judges its rank.
func lose(s *mainStream, now time.Time) {
	b := &s.decided.belief
	if at := computing(s.m.Plan()); at != b.rank || at.ID == 0 {
		return // who has computed the prompt is not known
	}
	if s.answered.counts.known {
		b.conclude(s.srv, s.answered.counts.cached)
	}
	lost := hitloss.Split(&b.known)
	for c, n := range lost {
		if n > 0 {
			s.srv.cfg.Telemetry.OverlapLost(s.decided.prompt.Model, hitloss.Cause(c).String(), n) //nolint:gosec // there are a few causes
		}
	}
	if text := lost.Text(s.decided.prompt.Prompt); text != "" {
		s.srv.cfg.Journal.Update(s.decided.note, func(r *decision.Record) { r.Loss = text })
	}
	if !s.answered.counts.known || b.known.Silent || b.known.Barred || !b.events {
		return
	}
	most := hitloss.Deliverable(&b.known)
	told := min(b.told, most, mostKept*b.known.BlockSize)
	judgeable := b.known.Kept >= told && hitloss.Judgeable(told, b.known.BlockSize)
	short := most-s.answered.counts.cached >= max(b.known.BlockSize, 1)
	n, whole, all := uint64(0), false, true
	if (judgeable || short) && s.srv.cfg.Events != nil {
		n, whole, all = s.srv.cfg.Events(b.rank)
	}
	// Who does not tell all that decides what it delivers says nothing by what it delivers.
	if judgeable && all {
		s.srv.liars.judge(s.srv, b.rank, func(j *hitloss.Judge) hitloss.Verdict { return j.Add(b.rank, told, s.answered.counts.cached, now) })
	}
	if short && whole {
		s.srv.liars.judge(s.srv, b.rank, func(j *hitloss.Judge) hitloss.Verdict { return j.Computed(b.rank, n, b.picked, now) })
	}
}

// liars are the ranks that hold less than their events say. Safe for concurrent use.
type liars struct {
	mu   sync.Mutex
	book hitloss.Judge // guarded by mu
	some bool          // guarded by mu: the router counts less of some rank
}

// publishLocked has the router count what the judge says.
func (l *liars) publishLocked(srv *Server) {
	parts := l.book.Discounts()
	if l.some || parts != nil {
		l.some = parts != nil
		srv.router.Doubt(parts)
	}
}

// judge takes the outcome of one prompt of a rank.
func (l *liars) judge(srv *Server, r worker.Rank, by func(*hitloss.Judge) hitloss.Verdict) {
	switch l.add(srv, r, by) {
	case hitloss.Mute:
		srv.log.Warn("a rank computes prompts but sends no KV events, though its stream is connected: the stream is opened again; check that its events reach this process",
			slog.String(logkey.Rank, r.String()))
		srv.cfg.resync(r, false)
	case hitloss.Found:
		srv.log.Warn("a rank holds less than its KV events say: what they say counts for less, and its blocks are learned anew; "+
			"check that nothing empties its cache without an event, that its events reach this process, and that its block size is the registered one",
			slog.String(logkey.Rank, r.String()))
		srv.cfg.resync(r, true)
	case hitloss.Healed:
		srv.log.Info("a rank holds again what its KV events say", slog.String(logkey.Rank, r.String()))
	case hitloss.Same:
	}
}

func (l *liars) add(srv *Server, r worker.Rank, by func(*hitloss.Judge) hitloss.Verdict) hitloss.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	if srv.view.Load().Worker(r.ID) == nil {
		return hitloss.Same
	}
	verdict := by(&l.book)
	l.publishLocked(srv)
	return verdict
}

// keep forgets the ranks of workers that have left.
func (l *liars) keep(srv *Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	snap := srv.view.Load()
	l.book.Keep(func(r worker.Rank) bool { return snap.Worker(r.ID) != nil })
	l.publishLocked(srv)
}

// Doubted returns the ranks of srv that hold less than their KV events say. Safe for
// concurrent use.
func Doubted(srv *Server, now time.Time) []hitloss.Doubt {
	l := &srv.liars
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.book.Doubted(now)
	l.publishLocked(srv)
	return out
}
