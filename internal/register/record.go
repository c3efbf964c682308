package register

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Override is what the operator says of the worker; it overrides what the engine says. A
// zero field says nothing.
type Override struct {
	Role       worker.Role
	Models     []string
	Namespace  string
	Deployment string

	DPSize         uint32
	PortPerRank    bool // rank r listens at the advertised port plus r
	BlockSize      uint32
	CapacityBlocks uint64
	Eagle          *bool // KV blocks are of pairs of tokens
	Pair           worker.PairFacts

	BootstrapHost string
	BootstrapPort uint16

	NoKVEvents   bool     // KV events are not used, whatever the engine says
	KVHosts      []string // several: the ranks are spread over them, in their order
	KVPort       uint16   // of the worker's first rank
	KVReplayPort uint16
	KVTopic      *string

	ModelFiles worker.ModelFiles // served by this process

	AcceptsAggregated *bool // of a decode worker; default: vLLM yes, the others no
	HeaderOverrides   bool

	Taints          []string
	TopologyDomains map[string]string
	KVTransfer      worker.KVTransfer
}

// Annotations of the pod that are used.
const (
	annotationPort = "sglang.ai/bootstrap-port"
	annotationHost = "baton.dev/bootstrap-host"
	annotationPair = "baton.dev/" // and the name of a pair fact, with dashes
)

// Validate returns every fault of o, joined, or nil.
func (o Override) Validate() error {
	var errs []error
	if err := worker.CheckHost(unbracketed(o.BootstrapHost)); o.BootstrapHost != "" && err != nil {
		errs = append(errs, fmt.Errorf("bootstrap host %w", err))
	}
	for _, h := range o.KVHosts {
		if err := worker.CheckHost(unbracketed(h)); err != nil {
			errs = append(errs, fmt.Errorf("kv-events host %w", err))
		}
	}
	if slices.Contains(o.Models, "") {
		errs = append(errs, errors.New("model: expected names, none of them empty"))
	}
	if o.DPSize > worker.MaxDPSize {
		errs = append(errs, fmt.Errorf("dp size %d: expected at most %d", o.DPSize, worker.MaxDPSize))
	}
	labels := worker.Worker{Taints: o.Taints, TopologyDomains: o.TopologyDomains, KVTransfer: o.KVTransfer}
	errs = append(errs, labels.ValidateTopology())
	if why := labels.TopologyFault(); why != "" {
		errs = append(errs, errors.New(why))
	}
	return errors.Join(errs...)
}

func unbracketed(h string) string {
	if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
		return h[1 : len(h)-1]
	}
	return h
}

// errNoRole: each trtllm-serve also serves whole requests. A prefill worker that is
// announced as an aggregated one would give right answers, slowly, and the mistake would
// be found late.
var errNoRole = errors.New("TensorRT-LLM tells no role: expected --role")

// compose makes the record of a worker from what the operator, its pod and its engine
// say; the first one that says something counts. The record has no ID yet. A warning
// names something that works less well than it could. The error says why there is no
// record.
func compose(o Override, f engine.Facts, notes map[string]string, at netip.AddrPort) (w worker.Worker, warnings []string, err error) {
	w = worker.Worker{
		Role: cmp.Or(o.Role, f.Role, worker.Aggregated), Engine: f.Engine, Models: f.Models,
		Namespace: o.Namespace, Deployment: o.Deployment,
		DPSize: cmp.Or(o.DPSize, f.DPSize, 1), EngineRank: f.FirstRank, PortPerRank: o.PortPerRank, BlockSize: cmp.Or(o.BlockSize, f.BlockSize),
		CapacityBlocks: o.CapacityBlocks, MaxModelLen: f.MaxModelLen, Eagle: f.Eagle, HeaderOverrides: o.HeaderOverrides,
		Taints: o.Taints, TopologyDomains: o.TopologyDomains, KVTransfer: o.KVTransfer, ModelFiles: o.ModelFiles, Pair: pairFacts(o, f, notes),
	}
	if o.Eagle != nil {
		w.Eagle = *o.Eagle
	}
	if w.CapacityBlocks == 0 && w.BlockSize > 0 {
		w.CapacityBlocks = f.CapacityIn(w.BlockSize)
	}
	if len(o.Models) > 0 {
		w.Models = o.Models
	}
	w.Adapters = f.AdaptersAmong(w.Models)
	w.Endpoint, err = worker.ParseEndpoint(at.String())
	if err != nil {
		return w, nil, err
	}
	if w.Role == worker.Decode {
		w.AcceptsAggregated = engines.Of(f.Engine).DecodePrefills
		if o.AcceptsAggregated != nil {
			w.AcceptsAggregated = *o.AcceptsAggregated
		}
	}
	var errs []error
	if engines.Of(f.Engine).HidesRole && o.Role == 0 {
		errs = append(errs, errNoRole)
	}
	if len(w.Models) == 0 {
		errs = append(errs, errors.New("the engine names no model: expected --model"))
	}
	if w.BlockSize == 0 {
		errs = append(errs, errors.New("the engine tells no block size: expected --block-size"))
	}
	if w.Role == worker.Prefill {
		w.Bootstrap, err = bootstrap(o, f, notes, at.Addr())
		errs = append(errs, cmp.Or(err, noMeeting(&w, len(f.EngineIDs))))
	}
	err = errors.Join(errs...)
	if err == nil {
		checked := w
		checked.ID = 1 // the real ID comes with the lease
		err = checked.Validate()
	}
	if err != nil {
		return w, nil, err
	}
	w.KVEvents, warnings = kvEvents(o, f, at.Addr(), &w)
	if why := new(discovery.Addresses).Refuse(&w, false); why != "" {
		warnings = append(warnings, "plugins refuse the worker: "+why+"; --advertise names another address")
	}
	return w, warnings, nil
}

