package record

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	// MaxBytes is how large a list or a record may be: some 20,000 workers.
	MaxBytes = 8 << 20
	// maxDepth bounds how deep a file may nest, since the parser is recursive. A good
	// file has four levels.
	maxDepth = 64
	// maxFaults is the most faults of one file that an error names.
	maxFaults = 50
)

// ParseList reads a workers file. Errors begin with name, as "name:line: what was
// expected". The caller owns the workers. ParseList returns every worker or an error.
func ParseList(name string, data []byte) ([]*worker.Worker, error) {
	ws, _, err := ParseLines(name, data)
	return ws, err
}

// ParseLines is [ParseList], and also returns the line on which each worker begins.
func ParseLines(name string, data []byte) ([]*worker.Worker, map[worker.ID]int, error) {
	r := &reader{name: name}
	body := r.document(data)
	var ws []*worker.Worker
	lines := map[worker.ID]int{}
	if body != nil {
		ws = r.file(body, lines)
	}
	if err := r.err(); err != nil {
		return nil, nil, err
	}
	return ws, lines, nil
}

// Parse reads one worker: a mapping as in the list `workers`, for example the
// line that a simulated worker prints when it is ready.
func Parse(name string, data []byte) (*worker.Worker, error) {
	return (&reader{name: name}).single(data)
}

// ParseKnown is [Parse], but ignores unknown keys, since newer versions of Baton
// write to the same store. It reads known keys as strictly as Parse.
func ParseKnown(name string, data []byte) (*worker.Worker, error) {
	return (&reader{name: name, lenient: true}).single(data)
}

// single reads a document that is one worker.
func (r *reader) single(data []byte) (*worker.Worker, error) {
	body := r.document(data)
	var w *worker.Worker
	if body != nil {
		w = r.worker(body)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return w, nil
}

// reader walks a parsed document and collects faults.
type reader struct {
	name    string
	lenient bool         // unknown keys are not faults
	what    string       // what is being read: "file", "worker 7"
	in      string       // the inner mapping that is being read, with a dot behind: "bootstrap."
	key     string       // the key whose value is being read
	asked   bool         // the engine of the worker that is being read is asked for its facts
	given   worker.Facts // the facts of that worker that were read
	faults  []error
	more    int // faults beyond maxFaults
}

func (r *reader) err() error {
	if r.more > 0 {
		return errors.Join(append(r.faults, fmt.Errorf("%s: and %d more", r.name, r.more))...)
	}
	return errors.Join(r.faults...)
}

func (r *reader) faultAt(line int, format string, a ...any) {
	if len(r.faults) == maxFaults {
		r.more++
		return
	}
	r.faults = append(r.faults, fmt.Errorf("%s:%d: %s", r.name, line, fmt.Sprintf(format, a...)))
}

func (r *reader) fault(n ast.Node, format string, a ...any) {
	r.faultAt(line(n), format, a...)
}

// bad adds a fault of the value of the key that is being read.
func (r *reader) bad(v ast.Node, format string, a ...any) {
	r.fault(v, "%s: %s%s%s", r.what, r.in, r.key, fmt.Sprintf(format, a...))
}

// where names the mapping that is being read.
func (r *reader) where() string {
	if r.in == "" {
		return r.what
	}
	return r.what + ": " + strings.TrimSuffix(r.in, ".")
}

func line(n ast.Node) int {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key // the token of a mapping is a colon, not where the mapping begins
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 1
	}
	return n.GetToken().Position.Line
}

// document returns the body of the only document, or nil after a fault.
func (r *reader) document(data []byte) ast.Node {
	if len(data) > MaxBytes {
		r.faultAt(1, "%d bytes: expected at most %d", len(data), MaxBytes)
		return nil
	}
	data = strictyaml.WithoutMark(data)
	if at := strictyaml.NotText(data); at >= 0 {
		r.faultAt(1+bytes.Count(data[:at], []byte("\n")), "this is no text file (byte %d is 0x%02x): expected YAML in UTF-8", at, data[at])
		return nil
	}
	if l := tooDeep(data); l > 0 {
		r.faultAt(l, "nested over %d levels deep; expected 4", maxDepth)
		return nil
	}
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		l, text := strictyaml.Syntax(data, err)
		r.faultAt(l, "%s", text)
		return nil
	}
	var body ast.Node
	for _, d := range f.Docs {
		if d.Body == nil {
			continue
		}
		if body != nil {
			r.fault(d.Body, "second document; expected one")
			return nil
		}
		body = d.Body
	}
	if body == nil {
		r.faultAt(1, "nothing in it; expected `workers:` with a list, or `workers: []` for none")
	}
	return body
}

