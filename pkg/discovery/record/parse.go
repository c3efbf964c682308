package record

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// MaxBytes is how large a list or a record may be: some 20,000 workers.
const MaxBytes = 8 << 20

// ParseList reads a workers file. Errors begin with name, as "name:line: what was
// expected". The caller owns the workers. ParseList returns every worker or an error.
func ParseList(name string, data []byte) ([]*worker.Worker, error) {
	ws, _, err := ParseLines(name, data)
	return ws, err
}

// ParseLines is [ParseList], and also returns the line on which each worker begins.
func ParseLines(name string, data []byte) ([]*worker.Worker, map[worker.ID]int, error) {
	l := list{Document: exact().Open(name, data), lines: make(map[worker.ID]int), addrs: make(map[netip.AddrPort]int)}
	var file struct {
		Workers []strictyaml.Part `yaml:"workers"`
	}
	if places, ok := l.Read(&file); l.Empty() || ok && !places.Given("workers") {
		l.Fault(1, "no workers in it: expected `workers:` with a list, or `workers: []` for none")
	}
	ws := make([]*worker.Worker, 0, len(file.Workers))
	for _, item := range file.Workers {
		if w := l.add(item); w != nil {
			ws = append(ws, w)
		}
	}
	if err := l.Err(); err != nil {
		return nil, nil, err
	}
	return ws, l.lines, nil
}

// Parse reads one worker: a mapping as in the list `workers`, for example the line that a
// simulated worker prints when it is ready.
func Parse(name string, data []byte) (*worker.Worker, error) {
	return single(exact(), name, data)
}

// ParseKnown is [Parse], but passes over unknown keys, since newer versions of Baton write
// to the same store. It reads known keys as strictly as Parse.
func ParseKnown(name string, data []byte) (*worker.Worker, error) {
	form := exact()
	form.PassOver = true
	return single(form, name, data)
}

// exact is the form of what several programs write and read.
func exact() strictyaml.Form { return strictyaml.Form{MaxBytes: MaxBytes, Exact: true} }

// single reads a text that is one worker.
func single(form strictyaml.Form, name string, data []byte) (*worker.Worker, error) {
	d := form.Open(name, data)
	if d.Empty() {
		d.Fault(1, "nothing in it: expected a worker")
	}
	w := read(d, d.Whole())
	if err := d.Err(); err != nil {
		return nil, err
	}
	return w, nil
}

// list is a list of workers as it is read.
type list struct {
	*strictyaml.Document
	lines map[worker.ID]int      // where each id is first used
	addrs map[netip.AddrPort]int // and each address
}

// add reads one item of the list; it returns nil after a fault in the item.
func (l *list) add(item strictyaml.Part) *worker.Worker {
	if n, _ := idOf(item); n != 0 { // also if the worker has faults, so that all faults are reported at once
		if before, twice := l.lines[n]; twice {
			l.Fault(item.Line(), "worker %d: id is already used on line %d", n, before)
		} else {
			l.lines[n] = item.Line()
		}
	}
	w := read(l.Document, item)
	if w == nil {
		return nil
	}
	if _, named := l.lines[w.ID]; !named {
		l.lines[w.ID] = item.Line()
	}
	if !w.Fronted {
		l.claim(w, item.Line())
	}
	return w
}

// claim notes the addresses of w. If others have some of them already, the first one is a
// fault.
func (l *list) claim(w *worker.Worker, line int) {
	told := false
	for a := range w.Addresses() {
		if before, twice := l.addrs[a]; twice && !told {
			l.Fault(line, "worker %d: endpoint %s is already used on line %d", w.ID, a, before)
			told = true
		}
		l.addrs[a] = line
	}
}

// idOf returns the id of a worker of which the rest may not be readable, or 0; and whether
// it has one, if an invalid one.
func idOf(item strictyaml.Part) (worker.ID, bool) {
	text, given := item.Scalar("id")
	var n id
	if given {
		_ = n.Read(text) // a fault where the worker is read
	}
	return worker.ID(n), given
}

// read reads one worker; it returns nil after a fault in it.
func read(d *strictyaml.Document, item strictyaml.Part) *worker.Worker {
	n, named := idOf(item)
	what := "worker: "
	if n != 0 {
		what = "worker " + n.String() + ": "
	} else if !named && item.IsMapping() {
		what = "a worker without id: "
	}
	rec := record{DPSize: 1}
	places, ok := d.ReadPart(item, what, &rec)
	if !ok {
		return nil
	}
	w := rec.worker()
	switch {
	case rec.Facts:
		leaveOpen(w, places)
	case rec.FactsPort != 0:
		d.Fault(item.Line(), "%sfacts_port: expected facts: true, too", what)
		return nil
	}
	if err := w.Validate(); err != nil {
		d.Fault(item.Line(), "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return nil
	}
	if err := publishes(w); err != nil {
		d.Fault(item.Line(), "%s%v", what, err)
		return nil
	}
	return w
}

// publishes returns nil if every rank of w has a port that it can publish its events at.
func publishes(w *worker.Worker) error {
	if n := len(w.KVEvents.Ranks); n > 0 {
		if first := w.KVEvents.Of(0); uint32(n) != w.DPSize || first != (worker.EventsPlace{Host: w.KVEvents.Host, Port: w.KVEvents.Port, ReplayPort: w.KVEvents.ReplayPort}) {
			return fmt.Errorf("kv_events.ranks: expected %d places, one for each rank, the first of them host, port and replay_port again", w.DPSize)
		}
		return nil
	}
	for _, p := range []struct {
		key  string
		port uint16
	}{{"port", w.KVEvents.Port}, {"replay_port", w.KVEvents.ReplayPort}} {
		if last := uint32(p.port) + w.DPSize - 1; p.port != 0 && last > 65535 {
			return fmt.Errorf("kv_events.%s %d: rank %d would be at port %d; expected at most 65535", p.key, p.port, w.DPSize-1, last)
		}
	}
	return nil
}

// facts are the keys that give a fact, also if they give that there is none.
var facts = map[string]worker.Facts{
	"role": worker.FactRole, "engine": worker.FactEngine, "models": worker.FactModels, "dp_size": worker.FactDPSize,
	"block_size": worker.FactBlockSize, "capacity_blocks": worker.FactCapacityBlocks, "max_model_len": worker.FactMaxModelLen,
	"eagle": worker.FactEagle, "bootstrap": worker.FactBootstrap, "kv_events": worker.FactKVEvents,
	"accepts_aggregated": worker.FactAcceptsAggregated,
}

// leaveOpen leaves what is not given of w to be asked of its engine.
func leaveOpen(w *worker.Worker, given strictyaml.Places) {
	for key, fact := range facts {
		if given.Given(key) {
			w.Fixed |= fact
		}
	}
	if !w.Fixed.Has(worker.FactRole) {
		w.Role = worker.Aggregated
	}
	if !given.Given("id") {
		w.ID = idAt(w.Endpoint)
	}
	w.FactsUnknown = !w.Complete()
}
