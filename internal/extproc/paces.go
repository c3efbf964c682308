package extproc

import (
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/pace"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// paces learn how long ranks take to compute prompts, of each model and role apart, and tell the load
// book. Safe for concurrent use.
type paces struct {
	mu     sync.Mutex
	fleets map[paced]*fleetPace
}

// paced is a model's ranks of a role.
type paced struct {
	of   worker.Key
	role worker.Role
}

type fleetPace struct {
	pace.Fleet
	told time.Time // when all ranks were told last
}

// tellAll is how often all ranks of a pool are told, which have the fleet's values as long as their own
// are not known.
const tellAll = time.Second

// computed tells that a rank has computed so many tokens of a prompt, on which it has spent so long.
func (p *paces) computed(c *Config, of paced, at worker.Rank, spent time.Duration, ended time.Time, tokens int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fleets == nil {
		p.fleets = make(map[paced]*fleetPace)
	}
	f := p.fleets[of]
	if f == nil {
		f = new(fleetPace)
		p.fleets[of] = f
	}
	f.Ended(at, spent, tokens)
	if ended.Sub(f.told) < tellAll {
		setPace(c.Book, &f.Fleet, at)
		return
	}
	f.told = ended
	view := c.Board.Load()
	p.forget(view.Pool)
	pool := view.Pool(of.of)
	if pool == nil {
		return
	}
	for _, r := range pool.Ranks(of.role) {
		setPace(c.Book, &f.Fleet, r)
	}
	f.Keep(func(r worker.Rank) bool { return view.Worker(r.ID) != nil })
}

func setPace(book *load.Book, f *pace.Fleet, r worker.Rank) {
	if s, known := f.Of(r); known {
		book.SetPace(r, picker.Pace(s))
	}
}

// forget drops the fleets of pools that are there no more.
func (p *paces) forget(pool func(worker.Key) *worker.Pool) {
	for of := range p.fleets {
		if pool(of.of) == nil {
			delete(p.fleets, of)
		}
	}
}

// prompt tells of the prompt of a request, which a rank has computed as it was booked.
func (p *paces) prompt(s *mainStream, role worker.Role, at worker.Rank, booked *load.Reservation, now time.Time) {
	if at.ID == 0 || s.asked.Parallel != 1 {
		return
	}
	cached := s.prompt.Predicted
	if s.counts.known {
		cached = s.counts.cached
	}
	took := booked.Prompt(now)
	p.computed(&s.srv.cfg, paced{s.asked.Key, role}, at, took.Spent, now, s.prompt.Prompt-cached)
	if took.Expected > 0 {
		s.srv.cfg.Telemetry.Expected(role.String(), took.Whole.Seconds()/took.Expected)
	}
}
