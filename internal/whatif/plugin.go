package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/pace"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config is how the plugin is configured. BlockSize of the parameters is the workload's.
type Config struct {
	Prefill, Decode, Whole picker.Params // of picks; Decode as configured, without what a pair changes

	Estimated    bool          // the overlap is what was routed, not what ranks told
	Predicted    bool          // it is both, whichever is more
	RoutedTTL    time.Duration // how long an estimate believes in what was routed; 0: the index's default
	PredictedTTL time.Duration // how long what was routed is believed in before events tell of it; 0: the same
	Paced        bool          // it begins with the ranks' speeds, as a plugin that has run for a while
	ReportEvery  time.Duration // how often engines are asked in [Play]; 0: never
	IndexBytes   int           // bound of its index; 0: as much as caches hold
	MostQueued   int64         // prompt tokens at prefill from which on requests are refused; 0: no limit
	Replicas     int           // of the plugin, asked in turn; each knows what it has picked itself. 0 counts as 1
	Seed         uint64        // draws between equal costs

	// Told lets replicas tell each other what they have booked, routed and learned, as the plugin's do: what
	// has changed each 20 ms, which comes after Lag.
	Told bool
	Lag  time.Duration
}

// Default returns the plugin's defaults, with KV events.
func Default() Config {
	return Config{
		Prefill: picker.DefaultParamsFor(worker.Prefill), Decode: picker.DefaultParamsFor(worker.Decode), Whole: picker.DefaultParamsFor(worker.Aggregated),
		Predicted: true, Seed: 1, ReportEvery: reportEvery,
	}
}

// replica is the parts of one plugin. It books and predicts what it has picked itself; events
// and reports reach all replicas.
type replica struct {
	index  *kvindex.Tree
	lookup *overlap.Lookup
	book   *load.Book
	lately outlen.Lately
	paces  pace.Fleet[worker.Rank] // of the ranks that compute prompts
	writes pace.Fleet[worker.Rank] // of the ranks that decode
	pairs  pace.Fleet[[2]int]      // of hand-offs, by the ranks' numbers
	off    []float64               // of each prompt, how long it took over what was expected

	life, version uint64
	stirred       bool
	tells, told   time.Duration // when it tells the others next, and when it has
	routed        []routed      // since it has told them
}

// routed is a prompt that was sent to a rank, as others are told.
type routed struct {
	at    worker.Rank
	chain []kvindex.LocalHash
}

// mail is on its way between replicas.
type mail struct {
	due    time.Duration
	from   *replica
	told   load.Told
	routed []routed
}

// flight is a request that has not ended.
type flight struct {
	by            *replica
	prefill, rest load.Reservation // rest: of decode, or of the whole request
	at, first     time.Duration
	prefilled     time.Duration // when; 0: nobody decodes
	ranks         [2]int        // that prefill and decode
	prompt        int           // tokens
	answer        int
}

// Plugin is a [replay.Chooser].
type Plugin struct {
	cfg      Config
	fleet    *replay.Fleet
	block    int
	snap     *worker.Snapshot
	pool     *worker.Pool
	replicas []*replica
	asked    int
	flights  map[int]*flight
	answer   overlap.Answer
	chain    []kvindex.LocalHash
	mails    []mail   // by when they are due
	overlap  []uint32 // of the first pick, by its ranks; nil: it did not ask
}

var key = worker.Key{Model: "m"}

// roles are the roles of workers by those of the simulation.
var roles = [...]worker.Role{replay.Prefill: worker.Prefill, replay.Decode: worker.Decode, replay.Whole: worker.Aggregated}

// idOf is the worker that a rank of the fleet is to the plugin.
func idOf(rank int) worker.Rank { return worker.Rank{ID: worker.ID(rank + 1)} }

