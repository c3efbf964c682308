package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// ErrResync is wrapped by every refusal of an event. The source must then send a
// listing before anything else.
var ErrResync = errors.New("discovery: resync")

// State is the state of one source.
type State uint8

// The states. A source has a set in Watching and Stale, and none in Empty and Listing.
const (
	Empty    State = iota // the source has not begun
	Listing               // the source has begun; it has sent no full set yet
	Watching              // the set is what the store holds at Revision
	Stale                 // the last good set; it may be out of date
)

var stateNames = [...]string{Empty: "empty", Listing: "listing", Watching: "watching", Stale: "stale"}

// String returns the lower-case name.
func (s State) String() string {
	if int(s) >= len(stateNames) {
		return "invalid"
	}
	return stateNames[s]
}

// MarshalText returns the lower-case name, for the JSON state.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Reducer applies one source's events to its set. It does no I/O and reads no clock.
// Not safe for concurrent use. The zero value has no set.
type Reducer struct {
	state    State
	epoch    string
	revision uint64
	// Invariant: nil if and only if state is Empty or Listing.
	entries map[string]Entry
	cause   string // why the set was last lost; "" while watching
}

// State returns the source's state.
func (r *Reducer) State() State { return r.state }

// Revision returns the revision of the set, or zero if there is none.
func (r *Reducer) Revision() uint64 { return r.revision }

// Cause says why the set is not fresh, or returns "" while watching.
func (r *Reducer) Cause() string { return r.cause }

// HasSet reports whether a full set was ever accepted.
func (r *Reducer) HasSet() bool { return r.entries != nil }

// Entries returns the set sorted by key. The caller owns the slice; the workers are
// shared.
func (r *Reducer) Entries() []Entry {
	es := make([]Entry, 0, len(r.entries))
	for _, k := range slices.Sorted(maps.Keys(r.entries)) {
		es = append(es, r.entries[k])
	}
	return es
}

// Apply applies one event. If it refuses the event, the set stays as it was and is no
// longer fresh; of [Batches] those before the refused one stay applied. The error wraps
// [ErrResync] and says what came and what was expected. Apply panics on a type that is
// not one of this package's events.
func (r *Reducer) Apply(ev Event) error {
	switch ev := ev.(type) {
	case Begin:
		if r.HasSet() {
			if r.state == Watching {
				r.lose("the source lists again")
			}
			return nil
		}
		r.state = Listing
		return nil
	case Broken:
		r.lose(ev.Reason)
		return nil
	case List:
		return r.list(ev)
	case Batch:
		return r.batch(ev)
	case Batches:
		for _, b := range ev {
			if err := r.batch(b); err != nil {
				return err
			}
		}
		return nil
	default:
		panic(fmt.Sprintf("discovery: event of type %T: expected Begin, List, Batch, Batches or Broken", ev))
	}
}

// lose marks the set as no longer fresh.
func (r *Reducer) lose(cause string) {
	r.cause = cause
	if r.HasSet() {
		r.state = Stale
	} else {
		r.state = Listing
	}
}

func (r *Reducer) refuse(format string, a ...any) error {
	text := fmt.Sprintf(format, a...)
	r.lose("refused: " + text)
	return fmt.Errorf("%w: refused: %s", ErrResync, text)
}

func (r *Reducer) list(l List) error {
	if r.HasSet() && l.Epoch == r.epoch && l.Revision < r.revision {
		return r.refuse("listing at revision %d goes back; the set is at revision %d", l.Revision, r.revision)
	}
	next := make(map[string]Entry, len(l.Entries))
	for _, e := range l.Entries {
		if _, dup := next[e.Key]; dup {
			return r.refuse("listing at revision %d holds key %q twice; expected once", l.Revision, e.Key)
		}
		if e.Revision > l.Revision {
			return r.refuse("key %q is at revision %d in a listing at revision %d", e.Key, e.Revision, l.Revision)
		}
		e.Revision = cmp.Or(e.Revision, l.Revision)
		next[e.Key] = admit(e, r.entries[e.Key])
	}
	r.state, r.epoch, r.revision, r.entries, r.cause = Watching, l.Epoch, l.Revision, next, ""
	if l.Stale != "" {
		r.lose(l.Stale)
	}
	return nil
}