// tooDeep returns the line on which brackets, or dashes and indents, nest deeper than
// maxDepth, or zero. It also counts brackets in strings; no good file has strings with
// so many.
func tooDeep(data []byte) int {
	depth, l, dashes := 0, 1, 0
	for _, c := range data {
		switch c {
		case '\n':
			l, dashes = l+1, 0
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case '-', '?', ':':
			dashes++
		}
		if depth > maxDepth || dashes > 8*maxDepth {
			return l
		}
	}
	return 0
}

// fields calls set for each key of a mapping. Inside of a worker a key with the value
// null counts as absent. set returns false for a key that it does not know: that is a
// fault, unless the reader is lenient. fields returns false if n is no mapping.
func (r *reader) fields(n ast.Node, known string, set func(key string, v ast.Node) bool) bool {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		r.fault(n, "%s: %s: expected a mapping of %s", r.where(), describe(n), known)
		return false
	}
	for _, kv := range m.Values {
		k, ok := kv.Key.(*ast.StringNode)
		if !ok {
			r.fault(kv.Key, "%s: key %q: expected one of %s", r.where(), kv.Key.String(), known)
			continue
		}
		if _, null := kv.Value.(*ast.NullNode); null && r.what != fileWhat {
			continue
		}
		r.key = k.Value
		if !set(k.Value, kv.Value) && !r.lenient {
			if best := strictyaml.Nearest(k.Value, strings.Split(known, ", ")); best != "" {
				r.fault(k, "%s: unknown key %q: did you mean %s?", r.where(), short(k.Value), best)
			} else {
				r.fault(k, "%s: unknown key %q: expected one of %s", r.where(), short(k.Value), known)
			}
		}
	}
	return true
}

// inner reads the mapping that is the value of the present key, as fields does.
func (r *reader) inner(n ast.Node, known string, set func(key string, v ast.Node) bool) {
	r.in, r.key = r.key+".", ""
	r.fields(n, known, set)
	r.in = ""
}

const (
	fileWhat       = "file"
	workerKeys     = "id, role, engine, models, adapters, namespace, deployment, endpoint, dp_size, port_per_rank, block_size, capacity_blocks, max_model_len, eagle, bootstrap, kv_events, model_files, taints, topology_domains, kv_transfer, accepts_aggregated, header_overrides, draining, fronted, facts_unknown, engine_rank, facts, facts_port"
	bootstrapKeys  = "host, port, engine_ids"
	modelFilesKeys = "digest, port"
	kvEventsKeys   = "host, port, replay_port, topic"
	defaultDPRanks = 1
)

// file reads the list of workers, and sets lines to the line where each id is first
// used.
func (r *reader) file(n ast.Node, lines map[worker.ID]int) []*worker.Worker {
	var list ast.Node
	r.what = fileWhat
	if !r.fields(n, "workers", func(k string, v ast.Node) bool {
		if k == "workers" {
			list = v
		}
		return k == "workers"
	}) {
		return nil
	}
	if list == nil {
		r.fault(n, "no key `workers`; expected it with a list, or `workers: []` for none")
		return nil
	}
	seq, ok := list.(*ast.SequenceNode)
	if !ok {
		r.fault(list, "workers: %s: expected a list; write `workers: []` for none", describe(list))
		return nil
	}
	ws := make([]*worker.Worker, 0, len(seq.Values))
	addrs := map[netip.AddrPort]int{}
	for _, item := range seq.Values {
		if id, ok := idOf(item); ok { // also if the worker has faults, so that all faults are reported at once
			if l, dup := lines[id]; dup {
				r.fault(item, "worker %d: id is already used on line %d", id, l)
			} else {
				lines[id] = line(item)
			}
		}
		w := r.worker(item)
		if w == nil {
			continue
		}
		if _, named := lines[w.ID]; !named {
			lines[w.ID] = line(item)
		}
		if !w.Fronted {
			r.claim(addrs, w, item)
		}
		ws = append(ws, w)
	}
	return ws
}