// NewPlugin returns a plugin that knows the fleet's ranks, and nothing of their caches.
func NewPlugin(f *replay.Fleet, blockTokens int, c Config) (*Plugin, error) {
	p := &Plugin{cfg: c, fleet: f, block: blockTokens, flights: map[int]*flight{}}
	for _, params := range []*picker.Params{&p.cfg.Prefill, &p.cfg.Decode, &p.cfg.Whole} {
		params.BlockSize = blockTokens
	}
	var ws []*worker.Worker
	for i := range f.Ranks {
		r := &f.Ranks[i]
		at, err := worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:30000", i>>8, i&255))
		if err != nil {
			return nil, err
		}
		w := &worker.Worker{
			ID: idOf(i).ID, Role: roles[r.Role], Engine: engines.Unnamed()[0].Name, Endpoint: at, Models: []string{key.Model},
			DPSize: 1, BlockSize: uint32(blockTokens), CapacityBlocks: uint64(max(r.CacheBlocks, r.Room)), //nolint:gosec // both above 0
			KVEvents: worker.KVEvents{Host: "10.0.0.1", Port: 5557},
		}
		switch {
		case r.Role == replay.Decode && r.Room > 0:
			w.CapacityBlocks = uint64(r.Room) //nolint:gosec // above 0
		case r.Role == replay.Prefill:
			w.Bootstrap = worker.Bootstrap{Host: "10.0.0.1", Port: 8998}
		}
		ws = append(ws, w)
	}
	var err error
	p.snap, err = worker.NewSnapshot(1, ws)
	if err != nil {
		return nil, err
	}
	p.pool = p.snap.Pool(key)
	for i := range max(c.Replicas, 1) {
		r, err := p.newReplica(c.Seed + uint64(i)<<32)
		if err != nil {
			return nil, err
		}
		r.life = uint64(i) + 1
		p.replicas = append(p.replicas, r)
	}
	return p, nil
}

func (p *Plugin) newReplica(seed uint64) (r *replica, err error) {
	r = &replica{book: load.New(seed)}
	r.book.Update(p.snap)
	for i := range p.fleet.Ranks {
		if x := &p.fleet.Ranks[i]; p.cfg.Paced && x.Role != replay.Decode {
			r.book.SetPace(idOf(i), picker.Pace{PerToken: x.PerToken, PerRequest: x.PerPrompt})
		} else if p.cfg.Paced {
			r.book.SetWriting(idOf(i), picker.Writing{Base: x.Step.Base, PerBlock: x.Step.PerBlock})
		}
	}
	// Room for all caches several times over: the index must shed nothing.
	blocks := 0
	for i := range p.fleet.Ranks {
		blocks += p.fleet.Ranks[i].CacheBlocks
		if p.fleet.Ranks[i].CacheBlocks == 0 {
			blocks += 1 << 20
		}
	}
	slots := kvindex.NewSlots()
	r.index, err = kvindex.NewTree(kvindex.TreeConfig{
		MaxBytes: min(max(blocks*256, 16<<20), cmp.Or(p.cfg.IndexBytes, kvindex.MostBytes), kvindex.MostBytes), NoHugePages: true,
		Route: kvindex.RouteConfig{TTL: p.cfg.RoutedTTL, PredictedTTL: p.cfg.PredictedTTL},
	}, slots)
	if err != nil {
		return nil, err
	}
	for i := range p.fleet.Ranks {
		r.index.Attach(idOf(i))
	}
	r.lookup, err = overlap.New(overlap.Config{Index: r.index, Slots: slots, Predicts: true})
	return r, err
}

// clock is a simulated time as the plugin's parts take it.
func clock(now time.Duration) time.Time { return time.Unix(1_000_000_000, 0).Add(now) }

// hashes returns the prompt's blocks as the index names them. Those of an estimate are of bytes,
// so no event speaks of them.
func (p *Plugin) hashes(r *replay.Request) []kvindex.LocalHash {
	p.chain = p.chain[:0]
	for _, b := range r.Blocks {
		h := kvindex.LocalHash(b)
		if p.cfg.Estimated {
			h = ^h
		}
		p.chain = append(p.chain, h)
	}
	return p.chain
}

// tellEvery is how often the plugin tells its replicas at most what has changed.
const tellEvery = 20 * time.Millisecond

// talk lets replicas tell each other, up to now.
func (p *Plugin) talk(now time.Duration) {
	for _, by := range p.replicas {
		if by.stirred && by.tells <= now {
			p.mails = append(p.mails, p.tell(by))
		}
	}
	slices.SortStableFunc(p.mails, func(a, b mail) int { return cmp.Compare(a.due, b.due) })
	for len(p.mails) > 0 && p.mails[0].due <= now {
		m := &p.mails[0]
		for _, by := range p.replicas {
			if by != m.from {
				by.hear(m)
			}
		}
		p.mails = p.mails[1:]
	}
}

