package kubernetes

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// Linger is how long a worker drains whose pod the selector has ceased to match: whether
// the pod is still there is not known then. It is as long as a request may take by
// default.
const Linger = 10 * time.Minute

// resource is what is watched.
type resource uint8

const (
	pools resource = iota
	poolPods
	prefillPods
	resources // their number
)

var resourceNames = [...]string{pools: "inferencepools", poolPods: "pods", prefillPods: "pods"}

func (r resource) String() string { return resourceNames[r] }

// input is one thing that a watch tells, or the time.
type input interface{ isInput() }

type (
	// poolsListed is a full listing of the pools of the name: at most one.
	poolsListed struct {
		pools []object[*Pool]
		watch bool // a watch has told it, which goes on
	}
	// poolPut says that the pool is now this one.
	poolPut struct{ object[*Pool] }
	// poolGone says that the pool was deleted.
	poolGone struct{}
	// podsListed is a full listing of the pods that a selector matches.
	podsListed struct {
		of    resource
		by    query
		pods  []*Pod
		watch bool // a watch has told it, which goes on
	}
	// podPut says that a pod is now this one.
	podPut struct {
		of  resource
		by  query
		pod *Pod
	}
	// podGone says that a pod was deleted, or does not match the selector any more. pod is
	// its last state.
	podGone podPut
	// broken says that a list or a watch failed, or that a watch has lost its place.
	broken struct {
		of   resource
		verb string
		// place is set if the watch cannot go on where it was. Only a listing mends this.
		place bool
		why   string
	}
	// resumed says that a watch goes on where it was.
	resumed struct{ of resource }
	// tick is the time.
	tick struct{}
)

// The verbs of questions to the apiserver.
const (
	verbList  = "list"
	verbWatch = "watch"
)

// query says which pods a watch is for. What a watch tells counts only as long as the
// machine wants the pods of its query.
type query struct {
	selector string // "": no watch
	round    int    // which pool it is for: one that comes back is listed anew
}

// object is a value that was read, or why it could not be.
type object[T any] struct {
	value T
	fault string
}

func (poolsListed) isInput() {}
func (poolPut) isInput()     {}
func (poolGone) isInput()    {}
func (podsListed) isInput()  {}
func (podPut) isInput()      {}
func (podGone) isInput()     {}
func (broken) isInput()      {}
func (resumed) isInput()     {}
func (tick) isInput()        {}

// watched is the state of one watch.
type watched struct {
	listed bool
	live   bool // the watch tells every change
	// unlisted and unwatched say why it was last not listed and not watched; "" since it
	// was.
	unlisted, unwatched string
	lost                bool            // its place is lost: only a listing makes it live
	by                  query           // of pods
	pods                map[string]*Pod // by UID; nil before the first listing
}

// machine joins what the watches tell. It is pure: inputs and the time in, events and
// selectors out. Not safe for concurrent use.
type machine struct {
	terms    terms
	ref      string            // names the pool in messages
	prefill  map[string]string // the second selector; nil: none
	watches  [resources]watched
	pool     *Pool  // the last good one; nil: absent, or not read
	fault    string // why the present pool cannot be used
	absent   string // why there is no pool, as a fact; "": there is one, or it is not known
	round    int
	sent     sent
	dirty    bool                       // something was taken that entries depends on
	next     map[string]discovery.Entry // what entries has returned last
	sites    map[place]site             // workers that serve, and those that drain
	draining map[place]time.Time        // until when, if the pod's fate is not known; else zero
}

// sent is what the sink has.
type sent struct {
	revision uint64
	any      bool // a listing was sent
	fresh    bool
	cause    string
	entries  map[string]discovery.Entry
}

