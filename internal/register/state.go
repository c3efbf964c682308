package register

import (
	"encoding/json"
	"net/http"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State is what /state shows.
type State struct {
	Phase    string    `json:"phase"`            // away, announcing, announced, draining, gone
	Why      string    `json:"why,omitempty"`    // why it is in that phase
	WorkerID worker.ID `json:"worker_id,string"` // 0: the registry holds nothing
	Held     bool      `json:"held"`             // the registry holds the latest record
	Life     uint64    `json:"life"`             // of the engine, counted from 1
	Healthy  bool      `json:"healthy"`          // the engine is healthy
	Record   *Record   `json:"record,omitempty"` // as it was last announced
	Version  string    `json:"engine_version,omitempty"`
	InFlight *int      `json:"in_flight,omitempty"` // requests, while draining
	Kept     string    `json:"kept,omitempty"`      // what cannot be read at the moment, and is kept from before
	Registry string    `json:"registry,omitempty"`  // why the record is not held, by the registry's last error
	Warnings []string  `json:"warnings,omitempty"`
}

// Record is a worker's record, for people.
type Record struct {
	Role              string        `json:"role"`
	Engine            worker.Engine `json:"engine"`
	Endpoint          string        `json:"endpoint"`
	Models            []string      `json:"models"`
	Namespace         string        `json:"namespace,omitempty"`
	Deployment        string        `json:"deployment,omitempty"`
	DPSize            uint32        `json:"dp_size"`
	PortPerRank       bool          `json:"port_per_rank"`
	BlockSize         uint32        `json:"block_size"`
	CapacityBlocks    uint64        `json:"capacity_blocks"`
	Eagle             bool          `json:"eagle"`
	Pair              string        `json:"pair_facts"`
	Bootstrap         *Bootstrap    `json:"bootstrap,omitempty"`
	KVEvents          *KVEvents     `json:"kv_events,omitempty"`
	AcceptsAggregated bool          `json:"accepts_aggregated"`
	HeaderOverrides   bool          `json:"header_overrides"`
	Draining          bool          `json:"draining"`
}

// Bootstrap is where decode workers meet a prefill worker.
type Bootstrap struct {
	Host string `json:"host"`
	Port uint16 `json:"port"`
}

// KVEvents is where a worker publishes its KV events.
type KVEvents struct {
	Host       string `json:"host"`
	Port       uint16 `json:"port"`
	ReplayPort uint16 `json:"replay_port,omitempty"`
	Topic      string `json:"topic,omitempty"`
}

// state returns the machine's state, for people.
func (m *machine) state() State {
	s := State{
		Phase: m.phase.String(), Why: m.why, Life: m.life, Healthy: m.up && !m.silent, Held: !m.heldAt.IsZero(),
		Version: m.facts.Version, Kept: m.kept, Warnings: m.warnings,
	}
	if m.phase == draining && m.known {
		n := m.inFlight
		s.InFlight = &n
	}
	if m.phase == announced || m.phase == draining {
		s.Record = recordOf(m.rec)
	}
	return s
}

func recordOf(w worker.Worker) *Record {
	r := &Record{
		Role: w.Role.String(), Engine: w.Engine, Endpoint: w.Endpoint.String(), Models: w.Models,
		Namespace: w.Namespace, Deployment: w.Deployment, DPSize: w.DPSize, PortPerRank: w.PortPerRank, BlockSize: w.BlockSize,
		CapacityBlocks: w.CapacityBlocks, Eagle: w.Eagle, Pair: w.Pair.String(), AcceptsAggregated: w.AcceptsAggregated,
		HeaderOverrides: w.HeaderOverrides, Draining: w.Draining,
	}
	if b := w.Bootstrap; !b.IsZero() {
		r.Bootstrap = &Bootstrap{Host: b.Host, Port: b.Port}
	}
	if k := w.KVEvents; !k.IsZero() {
		r.KVEvents = &KVEvents{Host: k.Host, Port: k.Port, ReplayPort: k.ReplayPort, Topic: k.Topic}
	}
	return r
}

func (r *Runner) publish() {
	s := r.m.state()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = s
}

// State returns the present state. Its slices are shared and must not be written to.
func (r *Runner) State() State {
	r.mu.Lock()
	s, trouble := r.state, r.trouble
	r.mu.Unlock()
	s.WorkerID = r.registry.ID()
	s.Held = s.Held && s.WorkerID != 0
	if s.Record == nil || s.Held {
		return s
	}
	s.Registry = trouble
	if s.Phase == announced.String() {
		s.Phase, s.Why = "announcing", "the registry does not hold the record yet"
	}
	return s
}

// Ready reports whether the registry holds the worker as one that may be picked.
func (r *Runner) Ready() bool {
	s := r.State()
	return s.Held && s.Phase == announced.String()
}

// Handler serves GET /healthz (this process runs), /readyz (the registry holds the worker
// as one that may be picked), /state and /metrics.
func (r *Runner) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s := r.State(); !r.Ready() {
			text := "not ready: " + s.Phase + ": " + s.Why
			if s.Registry != "" {
				text += ": " + s.Registry
			}
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(r.State())
	})
	mux.Handle("GET /metrics", r.metrics.page)
	return mux
}
