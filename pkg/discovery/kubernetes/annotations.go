package kubernetes

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// own is what the names of Baton's own annotations begin with.
const own = "baton.dev/"

// ActivePorts are the annotations that say which of the pool's ports of a pod count: the
// numbers, separated by commas. None counts if the value is empty. If a pod has both, the
// last one counts.
var activePorts = [...]string{"inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports"}

// bootstrapPorts are other projects' annotations for SGLang's bootstrap port.
var bootstrapPorts = [...]string{"sglang.ai/bootstrap-port", "model.aibrix.ai/sglang-bootstrap-port"}

// Annotations lists the names of Baton's own annotations, without the prefix.
func Annotations() []string { return slices.Sorted(maps.Keys(readers())) }

// isRead reports whether an annotation of a pod is kept.
func isRead(name string) bool {
	return strings.HasPrefix(name, own) || slices.Contains(activePorts[:], name) || slices.Contains(bootstrapPorts[:], name)
}

// reader reads the value of one annotation into a worker.
type reader struct {
	fact worker.Facts
	set  func(w *worker.Worker, value string) error
}

// readers are Baton's own annotations. A worker's endpoint is set when they are called.
func readers() map[string]reader {
	port := func(to func(w *worker.Worker) *uint16) func(*worker.Worker, string) error { return field(to, readPort) }
	out := map[string]reader{
		"role":                  {worker.FactRole, field(func(w *worker.Worker) *worker.Role { return &w.Role }, worker.ParseRole)},
		"engine":                {worker.FactEngine, field(func(w *worker.Worker) *worker.Engine { return &w.Engine }, worker.ParseEngine)},
		"models":                {worker.FactModels, readModels},
		"block-size":            {worker.FactBlockSize, count(func(w *worker.Worker, n uint64) { w.BlockSize = uint32(n) }, 1, 1<<20)},      //nolint:gosec // bounded
		"dp-size":               {worker.FactDPSize, count(func(w *worker.Worker, n uint64) { w.DPSize = uint32(n) }, 1, worker.MaxDPSize)}, //nolint:gosec // bounded
		"capacity-blocks":       {worker.FactCapacityBlocks, count(func(w *worker.Worker, n uint64) { w.CapacityBlocks = n }, 0, 1<<40)},
		"max-model-len":         {worker.FactMaxModelLen, count(func(w *worker.Worker, n uint64) { w.MaxModelLen = uint32(n) }, 0, 1<<31)}, //nolint:gosec // bounded
		"eagle":                 {worker.FactEagle, field(func(w *worker.Worker) *bool { return &w.Eagle }, readFlag)},
		"accepts-aggregated":    {worker.FactAcceptsAggregated, field(func(w *worker.Worker) *bool { return &w.AcceptsAggregated }, readFlag)},
		"bootstrap-port":        {worker.FactBootstrap, port(func(w *worker.Worker) *uint16 { return &w.Bootstrap.Port })},
		"bootstrap-host":        {0, field(func(w *worker.Worker) *string { return &w.Bootstrap.Host }, readHost)},
		"facts-port":            {0, port(func(w *worker.Worker) *uint16 { return &w.FactsPort })},
		"kv-events-port":        {worker.FactKVEvents, port(func(w *worker.Worker) *uint16 { return &w.KVEvents.Port })},
		"kv-events-replay-port": {0, port(func(w *worker.Worker) *uint16 { return &w.KVEvents.ReplayPort })},
		"kv-events-topic":       {0, field(func(w *worker.Worker) *string { return &w.KVEvents.Topic }, asIs)},
		"kv-events": {0, func(w *worker.Worker, v string) error {
			on, err := readFlag(v)
			if err == nil && !on {
				w.Fixed |= worker.FactKVEvents
			}
			return err
		}},
	}
	for i := range len(worker.PairFacts{}) {
		name := worker.PairFact(i).String() //nolint:gosec // few
		out[strings.ReplaceAll(name, "_", "-")] = reader{0, field(func(w *worker.Worker) *string { return &w.Pair[i] }, asIs)}
	}
	return out
}

// note is an annotation that cannot be used.
type note struct{ name, text string }

// readAnnotations sets what the pod's annotations say. One that cannot be read counts as
// absent.
func readAnnotations(w *worker.Worker, annotations map[string]string) (bad []note) {
	if len(annotations) == 0 {
		return complete(w, annotations)
	}
	known := readers()
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		short, ours := strings.CutPrefix(name, own)
		if !ours {
			continue
		}
		r, ok := known[short]
		if !ok {
			bad = append(bad, note{name, unknown(short)})
			continue
		}
		next := *w
		err := r.set(&next, strings.TrimSpace(annotations[name]))
		if err == nil {
			err = next.CheckTexts()
		}
		if err != nil {
			bad = append(bad, note{name, fmt.Sprintf("%.60q: %v", annotations[name], err)})
			continue
		}
		*w = next
		w.Fixed |= r.fact
	}
	bad = append(bad, readBootstrapPorts(w, annotations)...)
	return append(bad, complete(w, annotations)...)
}

