package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// deserves reports whether something was wrong with a worker itself when a plugin set it
// aside, or had been not long before: what it then had fails later. What is wrong with
// another, with a client, a lane or etcd is no reason.
func (h history) deserves(on target, at time.Duration) bool {
	for i := range h {
		s := &h[i]
		if s.Fault.On != on && !s.Fault.stall() || s.Fault.etcd() {
			continue
		}
		if s.From <= at && (s.To == 0 || at <= s.To+workerReach) {
			return true
		}
	}
	return false
}

// healthWatch reads of one lane's plugin whom it sets aside.
type healthWatch struct {
	w    *world
	lane *lane
	at   map[string]target // who has served at an address
	ids  map[string]string // the addresses of workers
	told map[string]bool   // what was read
	n    int
}

// stateSeen is what a healthWatch reads of a plugin's state.
type stateSeen struct {
	Workers []struct {
		ID       string `json:"worker_id"`
		Endpoint string
	}
	Transitions []struct {
		At              time.Time
		What, To, Cause string
	}
}

// watchHealth holds, until ctx ends, that no healthy worker is set aside.
func (w *world) watchHealth(ctx context.Context) {
	var watches []*healthWatch
	for _, l := range w.lanes {
		watches = append(watches, &healthWatch{w: w, lane: l, at: map[string]target{}, ids: map[string]string{}, told: map[string]bool{}})
	}
	for ctx.Err() == nil {
		for _, h := range watches {
			h.look(ctx)
		}
		pause(ctx, 200*time.Millisecond)
	}
	for _, h := range watches {
		w.events.say("lane %d: workers were set aside %d times", h.lane.index, h.n)
	}
}

func (h *healthWatch) look(ctx context.Context) {
	for _, m := range h.w.members {
		m.mu.Lock()
		h.at[m.address] = m.on
		m.mu.Unlock()
	}
	plugin, _ := h.lane.now()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	page, err := plugin.Page(ctx, "/debug/state")
	var s stateSeen
	if err != nil || json.Unmarshal([]byte(page), &s) != nil {
		return // it is away
	}
	for _, x := range s.Workers {
		h.ids[x.ID] = x.Endpoint
	}
	for _, t := range s.Transitions {
		who, is := strings.CutPrefix(t.What, "worker ")
		id, _, _ := strings.Cut(who, " ") // its role and endpoint follow
		key := id + t.At.String()
		if !is || t.To != "aside" || h.told[key] {
			continue
		}
		h.told[key] = true
		h.n++
		on, known := h.at[h.ids[id]]
		if at := t.At.Sub(h.w.events.started); !known || !h.w.events.history().deserves(on, at) {
			h.w.events.violate(fmt.Sprintf("lane %d set a healthy worker aside: %s (%s at %q) at %.1fs: %s",
				h.lane.index, id, on, h.ids[id], at.Seconds(), t.Cause), h.w.allOf(ctx, h.lane))
		}
	}
}
