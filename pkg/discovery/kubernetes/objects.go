package kubernetes

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxPorts is the most target ports of a pool, by its definition.
const MaxPorts = 8

// Pool is what is read of an InferencePool. It is immutable.
type Pool struct {
	Namespace, Name, UID string
	Selector             map[string]string // matchLabels; not empty
	Ports                []uint16          // 1 to MaxPorts, none twice
	Deleting             bool
}

// Pod is what is read of a pod. It is immutable.
type Pod struct {
	Namespace, Name, UID string
	IP                   string
	Labels               map[string]string
	Annotations          map[string]string // those that Baton reads
	Declared             []uint16          // the ports that its containers declare, sidecars included
	Ready                bool
	// Unheard says that only the silence of its node's kubelet has made it not ready.
	Unheard  bool
	Deleting bool
	Finished bool // its containers have ended for good
}

// poolOf reads a pool's object, of the present API or of v1alpha2, where selector and
// port had other forms.
func poolOf(o map[string]any) (*Pool, error) {
	p := &Pool{
		Namespace: text(o, "metadata", "namespace"), Name: text(o, "metadata", "name"), UID: text(o, "metadata", "uid"),
		Deleting: text(o, "metadata", "deletionTimestamp") != "", Selector: texts(o, "spec", "selector", "matchLabels"),
	}
	if p.Selector == nil {
		p.Selector = texts(o, "spec", "selector")
	}
	numbers := []any{at(o, "spec", "targetPortNumber")}
	if list, ok := at(o, "spec", "targetPorts").([]any); ok {
		numbers = nil
		for _, one := range list {
			entry, _ := one.(map[string]any)
			numbers = append(numbers, entry["number"])
		}
	}
	var errs []error
	if len(p.Selector) == 0 {
		errs = append(errs, errors.New("spec.selector.matchLabels is empty: expected at least one label"))
	}
	if len(numbers) > MaxPorts {
		errs = append(errs, fmt.Errorf("spec.targetPorts has %d ports: expected 1 to %d", len(numbers), MaxPorts))
		numbers = nil
	}
	for _, n := range numbers {
		port, ok := portOf(n)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("spec.targetPorts: %v: expected a port from 1 to 65535", n))
		case !slices.Contains(p.Ports, port):
			p.Ports = append(p.Ports, port)
		}
	}
	if len(errs) > 0 {
		return p, errors.Join(errs...)
	}
	return p, nil
}

// podOf reads a pod's object. It keeps nothing of the object but texts.
func podOf(o map[string]any) *Pod {
	p := &Pod{
		Namespace: text(o, "metadata", "namespace"), Name: text(o, "metadata", "name"), UID: text(o, "metadata", "uid"),
		IP: text(o, "status", "podIP"), Deleting: text(o, "metadata", "deletionTimestamp") != "",
		Labels: texts(o, "metadata", "labels"), Annotations: texts(o, "metadata", "annotations"),
	}
	maps.DeleteFunc(p.Annotations, func(name, _ string) bool { return !isRead(name) })
	containers, _ := at(o, "spec", "containers").([]any)
	before, _ := at(o, "spec", "initContainers").([]any)
	for _, c := range before {
		if one, _ := c.(map[string]any); text(one, "restartPolicy") == "Always" { // a sidecar, which runs beside the others
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		one, _ := c.(map[string]any)
		list, _ := one["ports"].([]any)
		for _, entry := range list {
			m, _ := entry.(map[string]any)
			if port, ok := portOf(m["containerPort"]); ok {
				p.Declared = append(p.Declared, port)
			}
		}
	}
	phase := text(o, "status", "phase")
	p.Finished = phase == "Succeeded" || phase == "Failed"
	conditions, _ := at(o, "status", "conditions").([]any)
	holds := map[string]string{}
	for _, c := range conditions {
		one, _ := c.(map[string]any)
		holds[text(one, "type")] = text(one, "status")
	}
	gates, _ := at(o, "spec", "readinessGates").([]any)
	p.Ready = holds["Ready"] == "True"
	// A kubelet sets both, and Ready alone is False only by a gate. When a kubelet has not been heard
	// for a while, the node controller sets Ready of its pods, and nothing else
	// (Kubernetes 1.36, pkg/controller/util/node MarkPodsNotReady).
	p.Unheard = holds["Ready"] == "False" && holds["ContainersReady"] == "True" && len(gates) == 0
	return p
}

// endpoint reports whether the pod may be sent requests. A kubelet that is silent is doubt: the
// way to the apiserver may be cut for all nodes at once, while each engine is well. If the
// machine is dead, its requests show it.
func (p *Pod) endpoint() bool {
	return (p.Ready || p.Unheard) && !p.Deleting && !p.Finished && p.IP != ""
}

// at returns the value at a path of an object, or nil.
func at(o map[string]any, path ...string) any {
	for _, key := range path[:len(path)-1] {
		o, _ = o[key].(map[string]any)
	}
	return o[path[len(path)-1]]
}

func text(o map[string]any, path ...string) string {
	s, _ := at(o, path...).(string)
	return s
}

// texts returns a mapping of texts, in a map of its own, or nil if the value is another.
func texts(o map[string]any, path ...string) map[string]string {
	m, ok := at(o, path...).(map[string]any)
	if !ok {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		s, is := v.(string)
		if !is {
			return nil
		}
		out[k] = s
	}
	return out
}

// portOf reads a port, as the decoder of objects gives numbers.
func portOf(v any) (uint16, bool) {
	n := int64(0)
	switch v := v.(type) {
	case int64:
		n = v
	case float64:
		n = int64(v)
		if float64(n) != v {
			return 0, false
		}
	}
	return uint16(n), n > 0 && n <= 65535 //nolint:gosec // checked beside it
}

// SelectorText writes labels as a label selector, in order.
func SelectorText(labels map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ",")
}
