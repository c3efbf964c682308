package record

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// record is a worker as it is written down: these are the keys, read and written. [Marshal]
// writes a record as one JSON object, a list of them as items of a YAML list. JSON is also
// YAML, and JSON's quotes keep a name that looks like a number from being read as one.
type record struct {
	ID        id       `json:"id"`
	Role      role     `json:"role"`
	Engine    engine   `json:"engine,omitempty"`
	Models    []string `json:"models,omitempty"`
	Adapters  []string `json:"adapters,omitempty"`
	Namespace string   `json:"namespace,omitempty"`

	Deployment string   `json:"deployment,omitempty"`
	Endpoint   endpoint `json:"endpoint"`

	DPSize         uint32 `json:"dp_size"`
	PortPerRank    bool   `json:"port_per_rank,omitempty"`
	BlockSize      uint32 `json:"block_size,omitempty"`
	CapacityBlocks uint64 `json:"capacity_blocks,omitempty"`
	MaxModelLen    uint32 `json:"max_model_len,omitempty"`
	Eagle          bool   `json:"eagle,omitempty"`

	KVGroup       string `json:"kv_group,omitempty"`
	EngineVersion string `json:"engine_version,omitempty"`
	Weights       string `json:"weights,omitempty"`
	KVDType       string `json:"kv_dtype,omitempty"`

	Bootstrap *bootstrap `json:"bootstrap,omitempty"`
	KVEvents  *kvEvents  `json:"kv_events,omitempty"`

	ModelFiles *modelFiles `json:"model_files,omitempty"`

	Taints          []string          `json:"taints,omitempty"`
	TopologyDomains map[string]string `json:"topology_domains,omitempty"`
	KVTransfer      *kvTransfer       `json:"kv_transfer,omitempty"`

	AcceptsAggregated bool `json:"accepts_aggregated,omitempty"`
	HeaderOverrides   bool `json:"header_overrides,omitempty"`
	Draining          bool `json:"draining,omitempty"`
	Fronted           bool `json:"fronted,omitempty"`

	FactsUnknown bool          `json:"facts_unknown,omitempty"`
	EngineRank   worker.DPRank `json:"engine_rank,omitempty"`

	// Of what an operator writes: the engine is asked for what is left out, at this port.
	Facts     bool   `json:"facts,omitempty"`
	FactsPort uint16 `json:"facts_port,omitempty"`
}

type bootstrap struct {
	Host      host     `json:"host"`
	Port      uint16   `json:"port"`
	EngineIDs []string `json:"engine_ids,omitempty"`
}

type modelFiles struct {
	Digest string `json:"digest"`
	Port   uint16 `json:"port"`
}

type kvTransfer struct {
	Domain      string      `json:"domain"`
	Enforcement enforcement `json:"enforcement"` // default required
	Weight      float64     `json:"weight,omitempty"`
}

type kvEvents struct {
	Host       host   `json:"host"`
	Port       uint16 `json:"port"`
	ReplayPort uint16 `json:"replay_port,omitempty"`
	Topic      string `json:"topic,omitempty"`

	Ranks []eventsPlace `json:"ranks,omitempty"`
}

type eventsPlace struct {
	Host       host   `json:"host"`
	Port       uint16 `json:"port"`
	ReplayPort uint16 `json:"replay_port,omitempty"`
}

// worker is the worker that r says. What r leaves to a default has it.
func (r *record) worker() *worker.Worker {
	w := &worker.Worker{
		ID: worker.ID(r.ID), Role: worker.Role(r.Role), Engine: worker.Engine(r.Engine), Models: r.Models, Adapters: orNone(r.Adapters),
		Namespace: r.Namespace, Deployment: r.Deployment, Endpoint: worker.Endpoint(r.Endpoint), DPSize: r.DPSize, PortPerRank: r.PortPerRank,
		BlockSize: r.BlockSize, CapacityBlocks: r.CapacityBlocks, MaxModelLen: r.MaxModelLen,
		Pair:  worker.PairFacts{worker.KVGroup: r.KVGroup, worker.EngineVersion: r.EngineVersion, worker.Weights: r.Weights, worker.KVDType: r.KVDType},
		Eagle: r.Eagle, AcceptsAggregated: r.AcceptsAggregated, HeaderOverrides: r.HeaderOverrides, Draining: r.Draining,
		Fronted: r.Fronted, FactsUnknown: r.FactsUnknown, EngineRank: r.EngineRank, FactsPort: r.FactsPort, Taints: orNone(r.Taints),
	}
	if len(r.TopologyDomains) > 0 {
		w.TopologyDomains = r.TopologyDomains
	}
	ip := host("")
	if !w.Endpoint.IsZero() {
		ip = host(w.Endpoint.AddrPort().Addr().String())
	}
	if k := r.KVTransfer; k != nil {
		w.KVTransfer = worker.KVTransfer{Domain: k.Domain, Enforcement: cmp.Or(worker.Enforcement(k.Enforcement), worker.Required), Weight: k.Weight}
	}
	if b := r.Bootstrap; b != nil && b.Port != 0 { // a host without a port counts as absent
		w.Bootstrap = worker.Bootstrap{Host: string(cmp.Or(b.Host, ip)), Port: b.Port, EngineIDs: orNone(b.EngineIDs)}
	}
	if k := r.KVEvents; k != nil && k.Port != 0 {
		w.KVEvents = worker.KVEvents{Host: string(cmp.Or(k.Host, ip)), Port: k.Port, ReplayPort: k.ReplayPort, Topic: k.Topic}
		for _, at := range k.Ranks {
			w.KVEvents.Ranks = append(w.KVEvents.Ranks, worker.EventsPlace{Host: string(at.Host), Port: at.Port, ReplayPort: at.ReplayPort})
		}
	}
	if m := r.ModelFiles; m != nil && m.Port != 0 {
		w.ModelFiles = worker.ModelFiles{Digest: m.Digest, Port: m.Port}
	}
	return w
}

