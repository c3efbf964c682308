package plugin

import (
	"strconv"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// history keeps the latest changes of state, for the page. Safe for concurrent use.
type history struct {
	mu   sync.Mutex
	last []admin.Transition // newest first
}

const historySize = 50

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
			h.add(admin.Transition{At: now, What: strconv.Itoa(len(x.ids)) + " workers", From: x.from, To: x.to, Why: "discovery"})
			continue
		}
		for _, id := range x.ids {
			h.add(admin.Transition{At: now, What: "worker " + placed(x.snap, id), From: x.from, To: x.to, Why: "discovery"})
		}
	}
}

func newHistory() *history { return &history{} }

func (h *history) add(t admin.Transition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = append([]admin.Transition{t}, h.last[:min(len(h.last), historySize-1)]...)
}

func (h *history) list() []admin.Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]admin.Transition(nil), h.last...)
}
