package admin

import (
	"encoding/json"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// know adds to each candidate how long ago its events were last known to be complete, and
// since when it is stale.
func know(d *decision.Record, s *State) {
	ages, stale := map[worker.Rank]time.Duration{}, map[worker.ID]time.Duration{}
	for i := range s.Workers {
		w := &s.Workers[i]
		if !w.StaleSince.IsZero() {
			stale[w.ID] = max(s.Now.Sub(w.StaleSince.Time), 1)
		}
		for _, r := range w.Ranks {
			if at := r.Events.AsOf; !at.IsZero() {
				ages[worker.Rank{ID: w.ID, DPRank: r.DPRank}] = max(s.Now.Sub(at.Time), 1)
			}
		}
	}
	for _, c := range []*decision.Choice{&d.Prefill, &d.Decode} {
		for i, r := range c.Rows() {
			c.Rows()[i].KnownAgo, c.Rows()[i].StaleFor = ages[r.Rank], stale[r.Rank.ID]
		}
	}
}

// stateDoc is a state with its parts that JSON has in another form.
type stateDoc struct {
	Trouble  []string      `json:"trouble"`  // a line each
	Troubles []troubleJSON `json:"troubles"` // the same, in parts
	State
	UptimeSeconds float64  `json:"uptime_seconds"`
	View          viewJSON `json:"view"`
	Problems      []string `json:"problems"`
}

type troubleJSON struct {
	Kind    trouble.Kind `json:"kind"`
	Subject string       `json:"subject,omitempty"`
	Severe  bool         `json:"severe"`
	Count   int64        `json:"count"`
	Since   Time         `json:"since,omitzero"`
	What    string       `json:"what"`
	Effect  string       `json:"effect,omitempty"`
	Do      string       `json:"do,omitempty"`
}

type viewJSON struct {
	Revision    uint64  `json:"revision,string"`
	Source      string  `json:"source,omitempty"`
	AgeSeconds  float64 `json:"age_seconds"`
	Stale       bool    `json:"stale"`
	StaleReason string  `json:"stale_reason,omitempty"`
}

func stateJSON(s *State) *stateDoc {
	d := &stateDoc{
		State: *s, UptimeSeconds: s.Now.Sub(s.StartedAt).Seconds(), Trouble: []string{}, Troubles: []troubleJSON{}, Problems: []string{},
		View: viewJSON{s.View.Revision, s.View.Source, s.View.Age.Seconds(), s.View.Stale, s.View.StaleReason},
	}
	d.StartedAt = s.StartedAt.UTC()
	// A list is not null if it is empty.
	d.Keys, d.Workers, d.Transitions = append([]KeyRow{}, s.Keys...), append([]WorkerRow{}, s.Workers...), append([]Transition{}, s.Transitions...)
	for _, x := range s.Problems {
		d.Problems = append(d.Problems, x.Text)
	}
	for i := range s.Troubles {
		t := &s.Troubles[i]
		d.Trouble = append(d.Trouble, t.Line())
		d.Troubles = append(d.Troubles, troubleJSON{t.Kind, t.Subject, t.Severe(), t.N(), At(t.Since), t.What, t.Means(), t.Help()})
	}
	return d
}

// MarshalJSON writes the role by its name, and null for each fact of a pair that is not known.
func (w *WorkerRow) MarshalJSON() ([]byte, error) {
	type row WorkerRow // without this method
	d := struct {
		ID   worker.ID `json:"worker_id,string"`
		Role string    `json:"role"`
		row
		Pair map[string]*string `json:"pair_facts"`
	}{w.ID, w.Role.String(), row(*w), make(map[string]*string)}
	// A list is not null if it is empty.
	d.Models, d.Ranks = append([]string{}, w.Models...), append([]RankRow{}, w.Ranks...)
	for i := range w.Pair {
		name := worker.PairFact(i).String() //nolint:gosec // few
		d.Pair[name] = &w.Pair[i]
		if w.Pair[i] == "" {
			d.Pair[name] = nil
		}
	}
	return json.Marshal(d)
}