// newMachine returns a machine that has read nothing. If fixed is set, it is the pool,
// and none is watched.
func newMachine(ref string, fixed *Pool, prefill map[string]string, t terms) *machine {
	m := &machine{terms: t, ref: ref, prefill: prefill, dirty: true, sites: make(map[place]site), draining: make(map[place]time.Time)}
	m.sent.entries = make(map[string]discovery.Entry)
	if fixed != nil {
		m.terms.standalone = true
		m.pool = fixed
		m.watches[pools] = watched{listed: true, live: true}
	}
	return m
}

// restart forgets what the sink and the watches were told, before another run. What was
// sent stays the set that the sink has.
func (m *machine) restart() {
	for r := range m.watches {
		if w := &m.watches[r]; resource(r) != pools || !m.terms.standalone { //nolint:gosec // few
			w.live = false
		}
	}
	m.round++
	m.sent.fresh, m.sent.cause = false, ""
}

// queries says which pods are to be watched, by the resource.
func (m *machine) queries() (out [resources]query) {
	if m.pool == nil {
		return out
	}
	out[poolPods] = query{SelectorText(m.pool.Selector), m.round}
	if len(m.prefill) > 0 {
		out[prefillPods] = query{SelectorText(m.prefill), m.round}
	}
	return out
}

// presence says whether the pool exists, and why not. known is false while this is not
// known, or its pods are not.
func (m *machine) presence() (exists bool, why string, known bool) {
	return m.absent == "", m.absent, m.known()
}

// take takes one input.
func (m *machine) take(in input) {
	m.dirty = true
	switch in := in.(type) {
	case poolsListed:
		m.watches[pools].read(in.watch)
		if len(in.pools) == 0 {
			m.leave("does not exist")
			return
		}
		m.setPool(in.pools[0])
	case poolPut:
		m.setPool(in.object)
	case poolGone:
		m.leave("was deleted")
	case podsListed:
		m.podsListed(in)
	case podPut:
		if w := &m.watches[in.of]; w.by == in.by && w.pods != nil {
			w.pods[in.pod.UID] = in.pod
		}
	case podGone:
		m.podGone(in)
	case broken:
		w := &m.watches[in.of]
		w.live, w.lost = false, w.lost || in.place
		why := fmt.Sprintf("%s of %s in namespace %s: %s", in.verb, in.of, m.namespace(), in.why)
		if in.verb == verbList {
			w.unlisted = why
		} else {
			w.unwatched = why
		}
	case resumed:
		if w := &m.watches[in.of]; w.listed && !w.lost {
			w.live, w.unwatched = true, ""
		}
	case tick:
	}
}

// read notes that a full listing has come. By itself it says nothing of a watch that was
// refused: that the set is fresh shows when a watch follows it.
func (w *watched) read(watching bool) {
	if watching {
		w.unwatched = ""
	}
	w.listed, w.lost, w.unlisted = true, false, ""
	w.live = w.unwatched == ""
}

// namespace is the namespace that is read.
func (m *machine) namespace() string {
	namespace, _, _ := strings.Cut(m.ref, "/")
	return namespace
}

// podsListed takes a listing of pods, unless others are wanted by now.
func (m *machine) podsListed(in podsListed) {
	w := &m.watches[in.of]
	if m.queries()[in.of] != in.by {
		return
	}
	before := w.pods
	again := w.by.selector == in.by.selector
	w.read(in.watch)
	w.by, w.pods = in.by, make(map[string]*Pod, len(in.pods))
	for _, p := range in.pods {
		w.pods[p.UID] = p
	}
	for uid := range before { // a pod that the same selector finds no more was deleted
		if w.pods[uid] == nil && again {
			m.forget(uid)
		}
	}
}

// setPool takes the pool's present state. A pool that cannot be used leaves the last good
// one in place.
func (m *machine) setPool(o object[*Pool]) {
	switch {
	case o.value != nil && o.value.Deleting:
		m.leave("is being deleted")
		return
	case o.fault != "":
		m.fault = o.fault
		return
	}
	m.pool, m.fault, m.absent = o.value, "", ""
}