// noMeeting says why decode cannot meet a prefill worker, whose engine has named so many IDs.
func noMeeting(w *worker.Worker, ids int) error {
	switch {
	case !w.LacksBootstrap():
		return nil
	case !w.Bootstrap.IsZero():
		return fmt.Errorf("its bootstrap server names %d engines for %d ranks", ids, w.DPSize)
	}
	return errors.New("a prefill worker of " + engines.Of(w.Engine).Pages.Title + " without a bootstrap port: expected --bootstrap-port, the annotation " + annotationPort + " or disaggregation_bootstrap_port of the engine")
}

// pairFacts finds what the worker's partner must share: by flag, else annotation, else engine.
func pairFacts(o Override, f engine.Facts, notes map[string]string) (out worker.PairFacts) {
	for i := range out {
		name := strings.ReplaceAll(worker.PairFact(i).String(), "_", "-") //nolint:gosec // few
		out[i] = cmp.Or(o.Pair[i], strings.TrimSpace(notes[annotationPair+name]), f.Pair[i])
	}
	return out
}

// bootstrap finds where decode workers meet this prefill worker: by flag, else
// annotation, else engine, and for the host in the end by the worker's own address. A
// host without a port counts as none (docs/behaviour.md#addresses).
func bootstrap(o Override, f engine.Facts, notes map[string]string, own netip.Addr) (worker.Bootstrap, error) {
	port := o.BootstrapPort
	if text := notes[annotationPort]; port == 0 && text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return worker.Bootstrap{}, fmt.Errorf("annotation %s %q: expected a port from 1 to 65535", annotationPort, text)
		}
		port = uint16(n)
	}
	port = cmp.Or(port, f.BootstrapPort)
	if port == 0 {
		return worker.Bootstrap{}, nil
	}
	if text := notes[annotationHost]; o.BootstrapHost == "" && text != "" {
		if err := worker.CheckHost(unbracketed(text)); err != nil {
			return worker.Bootstrap{}, fmt.Errorf("annotation %s %w", annotationHost, err)
		}
	}
	host := cmp.Or(o.BootstrapHost, notes[annotationHost], f.Host, own.String())
	return worker.Bootstrap{Host: unbracketed(host), Port: port, EngineIDs: f.EngineIDs}, nil
}

// kvEvents finds where the worker publishes its KV events. Events in blocks of another
// size would fill the index with hashes that no prompt has: they are not used, and a
// warning says so.
func kvEvents(o Override, f engine.Facts, own netip.Addr, w *worker.Worker) (k worker.KVEvents, warnings []string) {
	if o.NoKVEvents {
		return k, nil
	}
	k = f.KV.At(own.String())
	if o.KVPort != 0 { // of the first rank, and the others follow
		k.Port, k.Ranks = o.KVPort, nil
	}
	k.ReplayPort = cmp.Or(o.KVReplayPort, k.ReplayPort)
	if o.KVTopic != nil {
		k.Topic = *o.KVTopic
	}
	var hosts []string
	for _, h := range o.KVHosts {
		hosts = append(hosts, unbracketed(h))
	}
	switch told := f.KV.BlockSize; {
	case k.Port == 0 && f.KV.Fault != "":
		return worker.KVEvents{}, []string{"no KV events are used: " + f.KV.Fault}
	case k.Port == 0:
		return worker.KVEvents{}, nil
	case o.KVPort == 0 && len(hosts) == 0 && dials(&f.KV, own):
		return worker.KVEvents{}, []string{fmt.Sprintf("the engine sends its KV events to %s:%d, the host in its --kv-events-config, and listens nowhere: "+
			"they are used by plugins that listen there (events.bind); else give it \"endpoint\":\"tcp://*:PORT\"", k.Host, k.Port)}
	case told != 0 && told != w.BlockSize:
		return worker.KVEvents{}, []string{fmt.Sprintf("the engine publishes KV events in blocks of %d tokens, and --block-size is %d: "+
			"its events are not used; leave --block-size out, or give it %d", told, w.BlockSize, told)}
	case f.KV.Nodes > 0 && len(hosts) < 2:
		warnings = append(warnings, f.KV.Fault+": --kv-events-host takes the hosts of all nodes, in the order of their ranks, separated by commas")
	case f.KV.Nodes == 0 && f.KV.Fault != "":
		warnings = append(warnings, f.KV.Fault)
	}
	return k.Placed(w.DPSize, hosts...), warnings
}

// dials reports whether the engine certainly dials whoever takes its KV events: vLLM and SGLang do
// where their endpoint names a host. At an address of another machine vLLM may also listen, by
// "tcp://*:0".
func dials(k *engine.KVEvents, own netip.Addr) bool {
	if k.Host == "" || k.Host == own.String() || k.Listens {
		return false
	}
	at, err := netip.ParseAddr(k.Host)
	return err != nil || at.IsLoopback() != own.IsLoopback() || !k.Exact
}

// sameLife reports whether one record may follow the other under one instance id: whether
// all fields are equal on which the index and the load book depend.
func sameLife(a, b worker.Worker) bool {
	return a.Engine == b.Engine && a.Role == b.Role && a.Endpoint == b.Endpoint &&
		a.DPSize == b.DPSize && a.EngineRank == b.EngineRank && a.PortPerRank == b.PortPerRank && a.BlockSize == b.BlockSize && a.Eagle == b.Eagle
}
