package worker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Key names one model in one namespace: what a request asks for and what a pool serves.
// The pool of NoModel has the workers whose models are not known.
type Key struct {
	Model     string
	Namespace string
}

// Pool is the workers of one key, listed by role. A worker that cannot serve a role,
// such as a draining worker, is not in the list of that role. The slices are shared and
// must not be written to.
type Pool struct {
	Key        Key
	Prefill    []*Worker
	Decode     []*Worker
	Aggregated []*Worker // aggregated workers, and decode workers that accept aggregated requests

	// Ranks of the workers in the lists above, in the same order. The ranks of a worker
	// are next to each other.
	PrefillRanks    []Rank
	DecodeRanks     []Rank
	AggregatedRanks []Rank

	// PrefillFits are the fits of the Prefill workers, sorted, each once.
	PrefillFits []Fit
	// Paired are those of the Prefill workers that are a pair with some Decode worker,
	// PairedRanks their ranks, and PairedEngines their engines, each once. If all of Prefill
	// are, these are the same lists.
	Paired        []*Worker
	PairedRanks   []Rank
	PairedEngines []Engine

	// MaxModelLen is the smallest MaxModelLen that a worker of the pool tells; 0: none
	// tells one.
	MaxModelLen uint32

	decodeOf  map[Fit][]Rank // for each fit of Prefill the ranks of Decode that fit; nil if all of Decode have one fit
	prefillOf map[Fit][]Rank // for each fit of Decode the ranks of Prefill that fit; nil if all of Prefill have one fit
}

// DecodeRanksOf returns the ranks of the decode workers that fit a prefill worker of the
// fit: others could not take the KV. The slice is shared. It is made anew only for a fit
// that no Prefill worker has, in a pool whose Decode workers differ.
func (p *Pool) DecodeRanksOf(f Fit) []Rank { return ranksOf(f, p.decodeOf, p.Decode, p.DecodeRanks) }

// PrefillRanksOf returns the ranks of the prefill workers that fit a decode worker of the
// fit, as [Pool.DecodeRanksOf] does.
func (p *Pool) PrefillRanksOf(f Fit) []Rank {
	return ranksOf(f, p.prefillOf, p.Prefill, p.PrefillRanks)
}

// RankLists returns each list of ranks from which picks are made. The slices are shared.
func (p *Pool) RankLists() [][]Rank {
	lists := [][]Rank{p.PrefillRanks, p.DecodeRanks, p.AggregatedRanks, p.PairedRanks}
	return slices.AppendSeq(slices.AppendSeq(lists, maps.Values(p.decodeOf)), maps.Values(p.prefillOf))
}

func ranksOf(f Fit, by map[Fit][]Rank, ws []*Worker, all []Rank) []Rank {
	if by == nil {
		if len(ws) > 0 && f.Fits(ws[0].Fit()) {
			return all
		}
		return nil
	}
	ranks, known := by[f]
	if !known {
		_, ranks = fitting(ws, all, f.Fits)
	}
	return ranks
}

// sortByFit fills what depends on the fits of the workers.
func (p *Pool) sortByFit() {
	p.PrefillFits = FitsOf(p.Prefill)
	decode := FitsOf(p.Decode)
	p.decodeOf = partners(p.PrefillFits, decode, p.Decode, p.DecodeRanks)
	p.prefillOf = partners(decode, p.PrefillFits, p.Prefill, p.PrefillRanks)
	p.Paired, p.PairedRanks = fitting(p.Prefill, p.PrefillRanks, func(f Fit) bool { return len(p.DecodeRanksOf(f)) > 0 })
	for _, f := range FitsOf(p.Paired) {
		if !slices.Contains(p.PairedEngines, f.Engine) {
			p.PairedEngines = append(p.PairedEngines, f.Engine)
		}
	}
}

// partners returns for each of the fits the ranks of the workers that fit, or nil if all
// workers have one fit.
func partners(fits, others []Fit, ws []*Worker, all []Rank) map[Fit][]Rank {
	if len(others) < 2 {
		return nil
	}
	out := make(map[Fit][]Rank, len(fits))
	for _, f := range fits {
		_, out[f] = fitting(ws, all, f.Fits)
	}
	return out
}

// fitting returns the workers whose fits will do, and their ranks: the lists themselves if
// all will.
func fitting(ws []*Worker, all []Rank, will func(Fit) bool) (some []*Worker, ranks []Rank) {
	if !slices.ContainsFunc(ws, func(w *Worker) bool { return !will(w.Fit()) }) {
		return ws, all
	}
	for _, w := range ws {
		if !will(w.Fit()) {
			continue
		}
		some = append(some, w)
		for dp := range w.DPSize {
			ranks = append(ranks, Rank{ID: w.ID, DPRank: DPRank(dp)})
		}
	}
	return some, ranks
}

