package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
)

// trouble is one thing that is wrong now, in words.
type trouble struct {
	Bad  bool   // requests fail or wait because of it; else they may
	Tag  string // one word to catch the eye; may be empty
	Text string
}

// maxNamed is how many workers the list of troubles names; it counts the others.
const maxNamed = 8

// troubles lists what is wrong, worst first.
func troubles(s *State, recs []decision.Record) []trouble {
	var ts []trouble
	add := func(bad bool, tag, format string, a ...any) {
		ts = append(ts, trouble{bad, tag, fmt.Sprintf(format, a...)})
	}
	if !s.Ready {
		add(true, "NOT READY", "Baton refuses requests: %s.", cmp.Or(s.NotReadyReason, "no reason given"))
	}
	if len(s.Workers) == 0 {
		add(true, "", "The view has no workers.")
	}
	for _, k := range s.Keys {
		if !k.CanServe {
			add(true, "", "Model %s cannot be served%s: %s.", keyName(k.Key), forTime(k.Since, s.Now), cmp.Or(k.Reason, "no reason given"))
		}
	}
	for i := range s.Keys {
		if k := &s.Keys[i]; k.full() {
			add(true, "FULL", "New requests for model %s get 429: its prefill workers have %s prompt tokens queued, the limit is %s.",
				keyName(k.Key), grouped(k.QueuedTokens), grouped(k.MaxQueuedTokens))
		}
	}
	ts = append(ts, bodyTroubles(s)...)
	for _, w := range s.Warnings {
		add(false, w.Tag, "%s.", w.Text)
	}
	if s.View.Stale {
		add(false, "STALE", "The view was last confirmed %s ago%s. Requests go on with it, revision %d.",
			duration(s.View.Age), because(s.View.StaleReason), s.View.Revision)
	}
	for i, p := range s.Problems {
		if i == maxNamed {
			add(false, "", "And %d more entries of discovery like these: see the JSON state.", len(s.Problems)-i)
			break
		}
		add(false, "", "Discovery: %s.", p)
	}
	for _, c := range s.Channels {
		if !c.Up {
			add(false, "", "No KV events come by %s%s: the overlap of its workers may be wrong.", c.Name, because(c.Reason))
		}
	}
	if blocks, ranks := s.shed(); ranks > 0 {
		add(false, "", "For want of memory (index.max_bytes) the index has dropped %s blocks; the overlap of the ranks concerned, %d, counts too little.",
			grouped(blocks), ranks)
	}
	ts = append(ts, silentTroubles(s)...)
	ts = append(ts, workerTroubles(s)...)
	if t, ok := recentTrouble(recs); ok {
		ts = append(ts, t)
	}
	slices.SortStableFunc(ts, func(a, b trouble) int {
		if a.Bad == b.Bad {
			return 0
		}
		if a.Bad {
			return -1
		}
		return 1
	})
	return ts
}

func workerTroubles(s *State) []trouble {
	var ts []trouble
	left, worst := 0, false
	add := func(bad bool, text string) {
		if len(ts) >= maxNamed {
			left, worst = left+1, worst || bad
			return
		}
		ts = append(ts, trouble{Bad: bad, Text: text})
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		since := forTime(w.Since, s.Now)
		switch w.Health {
		case Aside:
			add(true, fmt.Sprintf("Worker %s (%s, id %d) is set aside%s%s.", w.Endpoint, w.Role, w.ID, since, because(w.Reason)))
		case Partly:
			add(true, fmt.Sprintf("Worker %s (%s, id %d) is set aside in part%s%s.", w.Endpoint, w.Role, w.ID, since, because(w.Reason)))
		case Recovering:
			add(false, fmt.Sprintf("Worker %s (%s, id %d) is coming back%s%s.", w.Endpoint, w.Role, w.ID, since, because(w.Reason)))
		case Healthy, Draining:
		}
		if !w.StaleSince.IsZero() {
			add(false, fmt.Sprintf("Worker %s (%s, id %d) is stale%s: its record has expired. Requests go on with it while it answers: see whether its register reaches the store.",
				w.Endpoint, w.Role, w.ID, forTime(w.StaleSince, s.Now)))
		}
		if r := w.inTrouble((*EventStream).partial); r != nil {
			add(false, fmt.Sprintf("KV events of %s (%d/%d) are degraded%s: its overlap may be wrong.",
				w.Endpoint, w.ID, r.DPRank, because(r.Events.Reason)))
		}
	}
	if left > 0 {
		ts = append(ts, trouble{Bad: worst, Text: fmt.Sprintf("And %d more like these: see the table.", left)})
	}
	return ts
}

