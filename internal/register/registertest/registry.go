package registertest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Registry holds at once what it is told, unless it is closed. The zero value is ready for
// use. It implements register.Registry. Safe for concurrent use.
type Registry struct {
	mu      sync.Mutex // guards the fields below
	rec     *worker.Worker
	life    uint64
	id      worker.ID
	story   []string // what was held, in order
	closed  bool
	refuse  error
	waiting int // calls of Sync under way
}

// Close has Sync wait from now on, as for a registry that is away.
func (r *Registry) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// Refuse has Sync answer with the error from now on.
func (r *Registry) Refuse(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = err
}

// Announce implements register.Registry.
func (r *Registry) Announce(rec worker.Worker, life uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec == nil || life != r.life {
		r.id++
	}
	r.rec, r.life = &rec, life
	text := fmt.Sprintf("%v id %d", rec.Role, r.id)
	if rec.Draining {
		text += " draining"
	}
	r.story = append(r.story, text)
}

// Withdraw implements register.Registry.
func (r *Registry) Withdraw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rec = nil
	r.story = append(r.story, "gone")
}

// Sync implements register.Registry.
func (r *Registry) Sync(ctx context.Context) error {
	closed, refuse := r.enter()
	defer r.leave()
	if closed {
		<-ctx.Done()
	}
	if refuse != nil {
		return refuse
	}
	return ctx.Err()
}

func (r *Registry) enter() (closed bool, refuse error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting++
	return r.closed, r.refuse
}

func (r *Registry) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
}

// ID implements register.Registry.
func (r *Registry) ID() worker.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec == nil || r.closed {
		return 0
	}
	return r.id
}

// Record returns the record that is held, if any.
func (r *Registry) Record() (rec worker.Worker, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec == nil {
		return worker.Worker{}, false
	}
	return *r.rec, true
}

// Told returns what was held, in order: "decode id 1, decode id 1 draining, gone".
func (r *Registry) Told() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.story, ", ")
}

// Waiting returns how many calls of Sync are under way.
func (r *Registry) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}
