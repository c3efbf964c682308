package record

import (
	"encoding/json"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// record is a worker as it is in a file. MarshalList writes each worker as one JSON object,
// on a line of a YAML list. JSON is also YAML, and JSON's quotes keep a name that looks
// like a number from being read as one.
type record struct {
	ID        worker.ID `json:"id"`
	Role      string    `json:"role"`
	Engine    string    `json:"engine,omitempty"`
	Models    []string  `json:"models,omitempty"`
	Adapters  []string  `json:"adapters,omitempty"`
	Namespace string    `json:"namespace,omitempty"`

	Deployment string `json:"deployment,omitempty"`
	Endpoint   string `json:"endpoint"`

	DPSize         uint32 `json:"dp_size"`
	PortPerRank    bool   `json:"port_per_rank,omitempty"`
	BlockSize      uint32 `json:"block_size,omitempty"`
	CapacityBlocks uint64 `json:"capacity_blocks,omitempty"`
	MaxModelLen    uint32 `json:"max_model_len,omitempty"`
	Eagle          bool   `json:"eagle,omitempty"`

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
}

type bootstrap struct {
	Host      string   `json:"host"`
	Port      uint16   `json:"port"`
	EngineIDs []string `json:"engine_ids,omitempty"`
}

type modelFiles struct {
	Digest string `json:"digest"`
	Port   uint16 `json:"port"`
}

type kvTransfer struct {
	Domain      string             `json:"domain"`
	Enforcement worker.Enforcement `json:"enforcement"`
	Weight      float64            `json:"weight,omitempty"`
}

type kvEvents struct {
	Host       string `json:"host"`
	Port       uint16 `json:"port"`
	ReplayPort uint16 `json:"replay_port,omitempty"`
	Topic      string `json:"topic,omitempty"`
}

// Marshal returns w as one line of JSON, which [Parse] reads back. It
// refuses a worker that Parse would refuse.
func Marshal(w *worker.Worker) ([]byte, error) {
	rec := record{
		ID: w.ID, Role: w.Role.String(), Engine: string(w.Engine), Models: w.Models, Adapters: w.Adapters, Namespace: w.Namespace,
		Deployment: w.Deployment, Endpoint: w.Endpoint.String(), DPSize: w.DPSize, PortPerRank: w.PortPerRank,
		BlockSize: w.BlockSize, CapacityBlocks: w.CapacityBlocks, MaxModelLen: w.MaxModelLen,
		Eagle: w.Eagle, AcceptsAggregated: w.AcceptsAggregated, HeaderOverrides: w.HeaderOverrides, Draining: w.Draining,
		Fronted: w.Fronted, FactsUnknown: w.FactsUnknown, EngineRank: w.EngineRank, Taints: w.Taints, TopologyDomains: w.TopologyDomains,
	}
	if k := w.KVTransfer; k != (worker.KVTransfer{}) {
		rec.KVTransfer = &kvTransfer{Domain: k.Domain, Enforcement: k.Enforcement, Weight: k.Weight}
	}
	if !w.Bootstrap.IsZero() {
		rec.Bootstrap = &bootstrap{Host: w.Bootstrap.Host, Port: w.Bootstrap.Port, EngineIDs: w.Bootstrap.EngineIDs}
	}
	if k := w.KVEvents; !k.IsZero() {
		rec.KVEvents = &kvEvents{Host: k.Host, Port: k.Port, ReplayPort: k.ReplayPort, Topic: k.Topic}
	}
	if m := w.ModelFiles; !m.IsZero() {
		rec.ModelFiles = &modelFiles{Digest: m.Digest, Port: m.Port}
	}
	line, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("record: worker %d: %w", w.ID, err)
	}
	back, err := Parse("worker "+w.ID.String(), line)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if !back.Equal(w) {
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
