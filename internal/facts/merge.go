package facts

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Reading is what one question has brought.
type Reading struct {
	Facts engine.Facts
	Tried Trial
}

// Trial is what was found where KV events are published by default, if the engine does
// not say whether it publishes. The zero value: nothing was tried.
type Trial struct {
	At    string // host:port
	Found bool   // a publisher is there
	Why   string // why none was found
}

// Merge returns w with the facts of a reading, and notes on what does not fit. What the
// source has fixed stays; what it has not is the engine's word, else the default, of d as
// WithDefaults returns it. w is not changed; its slices are shared. If the facts make no valid worker, Merge returns w
// itself, and the note says why.
func Merge(w *worker.Worker, d Defaults, r *Reading) (*worker.Worker, []string) {
	m := &merger{out: *w, d: d, f: &r.Facts}
	m.identity()
	m.blocks()
	m.rendezvous()
	m.events(&r.Tried)
	if m.out.Complete() {
		m.out.FactsUnknown, m.out.Fixed, m.out.FactsPort = false, 0, 0
	} else {
		m.out.FactsUnknown = true
		m.incomplete()
	}
	if err := m.out.Validate(); err != nil {
		return w, []string{"what its engine says cannot be used: " + strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	return &m.out, m.notes
}

// merger fills in one worker.
type merger struct {
	out   worker.Worker
	d     Defaults
	f     *engine.Facts
	notes []string
}

func (m *merger) note(format string, a ...any) { m.notes = append(m.notes, fmt.Sprintf(format, a...)) }

func (m *merger) fixed(f worker.Facts) bool { return m.out.Fixed.Has(f) }

// differs notes that the engine contradicts what the source has set.
func (m *merger) differs(fact string, set, told any, effect string) {
	m.note("%s: discovery says %v, its engine says %v: discovery's word counts%s", fact, set, told, effect)
}

// identity fills in engine, role, models and ranks.
func (m *merger) identity() {
	w, f := &m.out, m.f
	if !m.fixed(worker.FactEngine) || w.Engine == "" {
		w.Engine = f.Engine
	}
	switch {
	case !m.fixed(worker.FactRole):
		w.Role = cmp.Or(f.Role, w.Role)
	case f.Role != 0 && f.Role != w.Role:
		m.differs("role", w.Role, f.Role, ", and requests may fail there")
	}
	strange := without(w.Models, f.Models)
	switch {
	case len(f.Models) == 0:
	case !m.fixed(worker.FactModels):
		w.Models = f.Models
	case len(strange) > 0:
		m.differs("models", strings.Join(w.Models, ", "), strings.Join(f.Models, ", "), ", and requests for "+strings.Join(strange, ", ")+" may fail there")
	}
	w.Adapters = f.AdaptersAmong(w.Models)
	if !m.fixed(worker.FactMaxModelLen) {
		w.MaxModelLen = cmp.Or(f.MaxModelLen, w.MaxModelLen)
	}
	if !m.fixed(worker.FactDPSize) && w.EngineRank == 0 {
		w.DPSize = cmp.Or(f.DPSize, w.DPSize, 1)
	}
	w.EngineRank = max(w.EngineRank, f.FirstRank)
	if !m.fixed(worker.FactAcceptsAggregated) && w.Role == worker.Decode {
		w.AcceptsAggregated = engines.Of(w.Engine).DecodePrefills
	}
}

// blocks fills in how the KV cache is cut, and how large it is.
func (m *merger) blocks() {
	w, f := &m.out, m.f
	switch {
	case !m.fixed(worker.FactBlockSize):
		w.BlockSize = cmp.Or(f.BlockSize, w.BlockSize, uint32(m.d.BlockSize)) //nolint:gosec // Validate bounds it
	case f.BlockSize != 0 && f.BlockSize != w.BlockSize:
		m.differs("block_size", w.BlockSize, f.BlockSize, ", and what it holds of a prompt may never be found")
	}
	if !m.fixed(worker.FactEagle) {
		w.Eagle = f.Eagle
	}
	for i, told := range f.Pair {
		if set := w.Pair[i]; set != "" && told != "" && set != told {
			m.differs(worker.PairFact(i).String(), set, told, ", and it decides who is a pair with the worker") //nolint:gosec // few
		}
		w.Pair[i] = cmp.Or(w.Pair[i], told)
	}
	if !m.fixed(worker.FactCapacityBlocks) && f.CapacityBlocks > 0 && w.BlockSize > 0 {
		w.CapacityBlocks = f.CapacityIn(w.BlockSize)
	}
}

// rendezvous fills in where decode workers meet a prefill worker.
func (m *merger) rendezvous() {
	w, f := &m.out, m.f
	switch {
	case w.Role != worker.Prefill:
		if !m.fixed(worker.FactBootstrap) {
			w.Bootstrap = worker.Bootstrap{}
		}
		return
	case !m.fixed(worker.FactBootstrap):
		w.Bootstrap = worker.Bootstrap{}
		if f.BootstrapPort != 0 { // a host without a port counts as none (docs/behaviour.md#addresses)
			w.Bootstrap = worker.Bootstrap{Host: cmp.Or(f.Host, ipOf(w)), Port: f.BootstrapPort, EngineIDs: f.EngineIDs}
		}
	case f.BootstrapPort != 0 && w.Bootstrap.Port != 0 && f.BootstrapPort != w.Bootstrap.Port:
		m.differs("bootstrap port", w.Bootstrap.Port, f.BootstrapPort, "")
	case len(w.Bootstrap.EngineIDs) == 0 && w.Bootstrap.Port != 0:
		w.Bootstrap.EngineIDs = f.EngineIDs // no source can know them
	}
}

// events fills in where KV events are published. Events in blocks of another size would
// fill the index with hashes that no prompt has.
func (m *merger) events(tried *Trial) {
	w, kv := &m.out, m.f.KV
	if m.fixed(worker.FactKVEvents) {
		return
	}
	w.KVEvents = worker.KVEvents{}
	switch {
	case m.d.KVEvents == EventsOff:
	case kv.Port != 0 && kv.BlockSize != 0 && w.BlockSize != 0 && kv.BlockSize != w.BlockSize:
		m.note("its engine publishes KV events in blocks of %d tokens, and block_size says %d: its events are not used; leave block_size out, or set it to %d", kv.BlockSize, w.BlockSize, kv.BlockSize)
	case dials(ipOf(w), &kv): // whoever it dials has them: events.bind
	case kv.Port != 0 && !kv.Exact:
		w.KVEvents = worker.KVEvents{
			Host: cmp.Or(kv.Host, ipOf(w)), Port: m.shifted(int(kv.Port)), ReplayPort: m.shifted(int(kv.ReplayPort)), Topic: kv.Topic,
		}
	case kv.Port != 0:
		k := kv.At(ipOf(w))
		if r := w.EngineRank; r > m.f.FirstRank && m.f.DPSize > 1 { // the worker is one of the ranks that the page has
			at := k.Of(r - m.f.FirstRank)
			k.Host, k.Port, k.ReplayPort, k.Ranks = at.Host, at.Port, at.ReplayPort, nil
		}
		w.KVEvents = k.Placed(w.DPSize)
	case kv.Untold && tried.Found:
		w.KVEvents = worker.KVEvents{Host: ipOf(w), Port: m.shifted(m.d.KVEventsPort), ReplayPort: m.shifted(m.d.ReplayPort)}
	}
	if w.KVEvents.Port == 0 {
		w.KVEvents = worker.KVEvents{}
	}
	switch {
	case kv.Fault == "" || m.d.KVEvents == EventsOff:
	case kv.Nodes > 0:
		m.note("%s: set kv_events.ranks, a place for each rank, in the workers file, or --kv-events-host of extproc register", kv.Fault)
	default:
		m.note("%s", kv.Fault)
	}
}

// shifted returns the port of the engine's rank that the worker is, if each of its ranks
// is a worker; 0 for none.
func (m *merger) shifted(port int) uint16 {
	at := uint64(max(port, 0)) + uint64(m.out.EngineRank)
	if port <= 0 || at > mostPort {
		return 0
	}
	return uint16(at) //nolint:gosec // bounded above
}

// incomplete notes what is missing still.
func (m *merger) incomplete() {
	var missing []string
	for _, x := range []struct {
		there bool
		what  string
	}{
		{m.out.Engine != "", "which engine it is"}, {len(m.out.Models) > 0, "its models"}, {m.out.BlockSize > 0, "its block size"},
	} {
		if !x.there {
			missing = append(missing, x.what)
		}
	}
	m.note("its engine does not say %s: it is served without regard to caches until that is known or set", strings.Join(missing, ", "))
}

// eventsAddress is where a worker's KV events are looked for if its engine does not say;
// "": nowhere.
func eventsAddress(w *worker.Worker, d Defaults) string {
	m := merger{out: *w}
	port := m.shifted(d.KVEventsPort)
	if w.Fixed.Has(worker.FactKVEvents) || d.KVEvents == EventsOff || port == 0 {
		return ""
	}
	return net.JoinHostPort(ipOf(w), strconv.Itoa(int(port)))
}

// dials reports whether an engine at the host own dials whoever takes its KV events: vLLM and
// SGLang do where their endpoint names a host.
func dials(own string, kv *engine.KVEvents) bool {
	return kv.Port != 0 && kv.Host != "" && kv.Host != own && !kv.Listens && kv.Ranks == nil // ranks that differ are bound
}

func ipOf(w *worker.Worker) string { return w.Endpoint.AddrPort().Addr().String() }

// without returns the names that are not in the list.
func without(names, list []string) (out []string) {
	for _, n := range names {
		if !slices.Contains(list, n) {
			out = append(out, n)
		}
	}
	return out
}
