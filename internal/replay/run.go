package replay

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/heap"
)

// event is something that happens at a simulated time. Those of one instant happen in the order
// in which they were planned.
type event struct {
	at    time.Duration
	order int
	place int
	do    func() error
}

// Before implements [heap.Element].
func (e *event) Before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.order < o.order
}

// Place implements [heap.Element].
func (e *event) Place() *int { return &e.place }

// sim is one run.
type sim struct {
	fleet   *Fleet
	load    *Workload
	chooser Chooser
	engines []*engine
	decodes bool // some ranks do

	now       time.Duration
	agenda    heap.Heap[*event]
	orders    int
	open      int     // requests that have not ended
	followers [][]int // by request
	result    *Result
}

// Run plays the workload. An error is the Chooser's, or a fault of the arguments.
func Run(f *Fleet, w *Workload, c Chooser) (*Result, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	if err := w.validate(); err != nil {
		return nil, err
	}
	s := &sim{
		fleet: f, load: w, chooser: c, decodes: len(f.Of(Decode)) > 0, open: len(w.Requests), followers: make([][]int, len(w.Requests)),
		result: &Result{BlockTokens: w.BlockTokens, Outcomes: make([]Outcome, len(w.Requests))},
	}
	for i := range f.Ranks {
		e := &engine{number: i, Rank: f.Ranks[i], cache: newCache(f.Ranks[i].CacheBlocks)}
		e.finish = func() error { return s.finished(e) }
		s.engines = append(s.engines, e)
		s.result.caches = append(s.result.caches, e.cache)
		if f.ReportEvery > 0 {
			s.after(f.ReportEvery, func() error { return s.report(e) })
		}
	}
	for i := range w.Requests {
		if k := w.Requests[i].Follows; k > 0 {
			s.followers[k-1] = append(s.followers[k-1], i)
		}
	}
	if err := s.play(); err != nil {
		return nil, err
	}
	for _, e := range s.engines {
		if e.Role != Decode {
			s.result.Computed = append(s.result.Computed, e.prefilled)
		}
	}
	return s.result, nil
}

func (s *sim) play() error {
	for next := 0; ; {
		for next < len(s.load.Requests) && s.load.Requests[next].Follows > 0 {
			next++
		}
		e := s.agenda.First()
		if next < len(s.load.Requests) && (e == nil || s.load.Requests[next].At < e.at) {
			s.now = s.load.Requests[next].At
			if err := s.arrive(next); err != nil {
				return err
			}
			next++
			continue
		}
		if e == nil {
			return nil
		}
		s.agenda.Remove(e)
		s.now = e.at
		if err := e.do(); err != nil {
			return err
		}
	}
}

func (s *sim) after(d time.Duration, do func() error) {
	s.orders++
	s.agenda.Put(&event{at: s.now + d, order: s.orders, do: do})
}

// arrive has ranks chosen for a request.
func (s *sim) arrive(number int) error {
	r, o := &s.load.Requests[number], &s.result.Outcomes[number]
	c, err := s.chooser.Choose(s.now, number, r)
	if errors.Is(err, ErrRefused) {
		*o = Outcome{At: s.now, Tokens: r.Tokens, Refused: true}
		s.over(number)
		return nil
	}
	if err != nil {
		return fmt.Errorf("request %d: %w", number, err)
	}
	if !s.has(c.Rank, Prefill, Whole) || s.decodes && !s.has(c.Decode, Decode, Decode) {
		return fmt.Errorf("request %d: chosen %+v: expected ranks of the fleet in their roles", number, c)
	}
	*o = Outcome{Choice: c, At: s.now, Tokens: r.Tokens, Answer: max(r.Answer, 1)}
	return s.submit(s.engines[c.Rank], &job{number: number, Request: r, role: s.engines[c.Rank].Role})
}

func (s *sim) has(rank int, a, b Role) bool {
	return rank >= 0 && rank < len(s.engines) && (s.engines[rank].Role == a || s.engines[rank].Role == b)
}

// heard tells the chooser of a moment of a leg.
func (s *sim) heard(e *engine, j *job, m Moment) error {
	l := Leg{Request: j.number, Rank: e.number, Role: j.role, Moment: m, At: s.now + e.Ahead, Cached: j.cached}
	if s.fleet.LegDelay == 0 {
		return s.chooser.Leg(s.now, l)
	}
	s.after(s.fleet.LegDelay, func() error { return s.chooser.Leg(s.now, l) })
	return nil
}

func (s *sim) began(e *engine, j *job) error {
	if o := &s.result.Outcomes[j.number]; j.role != Decode {
		o.Cached, o.Queued = j.cached, s.now-o.At
	}
	return s.heard(e, j, Began)
}

func (s *sim) firstToken(e *engine, j *job) error {
	o := &s.result.Outcomes[j.number]
	o.FirstToken = s.now - o.At
	return s.heard(e, j, FirstToken)
}

// prefilled ends a prefill leg, and with it the request if nobody decodes.
func (s *sim) prefilled(e *engine, j *job) error {
	if !s.decodes {
		s.result.Outcomes[j.number].FirstToken = s.now - s.result.Outcomes[j.number].At
		return s.ended(e, j)
	}
	d := s.engines[s.result.Outcomes[j.number].Decode]
	t, blocks := s.fleet.Near, s.blocksOf(j.Tokens)
	if d.Domain != e.Domain {
		t = s.fleet.Far
	}
	if s.fleet.FetchesLacking {
		blocks -= d.cache.held(j.Blocks)
	}
	next := &job{number: j.number, Request: j.Request, role: Decode}
	s.after(nanoseconds(t.Base+t.PerBlock*float64(blocks)), func() error {
		if err := s.tell(d, next.Blocks); err != nil {
			return err
		}
		return s.submit(d, next)
	})
	return s.heard(e, j, Ended)
}

// ended ends a request; those that follow it arrive a pause later.
func (s *sim) ended(e *engine, j *job) error {
	o := &s.result.Outcomes[j.number]
	o.End = s.now - o.At
	s.over(j.number)
	return s.heard(e, j, Ended)
}

// over lets those come that follow a request.
func (s *sim) over(number int) {
	s.open--
	for _, next := range s.followers[number] {
		s.after(s.load.Requests[next].At, func() error { return s.arrive(next) })
	}
}

// report tells what a rank runs, as long as requests are open.
func (s *sim) report(e *engine) error {
	if s.open == 0 {
		return nil
	}
	s.after(s.fleet.ReportEvery, func() error { return s.report(e) })
	return s.chooser.Report(s.now, Report{
		Rank: e.number, Running: len(e.running), Blocks: s.answersHold(e), Waiting: len(e.waiting) + len(e.prompts),
	})
}