// orNone makes of an empty list the one of a key that is absent.
func orNone(texts []string) []string {
	if len(texts) == 0 {
		return nil
	}
	return texts
}

// recordOf is what is written of w.
func recordOf(w *worker.Worker) *record {
	r := &record{
		ID: id(w.ID), Role: role(w.Role), Engine: engine(w.Engine), Models: w.Models, Adapters: w.Adapters, Namespace: w.Namespace,
		Deployment: w.Deployment, Endpoint: endpoint(w.Endpoint), DPSize: w.DPSize, PortPerRank: w.PortPerRank,
		BlockSize: w.BlockSize, CapacityBlocks: w.CapacityBlocks, MaxModelLen: w.MaxModelLen,
		KVGroup: w.Pair[worker.KVGroup], EngineVersion: w.Pair[worker.EngineVersion], Weights: w.Pair[worker.Weights], KVDType: w.Pair[worker.KVDType],
		Eagle: w.Eagle, AcceptsAggregated: w.AcceptsAggregated, HeaderOverrides: w.HeaderOverrides, Draining: w.Draining,
		Fronted: w.Fronted, FactsUnknown: w.FactsUnknown, EngineRank: w.EngineRank, Taints: w.Taints, TopologyDomains: w.TopologyDomains,
	}
	if k := w.KVTransfer; k != (worker.KVTransfer{}) {
		r.KVTransfer = &kvTransfer{Domain: k.Domain, Enforcement: enforcement(k.Enforcement), Weight: k.Weight}
	}
	if b := w.Bootstrap; !b.IsZero() {
		r.Bootstrap = &bootstrap{Host: host(b.Host), Port: b.Port, EngineIDs: b.EngineIDs}
	}
	if k := w.KVEvents; !k.IsZero() {
		r.KVEvents = &kvEvents{Host: host(k.Host), Port: k.Port, ReplayPort: k.ReplayPort, Topic: k.Topic}
		for _, at := range k.Ranks {
			r.KVEvents.Ranks = append(r.KVEvents.Ranks, eventsPlace{host(at.Host), at.Port, at.ReplayPort})
		}
	}
	if m := w.ModelFiles; !m.IsZero() {
		r.ModelFiles = &modelFiles{Digest: m.Digest, Port: m.Port}
	}
	return r
}

// Marshal returns w as one line of JSON, which [Parse] reads back. It refuses a worker that
// Parse would refuse.
func Marshal(w *worker.Worker) ([]byte, error) {
	line, err := json.Marshal(recordOf(w))
	if err != nil {
		return nil, fmt.Errorf("record: worker %d: %w", w.ID, err)
	}
	back, err := Parse("worker "+w.ID.String(), line)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	bare := *w
	bare.Expired = false // what has become of a record is not in it
	if !back.Equal(&bare) {
		return nil, fmt.Errorf("record: worker %d would not read back the same; expected text in UTF-8, and hosts only with ports", w.ID)
	}
	return line, nil
}

// MarshalList returns a file that [ParseList] reads back as the same workers in the same order.
// It refuses workers that ParseList would refuse.
func MarshalList(ws []*worker.Worker) ([]byte, error) {
	if len(ws) == 0 {
		return []byte("workers: []\n"), nil
	}
	out := []byte("workers:\n")
	for _, w := range ws {
		line, err := Marshal(w)
		if err != nil {
			return nil, err
		}
		out = append(out, "  - "...)
		out = append(out, line...)
		out = append(out, '\n')
	}
	if _, err := ParseList("workers", out); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return out, nil
}
