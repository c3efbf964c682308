package plugin

import (
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// eventsGrace is how long the KV events of a rank whose worker answers may fail to come before
// somebody is told: an engine that starts may open the port for them late.
const eventsGrace = 5 * time.Second

// late reports whether a stream of KV events has not been connected for so long that
// somebody has to be told.
func late(r *kvevents.RankStatus, now time.Time) bool {
	return r.State == kvevents.StateConnecting && r.LastError != "" && now.Sub(r.Since) >= eventsGrace
}

// expected reports whether a worker's KV events are to come. From a worker that leaves, is
// set aside, does not answer or has not answered yet no events come either, and of that somebody else tells.
func expected(w *worker.Worker, s *standing, f *admin.FactsRow) bool {
	return !w.Draining && s.Health != admin.Aside && s.Health != admin.Unheard && f.Answered()
}

// eventError is the latest error of a stream, which names the address and what has failed.
func eventError(r *kvevents.RankStatus) string {
	return cut(strings.TrimPrefix(r.LastError, "kvevents: "))
}
