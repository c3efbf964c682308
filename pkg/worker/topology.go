package worker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TopologyTaint is the prefix of taints of topology domains. The domain, "=" and the
// value follow, as in NVIDIA Dynamo.
const TopologyTaint = "dynamo.topology/"

// Bounds of the taints of one worker.
const (
	MaxTaints     = 64  // own taints; as many topology domains are allowed besides
	MaxTaintBytes = 256 // of a taint; also of the taint that a domain and its value make
)

// Enforcement says whether decode may be picked outside of the transfer domain of the
// prefill worker.
type Enforcement string

// The enforcements.
const (
	Required  Enforcement = "required"  // decode outside is never picked: without a worker inside the request fails
	Preferred Enforcement = "preferred" // decode outside costs more, by KVTransfer.Weight
)

// ParseEnforcement reads the name of an enforcement.
func ParseEnforcement(s string) (Enforcement, error) {
	if e := Enforcement(s); e == Required || e == Preferred {
		return e, nil
	}
	return "", fmt.Errorf("worker: enforcement %q: expected required or preferred", s)
}

// KVTransfer binds the decode pick of a disaggregated request to a topology domain of
// its prefill worker, for KV that should not leave that domain
// (docs/behaviour.md#transfer-domain). The zero value binds nothing.
type KVTransfer struct {
	Domain      string      // a key of TopologyDomains; "": no transfer domain
	Enforcement Enforcement // set if and only if Domain is set
	// Weight is the weight of the taint with Preferred, above 0 and at most 1: the cost
	// of decode workers in the domain is multiplied by exp(-tanh(Weight)). With a
	// higher weight, decode outside of the domain is picked less often. With Required
	// it is 0.
	Weight float64
}

// TaintOf returns the taint of a topology domain's value.
func TaintOf(domain, value string) string { return TopologyTaint + domain + "=" + value }

// HasTaint reports whether the worker carries the taint, either among Taints or by one
// of its TopologyDomains. It does not allocate.
func (w *Worker) HasTaint(taint string) bool {
	if slices.Contains(w.Taints, taint) {
		return true
	}
	if pair, is := strings.CutPrefix(taint, TopologyTaint); is {
		if domain, value, ok := strings.Cut(pair, "="); ok && value != "" {
			return w.TopologyDomains[domain] == value
		}
	}
	return false
}

// TopologyFault says why the worker may not be picked because of its transfer domain,
// or returns "". If the domain has no value, it is not known which decode workers are
// inside.
func (w *Worker) TopologyFault() string {
	if d := w.KVTransfer.Domain; d != "" && w.TopologyDomains[d] == "" {
		return fmt.Sprintf("its kv transfer domain %q has no value in its topology domains", d)
	}
	return ""
}

// ValidateTopology returns every fault of taints, domains and transfer, joined, or nil.
// A transfer domain without a value is not a fault here: the value may still come, and
// the worker is shown until then.
func (w *Worker) ValidateTopology() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if len(w.Taints) > MaxTaints {
		bad("taints: %d of them; expected at most %d", len(w.Taints), MaxTaints)
	}
	if len(w.TopologyDomains) > MaxTaints {
		bad("topology_domains: %d of them; expected at most %d", len(w.TopologyDomains), MaxTaints)
	}
	for _, t := range w.Taints {
		if !printable(t) || len(t) > MaxTaintBytes {
			bad("taint %q: expected 1 to %d bytes of printable text", t, MaxTaintBytes)
		}
	}
	for d, v := range w.TopologyDomains {
		if !printable(d) || strings.Contains(d, "=") || v != "" && !printable(v) || len(TaintOf(d, v)) > MaxTaintBytes {
			bad("topology domain %q, value %q: expected printable text, no equals sign in the domain, at most %d bytes", d, v, MaxTaintBytes-len(TopologyTaint)-1)
		}
	}
	switch k := w.KVTransfer; {
	case k.Domain == "" && k != KVTransfer{}:
		bad("kv_transfer: expected a domain with enforcement %q and weight %v", string(k.Enforcement), k.Weight)
	case k.Domain == "":
	case k.Enforcement == Required && k.Weight != 0:
		bad("kv_transfer: weight %v: expected one with enforcement preferred only", k.Weight)
	case k.Enforcement == Preferred && !(k.Weight > 0 && k.Weight <= 1): // NaN too
		bad("kv_transfer: weight %v: expected a number above 0, at most 1", k.Weight)
	case k.Enforcement != Required && k.Enforcement != Preferred:
		bad("kv_transfer: enforcement %q: expected required or preferred", string(k.Enforcement))
	}
	return errors.Join(errs...)
}

func printable(s string) bool {
	return s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
