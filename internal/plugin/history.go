package plugin

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// history keeps the latest changes of state, for the page. Safe for concurrent use.
type history struct {
	mu   sync.Mutex         // guards the fields below
	last []admin.Transition // newest first

	lately []admin.Lately // who came and went, newest first
}

const (
	historySize = 50
	latelySize  = 12
	// latelyFor is how long who came and went is shown beside what is wrong now: who is called at night looks
	// first for what has changed.
	latelyFor = time.Hour
)

// moved adds the workers that have joined and left: one line for each of a few, one line
// for all if they are many. A store that comes back with a thousand workers must not push
// all else off the page.
func (h *history) moved(before, after *worker.Snapshot, c discovery.Change, now time.Time) {
	const few = 5
	for _, x := range []struct {
		snap     *worker.Snapshot
		ids      []worker.ID
		from, to string
	}{{before, c.Left, "known", "left"}, {after, c.Joined, "unknown", "joined"}} {
		if len(x.ids) > few {
			h.add(admin.Transition{At: admin.At(now), What: strconv.Itoa(len(x.ids)) + " workers", From: x.from, To: x.to, Why: "discovery"})
			continue
		}
		for _, id := range x.ids {
			h.add(admin.Transition{At: admin.At(now), What: "worker " + placed(x.snap, id), From: x.from, To: x.to, Why: "discovery"})
		}
	}
}

// counted adds, of each role, how many workers have left and joined. The first view is no change.
func (h *history) counted(before, after *worker.Snapshot, c discovery.Change, now time.Time) {
	if len(before.Workers()) == 0 {
		return
	}
	left, joined := byRole(workersOf(before, c.Left)), byRole(workersOf(after, c.Joined))
	had, has := byRole(before.Workers()), byRole(after.Workers())
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, role := range []worker.Role{worker.Prefill, worker.Decode, worker.Aggregated} {
		if n := left[role]; n > 0 {
			h.noteLocked(admin.Lately{At: admin.At(now), Text: fmt.Sprintf("%d of %d %s workers left", n, had[role], role)})
		}
		if n := joined[role]; n > 0 {
			h.noteLocked(admin.Lately{At: admin.At(now), Text: fmt.Sprintf("%d of %d %s workers joined", n, has[role], role)})
		}
	}
}

func byRole(ws []*worker.Worker) map[worker.Role]int {
	n := map[worker.Role]int{}
	for _, w := range ws {
		n[w.Role]++
	}
	return n
}

// workersOf returns those of the ids that the snapshot has.
func workersOf(s *worker.Snapshot, ids []worker.ID) (out []*worker.Worker) {
	for _, id := range ids {
		if w := s.Worker(id); w != nil {
			out = append(out, w)
		}
	}
	return out
}

func (h *history) noteLocked(l admin.Lately) {
	h.lately = append([]admin.Lately{l}, h.lately[:min(len(h.lately), latelySize-1)]...)
}

// recently returns who came and went within the last hour, newest first.
func (h *history) recently(now time.Time) (out []admin.Lately) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lately {
		if now.Sub(l.At.Time) <= latelyFor {
			out = append(out, l)
		}
	}
	return out
}

func (h *history) add(t admin.Transition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = append([]admin.Transition{t}, h.last[:min(len(h.last), historySize-1)]...)
}

func (h *history) list() []admin.Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.last)
}
