package prefill

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// State is the state of the prefill activation of one key (model and namespace).
type State uint8

// The states. In PrefillReady, and only there, decode sides are active.
const (
	Absent         State = iota // no prefill endpoint, no decode side
	DecodeWaiting               // decode sides that have not been active, and no prefill endpoint
	PrefillPending              // prefill endpoints are known, but none is ready: docs/behaviour.md#facts-first
	PrefillReady                // an endpoint is ready; present and later decode sides use it
	Deactivated                 // a decode side that was active, and no prefill endpoint any more: docs/behaviour.md#prefill-lost
)

var stateNames = [...]string{
	Absent: "absent", DecodeWaiting: "decode-waiting", PrefillPending: "prefill-pending",
	PrefillReady: "prefill-ready", Deactivated: "deactivated",
}

// String returns the name used in metrics, logs and pages.
func (s State) String() string {
	if int(s) >= len(stateNames) {
		return "invalid"
	}
	return stateNames[s]
}

// EventKind says what happened to a worker of the key.
type EventKind uint8

// The events. Each may be repeated, and they may come in any order. An event that says
// nothing new changes nothing.
const (
	DecodeJoined EventKind = iota
	DecodeLeft
	PrefillSeen // the prefill endpoint is known, but not all of its runtime facts
	PrefillUp   // the prefill endpoint is known with all of its facts: it is ready
	PrefillLeft
)

var eventNames = [...]string{
	DecodeJoined: "decode_joined", DecodeLeft: "decode_left",
	PrefillSeen: "prefill_seen", PrefillUp: "prefill_ready", PrefillLeft: "prefill_left",
}

// String returns the name by which transitions name their cause.
func (k EventKind) String() string {
	if int(k) >= len(eventNames) {
		return "invalid"
	}
	return eventNames[k]
}

// ActivationEvent is one event about one worker.
type ActivationEvent struct {
	Kind   EventKind
	Worker worker.ID
	Side   string // for DecodeJoined: the worker's deployment
}

// Transition is what one event has changed. The names of sides are sorted.
type Transition struct {
	From, To State
	Event    ActivationEvent

	Activated   []string // sides that are active now, and were waiting or new
	Reactivated []string // sides that are active now, and were deactivated
	Deactivated []string // sides that were active, and no longer are
}

// sideState is the state of one decode side.
type sideState uint8

const (
	sideWaiting sideState = iota
	sideActive
	sideDeactivated
)

type side struct {
	state     sideState
	instances int // how many decode workers the side has; at least 1
}

// Activation is the prefill activation of one key: the cached prefill endpoints and the
// decode sides that use them. A decode side is the decode workers of one deployment. It
// is pure. Not safe for concurrent use; the zero value is Absent.
//
// Invariants:
//
//   - A1: if an endpoint is ready every decode side is active; else none is.
//   - A2: a side has as many instances as there are decode workers of its
//     deployment, and at least one.
type Activation struct {
	prefill map[worker.ID]bool   // known endpoints; true: the endpoint is ready
	decode  map[worker.ID]string // the side of each known decode worker
	sides   map[string]side
}

// Apply applies one event. False means that neither the key's state nor any side's
// state has changed.
func (a *Activation) Apply(ev ActivationEvent) (Transition, bool) {
	if a.sides == nil {
		a.prefill, a.decode, a.sides = map[worker.ID]bool{}, map[worker.ID]string{}, map[string]side{}
	}
	t := Transition{From: a.State(), Event: ev}
	switch ev.Kind {
	case DecodeJoined:
		a.joinDecode(&t)
	case DecodeLeft:
		a.leaveDecode(ev.Worker)
	case PrefillUp:
		a.prefill[ev.Worker] = true
		a.activate(&t)
	case PrefillSeen:
		a.prefill[ev.Worker] = false
		a.deactivate(&t)
	case PrefillLeft:
		delete(a.prefill, ev.Worker)
		a.deactivate(&t)
	default:
		panic(fmt.Sprintf("prefill: event of kind %d: expected one of the five", ev.Kind))
	}
	t.To = a.State()
	slices.Sort(t.Activated)
	slices.Sort(t.Reactivated)
	slices.Sort(t.Deactivated)
	return t, t.From != t.To || len(t.Activated)+len(t.Reactivated)+len(t.Deactivated) > 0
}

func (a *Activation) joinDecode(t *Transition) {
	id, name := t.Event.Worker, t.Event.Side
	if was, known := a.decode[id]; known {
		if was == name {
			return
		}
		a.leaveDecode(id) // the worker now names another deployment
	}
	a.decode[id] = name
	s, known := a.sides[name]
	s.instances++
	if !known && a.Ready() > 0 {
		s.state = sideActive
		t.Activated = append(t.Activated, name)
	}
	a.sides[name] = s
}