// silentTroubles is one line for all workers whose KV events do not come: a port that is
// wrong is so at each worker of a deployment.
func silentTroubles(s *State) []trouble {
	n, since, first := 0, s.Now, []string(nil)
	for i := range s.Workers {
		w := &s.Workers[i]
		r := w.inTrouble((*EventStream).silent)
		if r == nil {
			continue
		}
		n++
		if at := r.Events.Since; !at.IsZero() && at.Before(since) {
			since = at
		}
		if len(first) < maxSilent {
			first = append(first, fmt.Sprintf("%s (%d/%d)%s", w.Endpoint, w.ID, r.DPRank, because(r.Events.Reason)))
		}
	}
	if n == 0 {
		return nil
	}
	if n > len(first) {
		first = append(first, fmt.Sprintf("and %d more", n-len(first)))
	}
	return []trouble{{Text: fmt.Sprintf("KV events of %d of %d workers have not come for %s: %s. What these workers hold counts for less: compare kv_events in discovery with the ports at which their engines publish.",
		n, len(s.Workers), duration(s.Now.Sub(since)), strings.Join(first, "; "))}}
}

// maxSilent is how many workers that line names.
const maxSilent = 3

// recentTrouble sums up the latest decisions that went wrong.
func recentTrouble(recs []decision.Record) (trouble, bool) {
	counts := map[string]int{}
	bad, latest := 0, ""
	for i := range recs {
		if s := recs[i].Status; (recs[i].Outcome == decision.Refused || recs[i].Outcome == decision.Rejected) && s >= 400 && s < 500 && s != 429 {
			continue // the client's fault: it must not hide ours
		}
		switch recs[i].Outcome {
		case decision.Refused, decision.Rejected, decision.Failed, decision.Cut, decision.Retried:
			bad++
			counts[recs[i].OutcomeText()]++
			latest = cmp.Or(latest, recs[i].Error)
		case decision.Routed, decision.OK, decision.ClientLeft, decision.Answered, decision.Unfinished:
		}
	}
	if bad == 0 {
		return trouble{}, false
	}
	kinds := make([]string, 0, len(counts))
	for k := range counts {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	if len(kinds) > 4 {
		kinds = append(kinds[:4], "…")
	}
	for i, k := range kinds {
		if n := counts[k]; n > 1 {
			kinds[i] = fmt.Sprintf("%s ×%d", k, n)
		}
	}
	if latest != "" {
		latest = " The latest error: " + strings.TrimSuffix(latest, ".") + "."
	}
	return trouble{Bad: false, Text: fmt.Sprintf("%d of the latest %d decisions did not end well: %s.%s",
		bad, len(recs), strings.Join(kinds, ", "), latest)}, true
}

func bodyTroubles(s *State) []trouble {
	if !s.BodiesTight {
		return nil
	}
	return []trouble{{true, "FULL", fmt.Sprintf("New requests get 503, first those with a body over 1 MiB or of unknown size: %s of bodies are in flight, and %s may be (request.max_bodies_bytes).",
		bytesText(s.BodyBytes), bytesText(s.BodyLimit))}}
}

// forTime says for how long something has been so, if that is known.
func forTime(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return " for " + duration(now.Sub(since))
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}
