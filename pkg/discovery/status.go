package discovery

import (
	"slices"
	"time"
)

// Status is what the page and the JSON state show of discovery. It is a copy.
type Status struct {
	Ready    bool
	Stale    bool
	Revision uint64 // the snapshot's; it counts published sets
	Workers  int    // in the snapshot
	Sources  []SourceStatus
	Problems []Problem
}

// SourceStatus is the state of one source.
type SourceStatus struct {
	Name     string
	State    State
	Revision uint64    // the source's own
	Since    time.Time // when State began
	Entries  int
	// LastError is the last reason why the set was not fresh. It stays after recovery;
	// LastErrorAt is when it came.
	LastError   string
	LastErrorAt time.Time
	Losses      uint64 // how often a fresh set was lost
}

// Status returns the present state.
func (v *View) Status() Status {
	v.mu.Lock()
	defer v.mu.Unlock()
	snap := v.snap.Load()
	st := Status{
		Ready: v.Ready(), Stale: snap.Stale(), Revision: snap.Revision(), Workers: len(snap.Workers()),
		Problems: slices.Clone(v.problems),
	}
	for i, f := range v.feeds {
		st.Sources = append(st.Sources, SourceStatus{
			Name: v.cfg.Sources[i].Name, State: f.reducer.State(), Revision: f.reducer.Revision(),
			Since: f.since, Entries: len(f.reducer.entries),
			LastError: f.lastErr, LastErrorAt: f.lostAt, Losses: f.losses,
		})
	}
	return st
}