func (a *Activation) leaveDecode(id worker.ID) {
	name, known := a.decode[id]
	if !known {
		return
	}
	delete(a.decode, id)
	s := a.sides[name]
	s.instances--
	if s.instances == 0 {
		delete(a.sides, name)
		return
	}
	a.sides[name] = s
}

// activate makes every side active. It is called when an endpoint is ready.
func (a *Activation) activate(t *Transition) {
	for name, s := range a.sides {
		switch s.state {
		case sideActive:
			continue
		case sideDeactivated:
			t.Reactivated = append(t.Reactivated, name)
		case sideWaiting:
			t.Activated = append(t.Activated, name)
		}
		s.state = sideActive
		a.sides[name] = s
	}
}

// deactivate deactivates the active sides if no endpoint is ready. If none was ready
// before either, no side is active, and nothing changes.
func (a *Activation) deactivate(t *Transition) {
	if a.Ready() > 0 {
		return
	}
	for name, s := range a.sides {
		if s.state == sideActive {
			t.Deactivated = append(t.Deactivated, name)
			s.state = sideDeactivated
			a.sides[name] = s
		}
	}
}

// State returns the state of the key.
func (a *Activation) State() State {
	switch {
	case a.Ready() > 0:
		return PrefillReady
	case len(a.prefill) > 0:
		return PrefillPending
	}
	for _, s := range a.sides {
		if s.state == sideDeactivated {
			return Deactivated
		}
	}
	if len(a.sides) > 0 {
		return DecodeWaiting
	}
	return Absent
}

// Ready returns how many prefill endpoints are ready.
func (a *Activation) Ready() int {
	n := 0
	for _, ready := range a.prefill {
		if ready {
			n++
		}
	}
	return n
}

// Sides returns how many decode sides there are.
func (a *Activation) Sides() int { return len(a.sides) }

// CanServe reports whether the key may be served (docs/behaviour.md#can-serve). With
// enforced disaggregation that is so while a decode side is active, else always.
func (a *Activation) CanServe(enforced bool) bool {
	return !enforced || len(a.sides) > 0 && a.Ready() > 0
}

// Grade is how far a worker can take part in the activation of its key.
type Grade uint8

// The grades.
const (
	Unfit   Grade = iota // it cannot hand KV over, or take it, and never will: it takes no part
	Pending              // not all of its facts are known yet
	Ready
)

// Follow returns the events that bring the activation from the workers it knows to
// those that are present for its key, by role and grade. A decode worker takes part if
// it is Ready. The argument left names workers that were away meanwhile, even if they
// are present again. Events of workers that come precede those of workers that go. So
// if one endpoint replaced another between two sets, no side is deactivated.
func (a *Activation) Follow(present []*worker.Worker, grade func(*worker.Worker) Grade, left []worker.ID) []ActivationEvent {
	var come, gone, back []ActivationEvent
	here := make(map[worker.ID]worker.Role, len(present))
	for _, w := range present {
		g := grade(w)
		if !takesPart(w, g) {
			continue
		}
		here[w.ID] = w.Role
		switch ev, known, news := a.arrival(w, g); {
		case known && slices.Contains(left, w.ID):
			back = append(back, ev)
		case news:
			come = append(come, ev)
		}
	}
	leave := func(known iter.Seq[worker.ID], role worker.Role, kind EventKind) {
		for _, id := range slices.Sorted(known) {
			if here[id] != role || slices.Contains(left, id) {
				gone = append(gone, ActivationEvent{Kind: kind, Worker: id})
			}
		}
	}
	leave(maps.Keys(a.prefill), worker.Prefill, PrefillLeft)
	leave(maps.Keys(a.decode), worker.Decode, DecodeLeft)
	for _, evs := range [][]ActivationEvent{come, back} {
		slices.SortStableFunc(evs, func(a, b ActivationEvent) int { return cmp.Compare(a.Worker, b.Worker) })
	}
	return slices.Concat(come, gone, back)
}

// takesPart reports whether a worker of this grade takes part in the activation of its key.
func takesPart(w *worker.Worker, g Grade) bool {
	return w.Role == worker.Prefill && g != Unfit || w.Role == worker.Decode && g == Ready
}

// arrival returns the event with which a worker that takes part comes, whether it is known in
// this role, and whether the event would change anything.
func (a *Activation) arrival(w *worker.Worker, g Grade) (ev ActivationEvent, known, news bool) {
	ev = ActivationEvent{Worker: w.ID}
	if w.Role == worker.Decode {
		ev.Kind, ev.Side = DecodeJoined, w.Deployment
		side, known := a.decode[w.ID]
		return ev, known, !known || side != ev.Side
	}
	ev.Kind = PrefillSeen
	if g == Ready {
		ev.Kind = PrefillUp
	}
	ready, known := a.prefill[w.ID]
	return ev, known, !known || ready != (g == Ready)
}