// readBootstrapPorts reads the other projects' annotations, if Baton's own does not give
// the port.
func readBootstrapPorts(w *worker.Worker, annotations map[string]string) (bad []note) {
	for _, name := range bootstrapPorts {
		v, ok := annotations[name]
		if !ok || w.Bootstrap.Port != 0 {
			continue
		}
		port, err := readPort(strings.TrimSpace(v))
		if err != nil {
			bad = append(bad, note{name, fmt.Sprintf("%.60q: %v", v, err)})
			continue
		}
		w.Bootstrap.Port = port
		w.Fixed |= worker.FactBootstrap
	}
	return bad
}

// complete sets what depends on several annotations: hosts, and the ports of this rank.
func complete(w *worker.Worker, annotations map[string]string) (bad []note) {
	absent := func(name, why string) {
		if text, is := annotations[own+name]; is {
			bad = append(bad, note{own + name, fmt.Sprintf("%.60q: %s", text, why)})
		}
	}
	ip := w.Endpoint.AddrPort().Addr().String()
	if w.Bootstrap.Port != 0 && w.Bootstrap.Host == "" {
		w.Bootstrap.Host = ip
	}
	if w.Bootstrap.Port == 0 {
		if w.Bootstrap.Host != "" {
			absent("bootstrap-host", "expected "+own+"bootstrap-port, too")
		}
		w.Bootstrap = worker.Bootstrap{}
	}
	higher := func(name string, port *uint16) { // rank r's port is higher by r
		n := uint32(*port) + uint32(w.EngineRank)
		if n > 65535 {
			absent(name, fmt.Sprintf("rank %d would be at port %d: expected at most 65535", w.EngineRank, n))
			n = 0
		}
		if *port != 0 {
			*port = uint16(n) //nolint:gosec // bounded
		}
	}
	k := &w.KVEvents
	higher("facts-port", &w.FactsPort)
	higher("kv-events-port", &k.Port)
	higher("kv-events-replay-port", &k.ReplayPort)
	off := strings.TrimSpace(annotations[own+"kv-events"]) == "false"
	if !off && k.Port == 0 {
		if _, given := annotations[own+"kv-events-port"]; !given {
			absent("kv-events-replay-port", "expected "+own+"kv-events-port, too")
			absent("kv-events-topic", "expected "+own+"kv-events-port, too")
		}
	}
	if off || k.Port == 0 {
		*k = worker.KVEvents{}
	} else {
		k.Host = ip
	}
	w.FactsUnknown = !w.Complete()
	return bad
}

// unknown is the text of a fault for an annotation that Baton does not have.
func unknown(short string) string {
	best := strictyaml.Nearest(short, Annotations())
	if best != "" {
		return "there is no such annotation: did you mean " + own + best + "?"
	}
	return "there is no such annotation; expected one of " + strings.Join(Annotations(), ", ")
}

// portsOf returns those of the pool's ports that count for a pod, each with its rank.
func portsOf(ports []uint16, annotations map[string]string) (active []bool, bad []note) {
	active = make([]bool, len(ports))
	for i := range active {
		active[i] = true
	}
	for _, name := range activePorts {
		v, ok := annotations[name]
		if !ok {
			continue
		}
		listed, err := readPorts(v)
		if err != nil {
			bad = append(bad, note{name, fmt.Sprintf("%.60q: %v", v, err)})
			continue
		}
		for i, p := range ports {
			active[i] = slices.Contains(listed, p)
		}
	}
	return active, bad
}

func readPorts(s string) (out []uint16, err error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		port, err := readPort(strings.TrimSpace(part))
		if err != nil {
			return nil, errors.New("expected ports from 1 to 65535, separated by commas")
		}
		out = append(out, port)
	}
	return out, nil
}

func readPort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("expected a port from 1 to 65535")
	}
	return uint16(n), nil
}

func asIs(s string) (string, error) { return s, nil }

func readFlag(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errors.New("expected true or false")
}

func readHost(s string) (string, error) {
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if a, err := netip.ParseAddr(s); err == nil {
		s = a.Unmap().String()
	}
	return s, worker.CheckHost(s)
}

func readModels(w *worker.Worker, v string) error {
	var names []string
	for part := range strings.SplitSeq(v, ",") {
		name := strings.TrimSpace(part)
		if name == "" {
			return errors.New("expected names, separated by commas, none of them empty")
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	w.Models = names
	return nil
}

// field returns a reader of one field of a worker.
func field[T any](of func(w *worker.Worker) *T, read func(string) (T, error)) func(*worker.Worker, string) error {
	return func(w *worker.Worker, v string) (err error) {
		*of(w), err = read(v)
		return unprefixed(err)
	}
}

// count returns a reader of a whole number within bounds.
func count(set func(w *worker.Worker, n uint64), least, most uint64) func(*worker.Worker, string) error {
	return func(w *worker.Worker, v string) error {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("expected a whole number from %d to %d", least, most)
		}
		set(w, n)
		return nil
	}
}

func unprefixed(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.TrimPrefix(err.Error(), "worker: "))
}