// stir notes that a replica has something to tell.
func (p *Plugin) stir(by *replica, now time.Duration) {
	if !by.stirred && p.cfg.Told && len(p.replicas) > 1 {
		by.stirred, by.tells = true, max(now, by.told+tellEvery)
	}
}

func (p *Plugin) tell(by *replica) mail {
	by.stirred, by.told = false, by.tells
	by.version++
	m := mail{due: by.tells + p.cfg.Lag, from: by, told: load.Told{Life: by.life, Version: by.version}, routed: by.routed}
	m.told.Ranks, m.told.Sum = by.book.Tell(nil, false, clock(by.tells))
	by.routed = nil
	return m
}

func (of *replica) hear(m *mail) {
	of.book.Hear(&m.told, clock(m.due))
	for _, r := range m.routed {
		of.index.Route(r.at, r.chain, kvindex.Estimated, clock(m.due))
	}
	of.paces.Share(m.from.life, &m.from.paces) // in the plugin: as it was some seconds ago
	of.writes.Share(m.from.life, &m.from.writes)
	of.pairs.Share(m.from.life, &m.from.pairs)
}

// Choose implements replay.Chooser.
func (p *Plugin) Choose(now time.Duration, number int, r *replay.Request) (replay.Choice, error) {
	p.talk(now)
	by := p.replicas[p.asked%len(p.replicas)]
	defer p.stir(by, now)
	f := &flight{by: by, at: now, prompt: r.Tokens, answer: max(r.Answer, 1)}
	p.asked++
	p.flights[number] = f
	chain := p.hashes(r)
	first := leg{worker.Prefill, &p.cfg.Prefill, p.pool.PrefillRanks, &f.prefill, true}
	if len(p.pool.AggregatedRanks) > 0 {
		first = leg{worker.Aggregated, &p.cfg.Whole, p.pool.AggregatedRanks, &f.rest, true}
	}
	d, err := p.pick(now, f, r, &first)
	if err != nil {
		delete(p.flights, number)
		return replay.Choice{}, refusal(err)
	}
	p.overlap = slices.Clone(p.answer.Overlap)
	switch {
	case p.cfg.Estimated:
		f.by.index.Route(d.Rank, chain, kvindex.Estimated, clock(now))
		if p.cfg.Told && len(p.replicas) > 1 {
			f.by.routed = append(f.by.routed, routed{d.Rank, slices.Clone(chain)})
		}
	case p.cfg.Predicted:
		f.by.index.Route(d.Rank, chain, kvindex.Predicted, clock(now))
	}
	c := replay.Choice{Rank: int(d.Rank.ID) - 1, Believed: int(d.OverlapBlocks)}
	f.ranks[0] = c.Rank
	if len(p.pool.DecodeRanks) > 0 {
		params := picker.DecodeOverride(p.cfg.Decode)
		d, err = p.pick(now, f, r, &leg{worker.Decode, &params, p.pool.DecodeRanks, &f.rest, p.fleet.FetchesLacking})
		if err != nil {
			f.prefill.ReleaseIfHeld(clock(now))
			delete(p.flights, number)
			return c, refusal(err)
		}
		c.Decode = int(d.Rank.ID) - 1
		f.ranks[1] = c.Decode
	}
	return c, nil
}

// leg is what one pick is made from.
type leg struct {
	role     worker.Role
	params   *picker.Params
	ranks    []worker.Rank
	into     *load.Reservation
	overlaps bool // what the ranks hold of the prompt counts
}

// pick picks and books one leg of a request, whose hashes are in p.chain.
func (p *Plugin) pick(now time.Duration, f *flight, r *replay.Request, l *leg) (picker.Decision, error) {
	by := f.by
	req := load.Request{
		Key: key, Ranks: l.ranks, Params: l.params, Now: clock(now),
		Pick: picker.Request{Role: l.role, ISLTokens: r.Tokens, RequestBlocks: len(p.chain), Estimated: p.cfg.Estimated},
	}
	if l.role == worker.Decode {
		req.From = idOf(f.ranks[0])
	}
	if l.role != worker.Prefill {
		e, size := by.lately.Expect(key, outlen.NotSaid), float64(p.block)
		req.Growth = load.Growth{After: e.First, PerSecond: e.PerSecond / size, Most: float64(e.Tokens) / size}
		req.Pick.NewBlocks = (r.Tokens + p.block - 1) / p.block
		req.Pick.FetchesLacking = l.role == worker.Decode && l.overlaps
		by.lately.Booked(key)
	}
	if l.role == worker.Prefill {
		req.MaxQueuedISLTokens = p.cfg.MostQueued
	}
	p.answer.Overlap = nil
	if l.overlaps && l.params.Mode == picker.KV {
		by.index.Expire(req.Now)
		by.lookup.Of(p.snap, l.ranks, overlap.Prompt{Hashes: p.chain, Estimated: p.cfg.Estimated}, &p.answer)
		req.Overlap, req.Estimated, req.Predicted = p.answer.Overlap, p.answer.Estimated, p.answer.Predicted
	}
	return by.book.PickAndReserve(&req, l.into)
}