// claim adds the addresses of w to addrs. If others have some of them already, the
// first one is a fault.
func (r *reader) claim(addrs map[netip.AddrPort]int, w *worker.Worker, item ast.Node) {
	told := false
	for a := range w.Addresses() {
		if l, dup := addrs[a]; dup && !told {
			r.fault(item, "worker %d: endpoint %s is already used on line %d", w.ID, a, l)
			told = true
		}
		addrs[a] = line(item)
	}
}

// idNode returns the value of a worker's id, or nil if it has none.
func idNode(item ast.Node) ast.Node {
	m, ok := item.(*ast.MappingNode)
	if !ok {
		return nil
	}
	for _, kv := range m.Values {
		if k, ok := kv.Key.(*ast.StringNode); ok && k.Value == "id" {
			return kv.Value
		}
	}
	return nil
}

// idOf returns the id of a worker, even if the rest of it cannot be read. False means
// that it has no valid id.
func idOf(item ast.Node) (worker.ID, bool) {
	n := idNode(item)
	if n == nil {
		return 0, false
	}
	return readID(n)
}

// nameOf returns the name of a worker for faults.
func nameOf(item ast.Node) string {
	if id, ok := idOf(item); ok {
		return "worker " + id.String()
	}
	if _, mapping := item.(*ast.MappingNode); mapping && idNode(item) == nil {
		return "a worker without id"
	}
	return "worker"
}

// worker reads one item of the list; it returns nil after a fault in the item.
func (r *reader) worker(n ast.Node) *worker.Worker {
	w := &worker.Worker{DPSize: defaultDPRanks}
	before := len(r.faults) + r.more
	r.what = nameOf(n)
	r.asked, r.given = false, 0
	if !r.fields(n, workerKeys, func(k string, v ast.Node) bool {
		r.given |= factOf(k)
		return r.workerField(w, k, v)
	}) {
		return nil
	}
	if len(r.faults)+r.more > before {
		return nil
	}
	r.complete(w)
	if r.asked {
		r.leaveOpen(w, idNode(n) == nil)
	} else if w.FactsPort != 0 {
		r.fault(n, "worker %d: facts_port: expected facts: true, too", w.ID)
		return nil
	}
	if err := w.Validate(); err != nil {
		r.fault(n, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return nil
	}
	for _, p := range []struct {
		key  string
		port uint16
	}{{"port", w.KVEvents.Port}, {"replay_port", w.KVEvents.ReplayPort}} {
		if last := uint32(p.port) + w.DPSize - 1; p.port != 0 && last > 65535 {
			r.fault(n, "worker %d: kv_events.%s %d: rank %d would be at port %d; expected at most 65535", w.ID, p.key, p.port, w.DPSize-1, last)
			return nil
		}
	}
	return w
}

// complete sets the fields whose defaults depend on other fields.
func (r *reader) complete(w *worker.Worker) {
	ip := ""
	if !w.Endpoint.IsZero() {
		ip = w.Endpoint.AddrPort().Addr().String()
	}
	if w.Bootstrap.Port == 0 {
		w.Bootstrap = worker.Bootstrap{} // a host without a port counts as absent
	} else if w.Bootstrap.Host == "" {
		w.Bootstrap.Host = ip
	}
	if w.ModelFiles.Port == 0 {
		w.ModelFiles = worker.ModelFiles{}
	}
	if w.KVEvents.Port == 0 {
		w.KVEvents = worker.KVEvents{}
	} else if w.KVEvents.Host == "" {
		w.KVEvents.Host = ip
	}
}

// host reads a name or an IP address, without brackets.
func (r *reader) host(v ast.Node) string {
	s := strings.TrimSuffix(strings.TrimPrefix(r.text(v), "["), "]")
	if err := worker.CheckHost(s); s != "" && err != nil {
		r.bad(v, " %v", err)
	}
	return s
}