// leave forgets the pool and its pods.
func (m *machine) leave(why string) {
	m.pool, m.fault, m.absent = nil, "", why
	m.round++
	m.watches[poolPods], m.watches[prefillPods] = watched{}, watched{}
	clear(m.sites)
	clear(m.draining)
}

// podGone removes a pod. If it was not being deleted, the selector has ceased to match it,
// or it was removed by force: what it serves may go on for a while.
func (m *machine) podGone(in podGone) {
	w := &m.watches[in.of]
	if w.by != in.by || w.pods == nil {
		return
	}
	delete(w.pods, in.pod.UID)
	if in.pod.Deleting || in.pod.Finished {
		m.forget(in.pod.UID)
	}
}

// forget drops the workers of a pod that is gone.
func (m *machine) forget(uid string) {
	for at := range m.sites {
		if at.uid == uid {
			delete(m.sites, at)
			delete(m.draining, at)
		}
	}
}

// known reports whether pool and pods have all been read.
func (m *machine) known() bool {
	for r, q := range m.queries() {
		if w := &m.watches[r]; q.selector != "" && (w.pods == nil || w.by.selector != q.selector) {
			return false
		}
	}
	return m.watches[pools].listed && (m.pool != nil || m.absent != "")
}

// trouble says why the set may not be what the apiserver has, or returns "".
func (m *machine) trouble() string {
	var all []string
	for r := range m.watches {
		w := &m.watches[r]
		if resource(r) != pools && m.queries()[r].selector == "" { //nolint:gosec // few
			continue
		}
		for _, why := range [...]string{w.unlisted, w.unwatched} {
			if why != "" && !slices.Contains(all, why) {
				all = append(all, why)
			}
		}
	}
	return strings.Join(all, "; ")
}

// live reports whether every watch tells every change.
func (m *machine) live() bool {
	for r, q := range m.queries() {
		if (resource(r) == pools || q.selector != "") && !m.watches[r].live { //nolint:gosec // few
			return false
		}
	}
	return true
}

// events returns what the sink is to be told now, in order.
func (m *machine) events(now time.Time) []discovery.Event {
	if !m.known() {
		// The set that was sent stays. A watch that is not listed yet is no news, unless it
		// fails.
		return m.stale(m.why())
	}
	next := m.entries(now)
	changed := m.changes(next)
	if !m.live() {
		var out []discovery.Event
		if !m.sent.any || len(changed) > 0 {
			out = append(out, m.list(next))
		}
		return append(out, m.stale(m.why())...)
	}
	switch {
	case !m.sent.any || !m.sent.fresh:
		return []discovery.Event{m.list(next)}
	case len(changed) > 0:
		b := discovery.Batch{Revision: m.sent.revision + 1, After: m.sent.revision, Ops: changed}
		m.sent.revision++
		m.sent.note(next, m.sent.revision)
		return []discovery.Event{b}
	}
	return nil
}

// why is the trouble, or that a fault of the pool keeps it from being known.
func (m *machine) why() string {
	trouble := m.trouble()
	if trouble != "" {
		return trouble
	}
	if m.fault != "" {
		return "pool " + m.ref + ": " + m.fault
	}
	return ""
}

// stale returns a Broken if the sink does not know of it.
func (m *machine) stale(why string) []discovery.Event {
	if why == "" || !m.sent.fresh && m.sent.cause == why {
		return nil
	}
	m.sent.fresh, m.sent.cause = false, why
	return []discovery.Event{discovery.Broken{Reason: why}}
}

// list returns a listing of the entries.
func (m *machine) list(next map[string]discovery.Entry) discovery.Event {
	m.sent.revision++
	m.sent.any, m.sent.fresh, m.sent.cause = true, true, ""
	m.sent.note(next, m.sent.revision)
	l := discovery.List{Revision: m.sent.revision}
	for _, key := range slices.Sorted(maps.Keys(next)) {
		l.Entries = append(l.Entries, m.sent.entries[key])
	}
	return l
}

