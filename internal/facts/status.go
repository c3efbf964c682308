package facts

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Row is what is known of one worker's facts, for people.
type Row struct {
	Worker worker.ID
	State  State
	Since  time.Time // of State
	URL    string    // where its engine is asked
	As     string    // the engine as which it is asked
	// ReadAt is when the engine last answered; zero: never.
	ReadAt   time.Time
	Version  string // of the engine
	Failures int    // questions in a row without an answer
	Error    string // of the last question; "": it was answered
	Unread   string // pages that could not be read the last time, and whose facts are kept
	Events   string // what was found where KV events are looked for by default; "": nothing was looked for
}

// Rows returns a row for each worker that is asked, by worker. The slice is the caller's.
func (s *Source) Rows() []Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Row, 0, len(s.rows))
	for _, r := range s.rows {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Row) int { return cmp.Compare(a.Worker, b.Worker) })
	return out
}

func rowOf(x *subject) Row {
	r := Row{
		Worker: x.target.Worker, State: x.state(), Since: x.since, URL: x.target.URL, As: string(x.target.Kind),
		ReadAt: x.readAt, Version: x.reading.Facts.Version, Failures: x.failures, Error: x.err,
	}
	if err := x.reading.Facts.Unread.Err(); err != nil {
		r.Unread = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	t, kv := x.reading.Tried, x.reading.Facts.KV
	switch {
	case dials(x.host, &kv):
		r.Events = "its engine dials " + net.JoinHostPort(kv.Host, strconv.Itoa(int(kv.Port))) + " to publish: events.bind takes such events"
	case t.Found:
		r.Events = "its engine does not say whether it publishes; a publisher is at " + t.At
	case t.At != "":
		r.Events = "its engine does not say whether it publishes; no publisher at " + t.At + ": " + t.Why
	}
	return r
}

func (s *Source) show(x *subject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[x.target.Worker] = rowOf(x)
}

func (s *Source) showAll() {
	rows := make(map[worker.ID]Row, len(s.agenda.subjects))
	for _, x := range s.agenda.subjects {
		rows[x.target.Worker] = rowOf(x)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = rows
}
