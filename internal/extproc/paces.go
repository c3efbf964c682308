package extproc

import (
	"encoding/json"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/pace"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Paces learn how long ranks take to compute prompts, of each model and role apart, how long decode takes
// for a token, and how long pairs take to hand a prompt over. They tell the load book. Safe for concurrent
// use.
type Paces struct {
	mu     sync.Mutex // guards the fields below
	fleets map[paced]*fleetPace
	pairs  map[worker.Key]*pairPace
	kept   time.Time // until then nobody is forgotten: workers that were known may still join
}

// paced is a model's ranks of a role. Those of decode are learned by what a token takes, over the KV blocks
// that the rank holds; others by what a prompt takes, over its tokens. Adapters and other names of a model have
// the same ranks: they are learned of as one, by the worker's first name that is no adapter's (worker.Worker.Base).
type paced struct {
	of   worker.Key
	role worker.Role
}

type fleetPace struct {
	pace.Fleet[worker.Rank]
	told time.Time // when all ranks were told last
	legs int       // that have ended, up to tellEach
}

type pairPace struct {
	pace.Fleet[legRanks]
	told time.Time // when the book was told last
}

// legRanks are the ranks of a request's legs.
type legRanks struct{ Prefill, Decode worker.Rank }

// tellAll is how often all ranks of a pool are told, which have the fleet's values as long as their own
// are not known. So often the book is told of pairs.
const tellAll = time.Second

// tellEach is up to how many legs all are told with each one: until then what is believed of those that have
// served nothing is far off, and a burst at the start would find them cheap, however much is queued there.
const tellEach = 64

// took tells that a rank has spent so long on so many tokens of a prompt, or, in decode, on a token while it
// held so many blocks.
func (p *Paces) took(c *Config, of paced, at worker.Rank, spent time.Duration, ended time.Time, size int64) {
	view := c.Board.Load()
	if w := view.Worker(at.ID); w != nil && len(w.Models) > 0 {
		of.of = w.Base()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fleets[of]
	if f == nil {
		f = new(fleetPace)
		p.fleets[of] = f
	}
	f.Ended(at, spent, size)
	f.legs = min(f.legs+1, tellEach)
	if f.legs == tellEach && ended.Sub(f.told) < tellAll {
		setPace(c.Book, of.role, &f.Fleet, at)
		return
	}
	f.told = ended
	if ended.After(p.kept) {
		maps.DeleteFunc(p.fleets, func(of paced, _ *fleetPace) bool { return view.Pool(of.of) == nil })
		maps.DeleteFunc(p.pairs, func(of worker.Key, _ *pairPace) bool { return view.Pool(of) == nil })
		f.Keep(func(r worker.Rank) bool { return view.Worker(r.ID) != nil })
	}
	f.tell(c.Book, view, of)
}

// tell tells the book of all ranks that the view has.
func (f *fleetPace) tell(book *load.Book, view *activation.World, of paced) {
	pool := view.Pool(of.of)
	if pool == nil {
		return
	}
	for _, r := range pool.Ranks(of.role) {
		if w := view.Worker(r.ID); w != nil && (len(w.Models) == 0 || w.Base() == of.of) {
			setPace(book, of.role, &f.Fleet, r)
		}
	}
}

func setPace(book *load.Book, role worker.Role, f *pace.Fleet[worker.Rank], r worker.Rank) {
	switch s, known := f.Of(r); {
	case !known:
	case role == worker.Decode:
		book.SetWriting(r, picker.Writing{Base: s.PerRequest, PerBlock: s.PerToken})
	default:
		book.SetPace(r, picker.Pace(s))
	}
}

// prompt tells of the prompt of a request, which a rank has computed as it was booked.
func (p *Paces) prompt(s *mainStream, role worker.Role, at worker.Rank, booked *load.Reservation, now time.Time) {
	if at.ID == 0 || s.decided.answer.Parallel != 1 {
		return
	}
	cached := s.decided.prompt.Predicted
	if s.answered.counts.known {
		cached = s.answered.counts.cached
	}
	took := booked.Prompt(now)
	p.took(&s.srv.cfg, paced{s.decided.answer.Key, role}, at, took.Spent, now, s.decided.prompt.Prompt-cached)
	if took.Expected > 0 {
		s.srv.cfg.Telemetry.Expected(role.String(), took.Whole.Seconds()/took.Expected)
	}
}

// answer tells of the answer of a pair that served, and of its hand-off.
func (p *Paces) answer(s *mainStream, t *telemetry.Served, now time.Time) {
	plan, c := s.m.Plan(), &s.srv.cfg
	if !plan.Disaggregated || s.decided.answer.Parallel != 1 {
		return
	}
	if s.answered.heldBlocks > 0 && t.PerToken > 0 {
		p.took(c, paced{s.decided.answer.Key, worker.Decode}, plan.Decode, t.PerToken, now, s.answered.heldBlocks)
	}
	// The hand-off's own time is of no use: engines tell it in whole seconds.
	took := s.m.Request().Start.Add(t.FirstToken).Sub(s.far.wellAt) - t.PerToken
	if plan.Kind.PrefillFirst() && t.FirstToken > 0 && !s.far.wellAt.IsZero() && took > 0 {
		p.handedOver(c, s.decided.answer.Key, legRanks{plan.Prefill, plan.Decode}, took, now, s.decided.prompt.Prompt)
	}
}

// handedOver tells how long it took from the end of a prefill until decode had the prompt.
func (p *Paces) handedOver(c *Config, of worker.Key, pair legRanks, took time.Duration, now time.Time, tokens int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.pairs[of]
	if f == nil {
		f = new(pairPace)
		p.pairs[of] = f
	}
	f.Ended(pair, took, tokens)
	if now.Sub(f.told) < tellAll {
		return
	}
	f.told = now
	if f.Len() > mostPairs {
		f = &pairPace{told: now} // of a fleet in which pairs hardly meet twice, the mean says as much
		p.pairs[of] = f
	}
	if view := c.Board.Load(); now.After(p.kept) {
		f.Keep(func(r legRanks) bool { return view.Worker(r.Prefill.ID) != nil && view.Worker(r.Decode.ID) != nil })
	}
	f.tell(c.Book, of)
}

// tell tells the book of the pairs.
func (f *pairPace) tell(book *load.Book, of worker.Key) {
	usual, known := f.Mean()
	if !known {
		return
	}
	h := load.HandOffs{Usual: picker.Pace(usual), Far: make(map[worker.Rank][]load.FarHandOff)}
	f.Each(func(r legRanks) {
		if s, _ := f.Of(r); s != usual {
			h.Far[r.Prefill] = append(h.Far[r.Prefill], load.FarHandOff{To: r.Decode, Pace: picker.Pace(s)})
		}
	})
	book.SetHandOffs(of, h)
}

// mostPairs bounds the pairs of a model of which something is known, each about 300 bytes.
const mostPairs = 1 << 14

// Believed is what is believed of a rank: of its prompts, or, if it decodes, of a token of its answers by the
// blocks that it holds. legs is on how many it rests, older ones counting less; 0: on those of other ranks.
func (p *Paces) Believed(w *worker.Worker, r worker.Rank) (s pace.Speed, legs float64, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fleets[paced{w.Base(), w.Role}]
	if f == nil {
		return s, 0, false
	}
	s, known = f.Of(r)
	return s, f.Legs(r), known
}

// tell tells the book what is believed of the ranks of the present view. It is for ranks that are new.
func (p *Paces) tell(c *Config) {
	view := c.Board.Load()
	p.mu.Lock()
	defer p.mu.Unlock()
	for of, f := range p.fleets {
		f.tell(c.Book, view, of)
	}
	for of, f := range p.pairs {
		if view.Pool(of) != nil {
			f.tell(c.Book, of)
		}
	}
}

// keptPaces are the paces as JSON.
type keptPaces struct {
	Fleets []keptFleet
	Pairs  []keptPair
}

type keptFleet struct {
	Of    worker.Key
	Role  worker.Role
	Fleet *pace.Fleet[worker.Rank]
}

type keptPair struct {
	Of    worker.Key
	Fleet *pace.Fleet[legRanks]
}

// Write writes what is believed of ranks and pairs.
func (p *Paces) Write(w io.Writer) error {
	var out keptPaces
	p.mu.Lock()
	for of, f := range p.fleets {
		out.Fleets = append(out.Fleets, keptFleet{of.of, of.role, &f.Fleet})
	}
	for of, f := range p.pairs {
		out.Pairs = append(out.Pairs, keptPair{of, &f.Fleet})
	}
	text, err := json.Marshal(&out)
	p.mu.Unlock()
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// keepFor is how long what an earlier process has learned is kept of workers that are not there.
const keepFor = 10 * time.Minute

// Read takes what an earlier process has written. After an error nothing has changed.
func (p *Paces) Read(r io.Reader, now time.Time) error {
	var in keptPaces
	if err := json.NewDecoder(r).Decode(&in); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fleets, p.pairs, p.kept = make(map[paced]*fleetPace), make(map[worker.Key]*pairPace), now.Add(keepFor)
	for _, k := range in.Fleets {
		if k.Fleet == nil {
			continue
		}
		p.fleets[paced{k.Of, k.Role}] = &fleetPace{Fleet: *k.Fleet}
	}
	for _, k := range in.Pairs {
		if k.Fleet == nil {
			continue
		}
		p.pairs[k.Of] = &pairPace{Fleet: *k.Fleet}
	}
	return nil
}
