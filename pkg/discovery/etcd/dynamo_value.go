package etcd

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxCard is the longest value that is read in Dynamo's layout, in bytes; a longer one is a
// fault of whoever wrote it. etcd by itself takes up to 1.5 MiB.
const maxCard = 1 << 20

// instanceRecord is the needed part of an instance key's value. Ids are numbers over
// 2^53, so they are read as integers and never as floats.
type instanceRecord struct {
	Type      string `json:"type"`
	ID        uint64 `json:"instance_id"`
	Transport struct {
		TCP string `json:"tcp"` // "host:port", followed by the path of the handler
	} `json:"transport"`
}

// cardRecord is the needed part of a card key's value.
type cardRecord struct {
	Type string `json:"type"`
	ID   uint64 `json:"instance_id"`
	Card struct {
		Name       string     `json:"display_name"`
		BlockSize  uint32     `json:"kv_cache_block_size"`
		ModelType  string     `json:"model_type"`  // names, separated by " | "
		WorkerType string     `json:"worker_type"` // "" in older releases
		Needs      [][]string `json:"needs"`       // sets of roles; the worker needs one of the sets
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

// readInstance returns the endpoint of an instance.
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

// readCard returns the worker of a card, without endpoint, namespace and deployment.
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
		ID: id, Role: role, Engine: engines.InCard(run.Disaggregated != nil), Models: []string{r.Card.Name},
		DPSize: max(run.DPSize, 1), BlockSize: r.Card.BlockSize, CapacityBlocks: run.Blocks, Eagle: run.Eagle,
		// A decode worker whose needs do not include prefill can serve alone.
		AcceptsAggregated: role == worker.Decode && r.Card.Needs != nil && !r.needsPrefill(),
		Fronted:           true,
		KVTransfer:        r.transfer(),
	}
	if len(run.Taints) > 0 { // an empty list means none
		w.Taints = run.Taints
	}
	if len(run.Topology) > 0 {
		w.TopologyDomains = run.Topology
	}
	if d := run.Disaggregated; d != nil && d.Port != 0 && d.Host != "" {
		w.Bootstrap = worker.Bootstrap{Host: strings.TrimSuffix(strings.TrimPrefix(d.Host, "["), "]"), Port: d.Port}
	}
	return w, nil
}

// transfer returns how KV must stay in a topology domain. Without an enforcement it is
// required, since a wrong refusal does less harm than KV outside of its domain.
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

// needsPrefill reports whether every set in Needs contains prefill. It is false without
// sets.
func (r *cardRecord) needsPrefill() bool {
	for _, set := range r.Card.Needs {
		if !slices.Contains(set, "prefill") {
			return false
		}
	}
	return len(r.Card.Needs) > 0
}