// deployments lists, each once, the deployments that serve the pool's model otherwise
// than as an adapter: an adapter is loaded by each worker for itself.
func (p *Pool) deployments() (out []string) {
	for _, ws := range [...][]*Worker{p.Prefill, p.Decode, p.Aggregated} {
		for _, w := range ws {
			if !slices.Contains(out, w.Deployment) && !slices.Contains(w.Adapters, p.Key.Model) {
				out = append(out, w.Deployment)
			}
		}
	}
	return out
}

// Ranks returns the ranks that may be picked for the role. The slice is shared
// and must not be written to.
func (p *Pool) Ranks(r Role) []Rank {
	switch r {
	case Prefill:
		return p.PrefillRanks
	case Decode:
		return p.DecodeRanks
	case Aggregated:
		return p.AggregatedRanks
	default:
		return nil
	}
}

// Snapshot is an immutable set of workers at one revision. The zero value and a nil
// *Snapshot are an empty set at revision 0. Safe for concurrent use.
type Snapshot struct {
	revision uint64
	stale    bool
	workers  []*Worker // sorted by ID
	byID     map[ID]*Worker
	byAddr   map[netip.AddrPort]place
	pools    map[Key]*Pool
	models   []Key // sorted

	transfer map[ID]string // taint of each worker's transfer domain, so that a pick builds no string
}

// place is the worker and the rank that listen at an address.
type place struct {
	worker *Worker
	dp     DPRank
}

// NewSnapshot builds a snapshot. It takes ownership of the slice, and replaces some of
// its workers by copies. It refuses invalid workers, repeated ids and repeated
// addresses, those of ranks included; its error names every fault.
func NewSnapshot(revision uint64, workers []*Worker) (*Snapshot, error) {
	s := &Snapshot{
		revision: revision,
		workers:  workers,
		byID:     make(map[ID]*Worker, len(workers)),
		byAddr:   make(map[netip.AddrPort]place, len(workers)),
		pools:    make(map[Key]*Pool),
	}
	slices.SortFunc(workers, func(a, b *Worker) int { return cmp.Compare(a.ID, b.ID) })
	var errs []error
	for i, w := range workers {
		if err := w.Validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		w = w.withRanks()
		workers[i] = w
		if _, dup := s.byID[w.ID]; dup {
			errs = append(errs, fmt.Errorf("worker %d: id is used twice", w.ID))
			continue
		}
		s.byID[w.ID] = w
		if d := w.KVTransfer.Domain; d != "" {
			if s.transfer == nil {
				s.transfer = make(map[ID]string)
			}
			s.transfer[w.ID] = TaintOf(d, w.TopologyDomains[d])
		}
		if err := s.addAddresses(w); err != nil {
			errs = append(errs, err)
			continue
		}
		for i, m := range w.Models {
			if slices.Contains(w.Models[:i], m) {
				continue
			}
			s.addToPool(Key{Model: m, Namespace: w.Namespace}, w)
		}
	}
	s.addUntold()
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for k, p := range s.pools {
		s.models = append(s.models, k)
		p.sortByFit()
	}
	slices.SortFunc(s.models, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Model, b.Model))
	})
	return s, nil
}

// addUntold adds the workers whose models are not known to the pool of NoModel, and to
// the pools of models that others of their deployment serve, if it has a name: a
// deployment serves one model, so that they are expected to serve it, too. They come last in each list, so that
// the first worker of a list is one whose facts are known, if there is one.
func (s *Snapshot) addUntold() {
	type side struct{ namespace, deployment string }
	var served map[side][]Key
	for _, w := range s.workers {
		if len(w.Models) > 0 || s.byID[w.ID] != w {
			continue
		}
		if served == nil {
			served = make(map[side][]Key)
			for k, p := range s.pools {
				for _, d := range p.deployments() {
					served[side{k.Namespace, d}] = append(served[side{k.Namespace, d}], k)
				}
			}
		}
		s.addToPool(Key{Model: NoModel, Namespace: w.Namespace}, w)
		if w.Role == Aggregated && w.Deployment != "" {
			for _, k := range served[side{w.Namespace, w.Deployment}] {
				s.addToPool(k, w)
			}
		}
	}
}

