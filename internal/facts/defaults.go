package facts

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Defaults are what a source's workers are taken for where neither the source nor the
// engine says otherwise. The zero value is the documented default of each field.
type Defaults struct {
	// Engine is the engine that is expected: auto, or one of worker.EngineNames.
	// Default auto. A worker of another engine than the expected one cannot be read. To
	// name the engine saves questions; vllm-mooncake and a TensorRT-LLM without
	// /server_info have to be named.
	Engine string `yaml:"engine"`
	// BlockSize is the tokens in a KV block where the engine does not say. Default 0:
	// such a worker stays without an overlap.
	BlockSize int `yaml:"block_size"`
	// KVEvents says whether workers' KV events are followed. auto: where the engine says
	// that it publishes, and where it does not say, at KVEventsPort if a publisher is
	// there; off: of no worker. Default auto.
	KVEvents string `yaml:"kv_events"`
	// KVEventsPort is the port of rank 0's events where the engine does not say; that of
	// rank r is r higher. Default 5557.
	KVEventsPort int `yaml:"kv_events_port"`
	// ReplayPort is the port of rank 0's replay where the engine does not say. Default 0:
	// such events are not replayed.
	ReplayPort int `yaml:"replay_port"`
}

// The words of Defaults.KVEvents.
const (
	EventsAuto = "auto"
	EventsOff  = "off"
)

const (
	mostPort  = 65535
	mostBlock = 1 << 20 // tokens; far beyond any engine's
)

// DefaultKVEventsPort is where vLLM and SGLang publish unless told otherwise.
const DefaultKVEventsPort = 5557

// WithDefaults returns d with each zero field as documented.
func (d Defaults) WithDefaults() Defaults {
	d.Engine = cmp.Or(d.Engine, string(engine.Auto))
	d.KVEvents = cmp.Or(d.KVEvents, EventsAuto)
	d.KVEventsPort = cmp.Or(d.KVEventsPort, DefaultKVEventsPort)
	return d
}

// Validate returns every fault of d, joined, or nil.
func (d Defaults) Validate() error {
	_, err := engine.ParseKind(d.Engine)
	errs := []error{err}
	for _, n := range []struct {
		name    string
		v, most int
	}{{"block_size", d.BlockSize, mostBlock}, {"kv_events_port", d.KVEventsPort, mostPort}, {"replay_port", d.ReplayPort, mostPort}} {
		if n.v < 0 || n.v > n.most {
			errs = append(errs, fmt.Errorf("%s %d: expected 0 to %d", n.name, n.v, n.most))
		}
	}
	if d.KVEvents != "" && d.KVEvents != EventsAuto && d.KVEvents != EventsOff {
		errs = append(errs, fmt.Errorf("kv_events %q: expected %s or %s", d.KVEvents, EventsAuto, EventsOff))
	}
	return errors.Join(errs...)
}

// kind returns the engine as which a worker is asked.
func (d Defaults) kind(w *worker.Worker) engine.Kind {
	if w.Fixed.Has(worker.FactEngine) && w.Engine != "" {
		return w.Engine
	}
	return engine.Kind(d.Engine)
}
