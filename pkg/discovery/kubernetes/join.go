package kubernetes

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// terms are the settings by which pods become workers. Read-only.
type terms struct {
	rules        []Rule
	kvGroupLabel string // "": none
	// namespace is the namespace of the workers, in Baton's sense.
	namespace string
	// prefillPorts are the ports of pods of the second selector; empty: the pool's.
	prefillPorts []uint16
	// standalone is set if a selector stands in a pool's place, which has no name.
	standalone bool
}

// found is a pod with the selector that has found it.
type found struct {
	*Pod
	prefill bool // the second one, whose pods prefill
}

// place names one worker: a port of one life of a pod.
type place struct {
	uid  string
	port uint16
}

// site is what is known of one worker.
type site struct {
	key    string
	worker *worker.Worker
}

// joined is what a pool and its pods make.
type joined struct {
	serving map[place]site
	// pods says of each pod, by its UID, whether it may still serve what it has begun.
	pods map[string]bool
	// faults are the entries that hold no worker, sorted by key.
	faults []discovery.Entry
}

// join makes workers of the pods of a pool. It is pure.
func join(p *Pool, pods []found, t *terms) joined {
	j := joined{serving: make(map[place]site), pods: make(map[string]bool, len(pods))}
	slices.SortFunc(pods, func(a, b found) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID)) })
	ready, labelled, bare := false, false, ""
	for _, pod := range pods {
		j.pods[pod.UID] = !pod.Finished
		if pod.endpoint() {
			ready = true
			told := j.add(p, pod, t)
			labelled = labelled || told
			if !told && bare == "" {
				bare = pod.Name
			}
		}
	}
	if labelled && bare != "" {
		j.fault(t.nameOf(p)+" roles", "some of its pods have a label that says their role, and others have none, as %s: of those the engine says it, else they serve whole requests", bare)
	}
	switch {
	case len(pods) == 0:
		j.fault(t.nameOf(p), "it selects no pod: %s", SelectorText(p.Selector))
	case !ready:
		j.fault(t.nameOf(p), "none of the pods that it selects is ready: %s", SelectorText(p.Selector))
	}
	slices.SortStableFunc(j.faults, func(a, b discovery.Entry) int { return cmp.Compare(a.Key, b.Key) })
	// Most faults of annotations are the same for each port of a pod.
	j.faults = slices.CompactFunc(j.faults, func(a, b discovery.Entry) bool { return a.Key == b.Key })
	return j
}

// nameOf is how messages name a pool.
func (t *terms) nameOf(p *Pool) string {
	if t.standalone {
		return "selector in " + p.Namespace
	}
	return "pool " + p.Namespace + "/" + p.Name
}

func (j *joined) fault(key, format string, a ...any) {
	j.faults = append(j.faults, discovery.Entry{Key: key, Fault: fmt.Sprintf(format, a...)})
}

// add adds the workers of a pod that is an endpoint. It reports whether the pod's role is known.
func (j *joined) add(p *Pool, pod found, t *terms) (told bool) {
	name := "pod " + pod.Namespace + "/" + pod.Name
	if pod.Unheard {
		j.fault(name+" node", "the apiserver does not hear its node's kubelet: it serves while it answers")
	}
	ip, err := netip.ParseAddr(pod.IP)
	if err != nil {
		j.fault(name, "status.podIP %.60q: expected an IP address", pod.IP)
		return true
	}
	role, told, fault := roleOf(pod.Labels, t.rules)
	if told && role == NoRole && fault == "" && !pod.prefill {
		return true
	}
	if pod.prefill {
		role, told, fault = worker.Prefill, true, ""
	}
	if noted, err := worker.ParseRole(strings.TrimSpace(pod.Annotations[own+"role"])); err == nil {
		role, told, fault = noted, true, ""
	}
	if fault != "" {
		j.fault(name, "%s", fault)
		return true
	}
	ports := p.Ports
	if pod.prefill && len(t.prefillPorts) > 0 {
		ports = t.prefillPorts
	}
	if len(pod.Declared) > 0 && !slices.ContainsFunc(ports, func(port uint16) bool { return slices.Contains(pod.Declared, port) }) {
		j.fault(name+" ports", "its containers declare the ports %s, and none of %s: does the selector match a pod that is no engine?", portsText(pod.Declared), portsText(ports))
	}
	active, bad := portsOf(ports, pod.Annotations)
	for i, port := range ports {
		w := &worker.Worker{
			ID: idOf(pod.Pod, port), Role: worker.Aggregated, Namespace: t.namespace, Deployment: t.deploymentOf(p),
			DPSize: 1, EngineRank: worker.DPRank(i), FactsUnknown: true, //nolint:gosec // at most MaxPorts
		}
		w.Pair[worker.KVGroup] = pod.Labels[t.kvGroupLabel]
		if told {
			w.Role, w.Fixed = role, worker.FactRole
		}
		if len(ports) > 1 { // each rank of the engine is a worker
			w.Fixed |= worker.FactDPSize
		}
		w.Endpoint, err = worker.ParseEndpoint(net.JoinHostPort(ip.String(), strconv.Itoa(int(port))))
		if err != nil {
			j.fault(name, "status.podIP %.60q: expected the address of one machine", pod.IP)
			return true
		}
		bad = append(bad, readAnnotations(w, pod.Annotations)...)
		if active[i] {
			j.serving[place{pod.UID, port}] = site{keyOf(pod.Pod, port), w}
		}
	}
	for _, n := range bad {
		j.fault(name+" annotation "+n.name, "%s", n.text)
	}
	return told
}

func portsText(ports []uint16) string {
	var parts []string
	for _, p := range ports {
		parts = append(parts, strconv.Itoa(int(p)))
	}
	return strings.Join(parts, ", ")
}

// deploymentOf names the pool as a deployment: its decode workers are one decode side.
func (t *terms) deploymentOf(p *Pool) string {
	name := p.Namespace + "/" + p.Name
	return name[:min(len(name), worker.MaxNameBytes)]
}

// keyOf is the key of a worker. People read it: it begins with the pod.
func keyOf(pod *Pod, port uint16) string {
	return fmt.Sprintf("pod %s/%s:%d (uid %.8s)", pod.Namespace, pod.Name, port, pod.UID)
}

// idOf makes a worker's id. It depends on the pod's UID, since another pod may get the
// name and the address, and on nothing that changes in a pod's life.
func idOf(pod *Pod, port uint16) worker.ID {
	sum := sha256.Sum256([]byte(strings.Join([]string{pod.Namespace, pod.Name, pod.UID, strconv.Itoa(int(port))}, "\x00")))
	return worker.ID(max(1, binary.BigEndian.Uint64(sum[:8])))
}