// first is how the rank that computes the prompt is picked.
func (p *Plugin) first() *picker.Params {
	if len(p.pool.AggregatedRanks) > 0 {
		return &p.cfg.Whole
	}
	return &p.cfg.Prefill
}

// held is how many blocks of the latest prompt a rank was believed to have.
func (p *Plugin) held(rank int) int {
	ranks := p.pool.PrefillRanks
	if len(p.pool.AggregatedRanks) > 0 {
		ranks = p.pool.AggregatedRanks
	}
	if i := slices.Index(ranks, idOf(rank)); i >= 0 && i < len(p.overlap) {
		return int(p.overlap[i])
	}
	return 0
}

// busy reports whether a rank is believed to have to end something before it would begin a prompt.
func (p *Plugin) busy(rank int, now time.Duration) bool {
	return p.replicas[0].book.Wait(idOf(rank), clock(now)) > 0
}

// refusal is what the error of a pick means to a simulation: a plugin answers it with 429 or 503.
func refusal(err error) error {
	if errors.Is(err, picker.ErrNoCandidate) || errors.As(err, new(*picker.SaturatedError)) || errors.As(err, new(*picker.OverloadedError)) {
		return fmt.Errorf("%w: %w", replay.ErrRefused, err)
	}
	return err
}

// Leg implements replay.Chooser.
func (p *Plugin) Leg(now time.Duration, l replay.Leg) error {
	p.talk(now)
	f := p.flights[l.Request]
	defer p.stir(f.by, now)
	switch {
	case l.Moment == replay.FirstToken:
		f.first = now - f.at
		f.rest.PrefillDone(1<<62, clock(now))
		if l.Role == replay.Whole {
			p.computed(f, now, &f.rest, &l)
		}
	case l.Moment == replay.Ended && l.Role == replay.Prefill:
		f.prefill.Release(clock(now))
		f.prefilled = now
		p.computed(f, now, &f.prefill, &l)
		if len(p.pool.DecodeRanks) == 0 {
			delete(p.flights, l.Request)
		}
	case l.Moment == replay.Ended:
		p.wrote(f, now)
		f.rest.Release(clock(now))
		f.by.lately.Heard(key, outlen.Answer{MaxTokens: outlen.NotSaid, Tokens: int64(f.answer), First: f.first, Whole: max(now-f.at, 1)})
		delete(p.flights, l.Request)
	}
	return nil
}

// computed learns from a prompt that a rank has computed.
func (p *Plugin) computed(f *flight, now time.Duration, booked *load.Reservation, l *replay.Leg) {
	by, at := f.by, idOf(l.Rank)
	took := booked.Prompt(clock(now))
	by.paces.Ended(at, took.Spent, int64(f.prompt-l.Cached))
	if took.Expected > 0 {
		by.off = append(by.off, took.Whole.Seconds()/took.Expected)
	}
	for i := range p.fleet.Ranks { // the plugin tells all every second
		if s, known := by.paces.Of(idOf(i)); known && p.fleet.Ranks[i].Role == l.Role {
			by.book.SetPace(idOf(i), picker.Pace(s))
		}
	}
}