// addAddresses enters the addresses of w into byAddr, and refuses an address that
// another worker has. Fronted workers are left out: they share the address of their
// process.
func (s *Snapshot) addAddresses(w *Worker) error {
	if w.Fronted {
		return nil
	}
	dp := DPRank(0)
	for a := range w.Addresses() {
		if o, dup := s.byAddr[a]; dup {
			return fmt.Errorf("worker %d: endpoint %s is already worker %d's", w.ID, a, o.worker.ID)
		}
		s.byAddr[a] = place{w, dp}
		dp++
	}
	return nil
}

func (s *Snapshot) addToPool(k Key, w *Worker) {
	p := s.pools[k]
	if p == nil {
		p = &Pool{Key: k}
		s.pools[k] = p
	}
	p.add(w)
}

func (p *Pool) add(w *Worker) {
	add := func(r Role, ws *[]*Worker, ranks *[]Rank) {
		if !w.CanServe(r) {
			return
		}
		*ws = append(*ws, w)
		if n := w.MaxModelLen; n > 0 && (p.MaxModelLen == 0 || n < p.MaxModelLen) {
			p.MaxModelLen = n
		}
		for dp := range w.DPSize {
			*ranks = append(*ranks, Rank{ID: w.ID, DPRank: DPRank(dp)})
		}
	}
	add(Prefill, &p.Prefill, &p.PrefillRanks)
	add(Decode, &p.Decode, &p.DecodeRanks)
	add(Aggregated, &p.Aggregated, &p.AggregatedRanks)
}

// Only returns a pool of those workers of p for which keep returns true. It looks at all
// of them: it is for people, not for requests.
func (p *Pool) Only(keep func(*Worker) bool) *Pool {
	out, seen := &Pool{Key: p.Key}, make(map[ID]bool)
	for _, ws := range [...][]*Worker{p.Prefill, p.Decode, p.Aggregated} {
		for _, w := range ws {
			if !seen[w.ID] && keep(w) {
				out.add(w)
			}
			seen[w.ID] = true
		}
	}
	out.sortByFit()
	return out
}

// WithStale returns a snapshot of the same workers that is marked stale or fresh.
func (s *Snapshot) WithStale(stale bool) *Snapshot {
	c := *s.set()
	c.stale = stale
	return &c
}

// Without returns a snapshot of the same revision that lacks some workers.
func (s *Snapshot) Without(ids []ID) *Snapshot {
	rest := slices.DeleteFunc(slices.Clone(s.Workers()), func(w *Worker) bool { return slices.Contains(ids, w.ID) })
	out, err := NewSnapshot(s.Revision(), rest)
	if err != nil {
		panic(fmt.Errorf("worker: a part of a valid set: %w", err)) // no fault comes from having fewer workers
	}
	return out.WithStale(s.Stale())
}

// set returns s, or the empty set.
func (s *Snapshot) set() *Snapshot {
	if s == nil {
		return &Snapshot{}
	}
	return s
}

// Revision counts the sets that were published. The sources' own revisions are other
// numbers.
func (s *Snapshot) Revision() uint64 { return s.set().revision }

// Stale reports whether the source of the set is away, so that the set may be out of
// date.
func (s *Snapshot) Stale() bool { return s.set().stale }

// Workers returns all workers sorted by ID. The slice is shared.
func (s *Snapshot) Workers() []*Worker { return s.set().workers }

// Worker returns the worker with the id, or nil.
func (s *Snapshot) Worker(id ID) *Worker { return s.set().byID[id] }

// TransferTaint returns the taint of the worker's transfer domain, or "" if the worker
// has no transfer domain or is not in the set.
func (s *Snapshot) TransferTaint(id ID) string { return s.set().transfer[id] }

// WorkerAt returns the worker that listens at addr ("ip:port"), or nil if none does.
func (s *Snapshot) WorkerAt(addr string) *Worker {
	e, err := ParseEndpoint(addr)
	if err != nil {
		return nil
	}
	w, _ := s.RankAt(e.addr)
	return w
}

// RankAt returns the worker that listens at addr, or nil if none does, and the rank
// that listens there: 0 unless the worker has PortPerRank. It does not allocate.
func (s *Snapshot) RankAt(addr netip.AddrPort) (*Worker, DPRank) {
	p := s.set().byAddr[addr]
	return p.worker, p.dp
}

// Pool returns the pool of the key, or nil if no worker has the key.
func (s *Snapshot) Pool(k Key) *Pool { return s.set().pools[k] }

// Keys returns every key that has a worker, sorted, that of NoModel among them. The slice
// is shared.
func (s *Snapshot) Keys() []Key { return s.set().models }