func (r *Reducer) batch(b Batch) error {
	switch {
	case r.state != Watching:
		cause := r.cause
		err := r.refuse("revision %d came while %s, the set is at revision %d; expected a listing", b.Revision, r.state, r.revision)
		if cause != "" {
			r.cause = cause // the first loss explains more than what followed
		}
		return err
	case b.Revision < r.revision:
		return r.refuse("revision %d goes back; the set is at revision %d", b.Revision, r.revision)
	case b.Revision == r.revision && len(b.Ops) > 0:
		return r.refuse("duplicate revision %d; the set is at revision %d", b.Revision, r.revision)
	case b.After != 0 && b.After != r.revision:
		return r.refuse("revision %d follows revision %d, which is missing; the set is at revision %d", b.Revision, b.After, r.revision)
	}
	staged := make(map[string]Op, len(b.Ops))
	for _, op := range b.Ops {
		held, ok := r.entries[op.Key]
		if s, touched := staged[op.Key]; touched {
			held, ok = s.Entry, true
			if s.Gone {
				held, ok = Entry{}, false
			}
		}
		if text := misfit(op, held, ok); text != "" {
			return r.refuse("revision %d after %d: key %q: %s", b.Revision, r.revision, op.Key, text)
		}
		if !op.Gone {
			op.Revision = b.Revision
			op.Entry = admit(op.Entry, held)
		}
		staged[op.Key] = op
	}
	for k, op := range staged {
		if op.Gone {
			delete(r.entries, k)
		} else {
			r.entries[k] = op.Entry
		}
	}
	r.revision = b.Revision
	return nil
}

// misfit says why op cannot follow what the key holds, or returns "".
func misfit(op Op, held Entry, ok bool) string {
	counted := op.Version != 0 && (held.Version != 0 || !ok)
	switch {
	case op.Gone && !ok:
		return "delete of an absent key"
	case op.Gone && counted && op.Version != held.Version:
		return fmt.Sprintf("delete of version %d; version %d is held", op.Version, held.Version)
	case !op.Gone && counted && op.Version != held.Version+1:
		return fmt.Sprintf("version %d after version %d; expected %d", op.Version, held.Version, held.Version+1)
	}
	return ""
}

// admit returns e. If e has no valid worker, the result has the reason as its Fault,
// and the worker that the key held before.
func admit(e, held Entry) Entry {
	if e.Fault == "" {
		e.Fault = invalid(e.Worker)
	}
	if e.Fault != "" {
		e.Worker = held.Worker
	}
	return e
}

func invalid(w *worker.Worker) string {
	if w == nil {
		return "no worker given"
	}
	if err := w.Validate(); err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return ""
}

// String returns the state and the set, one line for each entry, for scenario files.
func (r *Reducer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s revision %d", r.state, r.revision)
	if r.cause != "" {
		fmt.Fprintf(&b, " (%s)", r.cause)
	}
	b.WriteByte('\n')
	for _, e := range r.Entries() {
		fmt.Fprintf(&b, "  %s", e.Key)
		if w := e.Worker; w != nil {
			fmt.Fprintf(&b, " = %d %s %s", w.ID, w.Role, w.Endpoint)
		}
		fmt.Fprintf(&b, " at %d", e.Revision)
		if e.Version != 0 {
			fmt.Fprintf(&b, " version %d", e.Version)
		}
		if e.Fault != "" {
			fmt.Fprintf(&b, " fault: %s", e.Fault)
		}
		if e.Note != "" {
			fmt.Fprintf(&b, " note: %s", e.Note)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
