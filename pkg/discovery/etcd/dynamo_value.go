package etcd

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxCard bounds a value of Dynamo's layout; etcd takes no more than 1.5 MiB.
const maxCard = 1 << 20

// instanceRecord is the value of an instance key, as far as it is needed. Ids
// are numbers over 2^53: they are read as what they are, never as floats.
type instanceRecord struct {
	Type      string `json:"type"`
	ID        uint64 `json:"instance_id"`
	Transport struct {
		TCP string `json:"tcp"` // "host:port" and the path of the handler there
	} `json:"transport"`
}

// cardRecord is the value of a card key, as far as it is needed.
type cardRecord struct {
	Type string `json:"type"`
	ID   uint64 `json:"instance_id"`
	Card struct {
		Name       string     `json:"display_name"`
		BlockSize  uint32     `json:"kv_cache_block_size"`
		ModelType  string     `json:"model_type"`  // names with " | " between them
		WorkerType string     `json:"worker_type"` // "" in older releases
		Needs      [][]string `json:"needs"`       // any of these sets of roles
		Runtime    struct {
			Blocks uint64 `json:"total_kv_blocks"`
			DPSize uint32 `json:"data_parallel_size"`
			Eagle  bool   `json:"enable_eagle"`

			Taints      []string          `json:"taints"`
			Topology    map[string]string `json:"topology_domains"`
			Domain      string            `json:"kv_transfer_domain"`
			Enforcement string            `json:"kv_transfer_enforcement"`
			Weight      float64           `json:"kv_transfer_preferred_weight"`

			Disaggregated *struct {
				Host string `json:"bootstrap_host"`
				Port uint16 `json:"bootstrap_port"`
			} `json:"disaggregated_endpoint"`
		} `json:"runtime_config"`
	} `json:"card_json"`
}

func readValue(what string, value []byte, into any) error {
	if len(value) > maxCard {
		return fmt.Errorf("%s: %d bytes; expected at most %d", what, len(value), maxCard)
	}
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// readInstance returns where an instance listens.
func readInstance(value []byte, id worker.ID) (worker.Endpoint, error) {
	var r instanceRecord
	if err := readValue("instance", value, &r); err != nil {
		return worker.Endpoint{}, err
	}
	if r.Type != "Endpoint" || worker.ID(r.ID) != id {
		return worker.Endpoint{}, fmt.Errorf("instance: type %q, id %d; expected Endpoint and that of the key, %d", r.Type, r.ID, id)
	}
	addr, _, _ := strings.Cut(r.Transport.TCP, "/")
	e, err := worker.ParseEndpoint(addr)
	if err != nil {
		return e, fmt.Errorf("instance: transport tcp %q: expected ip:port and a path", r.Transport.TCP)
	}
	return e, nil
}

// readCard returns a worker without its address and its place.
func readCard(value []byte, id worker.ID) (*worker.Worker, error) {
	var r cardRecord
	if err := readValue("card", value, &r); err != nil {
		return nil, err
	}
	if r.Type != "Model" || worker.ID(r.ID) != id {
		return nil, fmt.Errorf("card: type %q, id %d; expected Model and that of the key, %d", r.Type, r.ID, id)
	}
	if r.Card.Name == "" {
		return nil, fmt.Errorf("card: display_name: expected the model's name")
	}
	role, err := r.role()
	if err != nil {
		return nil, err
	}
	run := r.Card.Runtime
	w := &worker.Worker{
		ID: id, Role: role, Engine: worker.VLLM, Models: []string{r.Card.Name},
		DPSize: max(run.DPSize, 1), BlockSize: r.Card.BlockSize, CapacityBlocks: run.Blocks, Eagle: run.Eagle,
		// A decode worker that names what it needs, and not prefill, can do without.
		AcceptsAggregated: role == worker.Decode && r.Card.Needs != nil && !r.needsPrefill(),
		Fronted:           true,
		KVTransfer:        r.transfer(),
	}
	if len(run.Taints) > 0 { // an empty list is none
		w.Taints = run.Taints
	}
	if len(run.Topology) > 0 {
		w.TopologyDomains = run.Topology
	}
	if d := run.Disaggregated; d != nil {
		w.Engine = worker.SGLang // no other engine meets at an address of its own
		if d.Port != 0 && d.Host != "" {
			w.Bootstrap = worker.Bootstrap{Host: strings.TrimSuffix(strings.TrimPrefix(d.Host, "["), "]"), Port: d.Port}
		}
	}
	return w, nil
}

// transfer reads how KV is to be kept in a topology domain. Without a word on how
// strictly, it is required: to refuse is the safer mistake.
func (r *cardRecord) transfer() worker.KVTransfer {
	run := &r.Card.Runtime
	switch {
	case run.Domain == "":
		return worker.KVTransfer{}
	case run.Enforcement == "" || run.Enforcement == string(worker.Required):
		return worker.KVTransfer{Domain: run.Domain, Enforcement: worker.Required}
	default:
		return worker.KVTransfer{Domain: run.Domain, Enforcement: worker.Enforcement(run.Enforcement), Weight: run.Weight}
	}
}

func (r *cardRecord) role() (worker.Role, error) {
	if r.Card.WorkerType != "" {
		role, err := worker.ParseRole(r.Card.WorkerType)
		if err != nil {
			return 0, fmt.Errorf("card: worker_type %q: expected prefill, decode or aggregated", r.Card.WorkerType)
		}
		return role, nil
	}
	switch {
	case slices.Contains(strings.Split(r.Card.ModelType, " | "), "Prefill"):
		return worker.Prefill, nil
	case r.needsPrefill():
		return worker.Decode, nil
	default:
		return worker.Aggregated, nil
	}
}

// needsPrefill reports whether no set of roles will do without prefill.
func (r *cardRecord) needsPrefill() bool {
	for _, set := range r.Card.Needs {
		if !slices.Contains(set, "prefill") {
			return false
		}
	}
	return len(r.Card.Needs) > 0
}
