package kubernetes

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	apilabels "k8s.io/apimachinery/pkg/labels"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Rule says which role a pod has that carries a label, or that a selector selects. Of several
// rules that fit, the first one counts.
type Rule struct {
	Label string
	Value string // AnyValue: every value that no earlier rule names
	// Selector is in place of Label and Value; see ParseRule. NoRole then leaves the pod out, which
	// is no problem of it.
	Selector apilabels.Selector
	// Role is the role; NoRole: Baton cannot use such a pod, which is a problem of it.
	Role worker.Role
}

// AnyValue is the value of a rule for every value of its label.
const AnyValue = "*"

// NoRole is the role of a rule for pods that Baton cannot use.
const NoRole worker.Role = 0

// The presets.
const (
	PresetBaton  = "baton"
	PresetLLMD   = "llm-d" // KServe's LLMInferenceService labels its pods likewise
	PresetDynamo = "dynamo"
	PresetAIBrix = "aibrix"
)

// Presets lists the names of the presets in the order in which they are used by default.
func Presets() []string { return []string{PresetBaton, PresetLLMD, PresetDynamo, PresetAIBrix} }

// Preset returns the rules of a preset.
//
// A pod that may do several things is decided by what Baton can ask of it. One that
// prefills and decodes serves whole requests: Baton would otherwise have to choose one of
// both for it, and so halve what it can do. One that encodes pictures and prefills is a
// prefill worker, whose engine encodes what it prefills. One that only encodes has no
// role here.
func Preset(name string) ([]Rule, error) {
	switch name {
	case PresetBaton:
		const label = "baton.dev/role"
		return []Rule{
			by(label, "prefill", worker.Prefill), by(label, "decode", worker.Decode), by(label, "aggregated", worker.Aggregated), by(label, AnyValue, NoRole),
		}, nil
	case PresetLLMD: // https://github.com/llm-d/llm-d-router; "both" is the older name of prefill-decode
		const label = "llm-d.ai/role"
		return []Rule{
			by(label, "prefill", worker.Prefill), by(label, "decode", worker.Decode),
			by(label, "prefill-decode", worker.Aggregated), by(label, "both", worker.Aggregated),
			by(label, "encode-prefill", worker.Prefill), by(label, "encode-prefill-decode", worker.Aggregated),
			by(label, AnyValue, NoRole),
		}, nil
	case PresetDynamo: // a worker's own part says more than the component's
		const part, component = "nvidia.com/dynamo-sub-component-type", "nvidia.com/dynamo-component-type"
		return []Rule{
			by(part, "prefill", worker.Prefill), by(part, "decode", worker.Decode),
			by(component, "prefill", worker.Prefill), by(component, "decode", worker.Decode),
			by(component, "worker", worker.Aggregated), by(component, "main", worker.Aggregated),
			by(component, AnyValue, NoRole),
		}, nil
	case PresetAIBrix: // roles of a StormService are named by their user: other names say nothing
		const label = "role-name"
		return []Rule{by(label, "prefill", worker.Prefill), by(label, "decode", worker.Decode)}, nil
	}
	return nil, fmt.Errorf("roles preset %.60q: expected %s", name, strings.Join(Presets(), ", "))
}

func by(label, value string, role worker.Role) Rule {
	return Rule{Label: label, Value: value, Role: role}
}

// DefaultRules returns the rules of all presets. No pod carries labels of several.
func DefaultRules() (out []Rule) {
	for _, name := range Presets() {
		rules, _ := Preset(name) // each of them is known
		out = append(out, rules...)
	}
	return out
}

// Validate returns the fault of a rule, or nil.
func (r Rule) Validate() error {
	switch {
	case r.Selector != nil && r.Label+r.Value != "":
		return errors.New("expected a label with a value, or a selector, not both")
	case r.Selector == nil && r.Label == "":
		return errors.New("label: expected the name of a label")
	case r.Selector == nil && r.Value == "":
		return fmt.Errorf("label %s: value: expected one, or %q for every one", r.Label, AnyValue)
	case r.Role > worker.Aggregated:
		return fmt.Errorf("label %s: role: expected prefill, decode, aggregated or none", r.Label)
	}
	return nil
}

// ParseRule reads the selector of a rule in Kubernetes' notation, as "a=b,c in (d,e),!f".
// AnyValue selects every pod.
func ParseRule(selector string) (apilabels.Selector, error) {
	if selector == AnyValue {
		return apilabels.Everything(), nil
	}
	s, err := apilabels.Parse(selector)
	if err == nil && s.Empty() {
		err = fmt.Errorf("expected a label selector, or %q for every pod", AnyValue)
	}
	return s, err
}

// roleOf returns the role by the first rule that fits. told is false if none does. The
// fault says which label has a value that Baton cannot use. NoRole, told and without a fault: the
// pod is left out.
func roleOf(has apilabels.Set, rules []Rule) (role worker.Role, told bool, fault string) {
	for i, r := range rules {
		if r.Selector != nil {
			if r.Selector.Matches(has) {
				return r.Role, true, ""
			}
			continue
		}
		value, carries := has[r.Label]
		if !carries || r.Value != AnyValue && r.Value != value {
			continue
		}
		if r.Role == NoRole {
			return NoRole, true, fmt.Sprintf("label %s is %.60q: it gets no requests; values with a role: %s", r.Label, value, valuesOf(rules[:i], r.Label))
		}
		return r.Role, true, ""
	}
	return NoRole, false, ""
}

// valuesOf lists the values of a label that have a role.
func valuesOf(rules []Rule, label string) string {
	var out []string
	for _, r := range rules {
		if r.Label == label && r.Role != NoRole && !slices.Contains(out, r.Value) {
			out = append(out, r.Value)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
