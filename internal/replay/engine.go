package replay

import (
	"math"
	"slices"
	"time"
)

// job is a leg on its rank.
type job struct {
	number int
	*Request
	role   Role
	blocks int  // that it holds, once it has begun
	left   int  // prompt tokens still to be computed
	part   int  // of them in the present step
	fresh  bool // no part of it has been computed yet
	cached int  // tokens found
	made   int  // tokens of the answer
	again  bool
}

// engine is one simulated rank.
type engine struct {
	number int
	Rank
	cache     *cache
	waiting   []*job
	prompts   []*job // being computed
	running   []*job // answers, the oldest first
	held      int    // blocks of prompts and running
	busy      bool   // a step is under way
	prefilled int64  // prompt tokens that it has computed
	finish    func() error
}

func nanoseconds(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds * 1e9))
}

// blocksOf is how many blocks so many tokens fill or begin.
func (s *sim) blocksOf(tokens int) int {
	return (tokens + s.load.BlockTokens - 1) / s.load.BlockTokens
}

// submit gives a leg to its rank.
func (s *sim) submit(e *engine, j *job) error {
	e.waiting = append(e.waiting, j)
	return s.step(e)
}

// step begins a rank's next step, if it has work and is not in one.
func (s *sim) step(e *engine) error {
	if e.busy {
		return nil
	}
	if err := s.admit(e); err != nil {
		return err
	}
	if len(e.prompts)+len(e.running) == 0 {
		return nil
	}
	factor := e.Factor(s.now)
	var seconds float64
	for i, j := range e.prompts {
		j.part = j.left
		if e.Chunk > 0 { // the chunk in equal shares, the first ones get what remains
			n := len(e.prompts)
			j.part = min(j.left, max(1, (e.Chunk+n-1-i)/n))
		}
		own := float64(j.part) * e.PerToken
		if j.fresh {
			own += e.PerPrompt
			j.fresh = false
		}
		if j.again {
			s.result.Lost += nanoseconds(own / factor)
		}
		seconds += own
		e.prefilled += int64(j.part)
	}
	if n := len(e.running); n > 0 {
		seconds += e.Step.Base + e.Step.PerAnswer*float64(n) + e.Step.PerBlock*float64(s.answersHold(e))
	}
	e.busy = true
	s.after(nanoseconds(seconds/factor), e.finish)
	return nil
}

// answersHold is how many blocks running answers hold.
func (s *sim) answersHold(e *engine) int {
	n := e.held
	for _, j := range e.prompts {
		n -= j.blocks
	}
	return n
}

// admit begins what waits, in order, while there is room.
func (s *sim) admit(e *engine) error {
	for len(e.waiting) > 0 {
		j := e.waiting[0]
		computes := j.role != Decode || j.again
		if computes && len(e.prompts) >= max(e.Prompts, 1) {
			return nil
		}
		need := s.blocksOf(j.Tokens + j.made)
		if e.Room > 0 && e.held > 0 && e.held+need > e.Room {
			return nil
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		j.blocks = need
		e.held += need
		if !computes {
			e.running = append(e.running, j)
		} else {
			j.left, j.fresh = j.Tokens+j.made, true
			if !j.again {
				j.cached = min(e.cache.held(j.Blocks), s.load.Reusable(j.Request)) * s.load.BlockTokens
				j.left -= j.cached
			}
			e.prompts = append(e.prompts, j)
		}
		if !j.again {
			if err := s.began(e, j); err != nil {
				return err
			}
		}
	}
	return nil
}

// finished ends a step.
func (s *sim) finished(e *engine) error {
	e.busy = false
	answers := e.running
	e.running = e.running[:0] // those that go on, which are no more than those read so far
	for _, j := range answers {
		if err := s.write(e, j); err != nil {
			return err
		}
	}
	prompts := e.prompts
	e.prompts = e.prompts[:0]
	for _, j := range prompts {
		j.left -= j.part
		if j.left > 0 {
			e.prompts = append(e.prompts, j)
			continue
		}
		if err := s.computed(e, j); err != nil {
			return err
		}
	}
	s.preempt(e)
	return s.step(e)
}

// computed goes on with a leg whose prompt is computed.
func (s *sim) computed(e *engine, j *job) error {
	if j.again {
		j.again = false
		return s.write(e, j)
	}
	if j.role == Prefill {
		e.held -= j.blocks
		if err := s.prefilled(e, j); err != nil {
			return err
		}
		return s.tell(e, j.Blocks)
	}
	if err := s.write(e, j); err != nil {
		return err
	}
	return s.tell(e, j.Blocks)
}

// write adds a token to an answer.
func (s *sim) write(e *engine, j *job) error {
	j.made++
	if j.made == 1 {
		if err := s.firstToken(e, j); err != nil {
			return err
		}
	}
	if j.made >= max(j.Answer, 1) {
		e.held -= j.blocks
		return s.ended(e, j)
	}
	now := s.blocksOf(j.Tokens + j.made)
	e.held += now - j.blocks
	j.blocks = now
	e.running = append(e.running, j)
	return nil
}

// preempt sends the youngest answers back while the room is too small for all. The last one
// goes on: it would need as much room again.
func (s *sim) preempt(e *engine) {
	for e.Room > 0 && e.held > e.Room && len(e.running) > 1 {
		j := e.running[len(e.running)-1]
		e.running = e.running[:len(e.running)-1]
		e.held -= j.blocks
		j.again = true
		s.result.Outcomes[j.number].Preempted++
		e.waiting = slices.Insert(e.waiting, 0, j)
	}
}

// tell puts a prompt into the rank's cache and, after the delay of events, tells of it.
func (s *sim) tell(e *engine, chain []Block) error {
	from, evicted := e.cache.put(chain)
	if from == len(chain) && len(evicted) == 0 {
		return nil
	}
	v := Events{Rank: e.number, Stored: chain[from:], Removed: evicted}
	if from > 0 {
		v.Parent = chain[from-1]
	}
	s.after(s.fleet.EventDelay, func() error { return s.chooser.Events(s.now, v) })
	return nil
}