// wrote learns from an answer of a pair that has ended.
func (p *Plugin) wrote(f *flight, now time.Duration) {
	if f.prefilled == 0 || f.answer < 2 {
		return
	}
	by, at := f.by, idOf(f.ranks[1])
	each := (now - f.at - f.first) / time.Duration(f.answer-1)
	if blocks, _ := by.book.DecodingBlocks(at, clock(now)); blocks > 0 {
		by.writes.Ended(at, each, blocks)
	}
	by.pairs.Ended(f.ranks, f.at+f.first-f.prefilled-each, int64(f.prompt))
	usual, known := by.pairs.Mean()
	h := load.HandOffs{Usual: picker.Pace(usual), Far: map[worker.Rank][]load.FarHandOff{}}
	for i := range p.fleet.Ranks {
		if p.fleet.Ranks[i].Role != replay.Decode {
			continue
		}
		if s, known := by.writes.Of(idOf(i)); known {
			by.book.SetWriting(idOf(i), picker.Writing{Base: s.PerRequest, PerBlock: s.PerToken})
		}
		for k := range p.fleet.Ranks {
			if s, known := by.pairs.Of([2]int{k, i}); known && s != usual {
				h.Far[idOf(k)] = append(h.Far[idOf(k)], load.FarHandOff{To: idOf(i), Pace: picker.Pace(s)})
			}
		}
	}
	if known {
		by.book.SetHandOffs(key, h)
	}
}

// Events implements replay.Chooser.
func (p *Plugin) Events(_ time.Duration, e replay.Events) error {
	stored := kvindex.Stored{HasParent: e.Parent != 0, Parent: engineHash(e.Parent)}
	for _, b := range e.Stored {
		stored.Blocks = append(stored.Blocks, kvindex.Block{Engine: engineHash(b), Local: kvindex.LocalHash(b)})
	}
	var removed kvindex.Removed
	for _, b := range e.Removed {
		removed.Blocks = append(removed.Blocks, engineHash(b))
	}
	for _, r := range p.replicas {
		if len(stored.Blocks) > 0 {
			if err := r.index.Store(idOf(e.Rank), stored); err != nil {
				return fmt.Errorf("store of rank %d: %w", e.Rank, err)
			}
		}
		if len(removed.Blocks) > 0 {
			if err := r.index.Remove(idOf(e.Rank), removed); err != nil {
				return fmt.Errorf("removal of rank %d: %w", e.Rank, err)
			}
		}
	}
	return nil
}

// engineHash is what the simulated engines call a block: any one-to-one naming does, as long as
// it is not the hash that Baton computes itself.
func engineHash(b replay.Block) kvindex.EngineHash { return kvindex.EngineHash(^uint64(b)) }

// Report implements replay.Chooser.
func (p *Plugin) Report(now time.Duration, r replay.Report) error {
	p.talk(now)
	for _, by := range p.replicas {
		by.book.ReportQueue(idOf(r.Rank), int64(r.Waiting), clock(now))
		if p.fleet.Ranks[r.Rank].Role == replay.Prefill {
			continue
		}
		by.book.Report(idOf(r.Rank), load.Report{Blocks: int64(r.Blocks), Requests: int64(r.Running)}, clock(now))
	}
	return nil
}

// Verify compares, at a run's end, the index of every replica with the caches, and its book with
// nothing.
func (p *Plugin) Verify(w *replay.Workload, r *replay.Result) error {
	for _, of := range p.replicas {
		for i := range p.fleet.Ranks {
			st, _ := of.index.Stats(idOf(i))
			if n := r.Cached(i); st.Blocks != n || st.UnknownRemoves > 0 {
				return fmt.Errorf("rank %d: %d blocks in the index, %d unknown removals: expected %d and none", i, st.Blocks, st.UnknownRemoves, n)
			}
		}
		if t := of.book.Totals(); t.Held > 0 || t.PrefillTokens != 0 || t.DecodeBlocks != 0 {
			return fmt.Errorf("%d bookings, %d tokens and %d blocks left in the book: expected none", t.Held, t.PrefillTokens, t.DecodeBlocks)
		}
		if err := of.verify(w, r, len(p.fleet.Ranks)); err != nil {
			return err
		}
	}
	return nil
}

func (of *replica) verify(w *replay.Workload, r *replay.Result, ranks int) error {
	var told kvindex.Overlap
	var chain []kvindex.LocalHash
	for i := range w.Requests {
		chain = chain[:0]
		for _, b := range w.Requests[i].Blocks {
			chain = append(chain, kvindex.LocalHash(b))
		}
		of.index.Overlap(chain, &told)
		for k := range ranks {
			slot, _ := of.index.Slot(idOf(k))
			if got, want := told.At(slot), r.Held(k, w.Requests[i].Blocks); int(got) != want {
				return fmt.Errorf("rank %d: the index has %d blocks of request %d: expected %d", k, got, i, want)
			}
		}
	}
	return of.index.Check()
}