// note takes the entries as sent. An entry keeps the revision at which it last changed:
// of two workers at one address the one that was written last has it.
func (s *sent) note(next map[string]discovery.Entry, revision uint64) {
	for key, e := range next {
		was, held := s.entries[key]
		e.Revision = revision
		if held && same(was, e) {
			e.Revision = was.Revision
		}
		next[key] = e
	}
	s.entries = next
}

// changes lists what is other than what was sent, by key.
func (m *machine) changes(next map[string]discovery.Entry) (ops []discovery.Op) {
	for _, key := range slices.Sorted(maps.Keys(m.sent.entries)) {
		if _, is := next[key]; !is {
			ops = append(ops, discovery.Delete(key, 0))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(next)) {
		if was, held := m.sent.entries[key]; !held || !same(was, next[key]) {
			ops = append(ops, discovery.Put(next[key]))
		}
	}
	return ops
}

// same reports whether two entries hold the same worker and the same fault.
func same(a, b discovery.Entry) bool {
	switch {
	case a.Fault != b.Fault:
		return false
	case a.Worker == nil || b.Worker == nil:
		return a.Worker == b.Worker
	}
	return a.Worker == b.Worker || a.Worker.Equal(b.Worker)
}

// entries makes the entries of the present pool and pods, and moves the workers that are
// endpoints no more to those that drain.
func (m *machine) entries(now time.Time) map[string]discovery.Entry {
	if !m.dirty {
		return m.next
	}
	m.dirty = false
	out := make(map[string]discovery.Entry)
	m.next = out
	if m.pool == nil {
		return out
	}
	j := join(m.pool, m.pods(), &m.terms)
	if m.fault != "" {
		j.fault("pool "+m.ref, "%s: the last good state of it is used", m.fault)
	}
	taken := make(map[netip.AddrPort]bool, len(j.serving))
	for at, s := range j.serving {
		if was, held := m.sites[at]; held && was.worker.Equal(s.worker) {
			s = was
		}
		m.sites[at] = s
		delete(m.draining, at)
		taken[s.worker.Endpoint.AddrPort()] = true
	}
	for at, s := range m.sites {
		if _, serves := j.serving[at]; !serves && !m.drain(at, &s, j.pods, taken, now) {
			delete(m.sites, at)
			delete(m.draining, at)
			continue
		}
		m.sites[at] = s
		out[s.key] = discovery.Entry{Key: s.key, Worker: s.worker}
	}
	for _, f := range j.faults {
		out[f.Key] = f
	}
	return out
}

// drain marks a worker that is no endpoint any more. It returns false if the worker has
// nothing left to drain: its pod is gone, or its address another's.
func (m *machine) drain(at place, s *site, pods map[string]bool, taken map[netip.AddrPort]bool, now time.Time) bool {
	until, known := m.draining[at]
	serves, there := pods[at.uid]
	switch {
	case taken[s.worker.Endpoint.AddrPort()], there && !serves:
		return false
	case there:
		until = time.Time{}
	case !known || until.IsZero():
		until = now.Add(Linger)
	case !now.Before(until):
		return false
	}
	m.draining[at] = until
	if !s.worker.Draining {
		w := *s.worker
		w.Draining = true
		s.worker = &w
	}
	return true
}

// lingers reports whether workers leave by the time alone.
func (m *machine) lingers() bool {
	for _, until := range m.draining {
		if !until.IsZero() {
			return true
		}
	}
	return false
}

// pods lists the pods of both selectors, each once.
func (m *machine) pods() (out []found) {
	second := m.watches[prefillPods].pods
	for uid, p := range m.watches[poolPods].pods {
		if _, both := second[uid]; !both {
			out = append(out, found{p, false})
		}
	}
	for _, p := range second {
		out = append(out, found{p, true})
	}
	return out
}
