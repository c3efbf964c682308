package plugin

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// endedFor is the time over which the ends of requests are judged: as long as that, a failure is
// told of as trouble.
const endedFor = 8 * time.Second

// So many requests that end after the same time, and no sooner than leftAfter, are no accident: something has a
// limit. They are looked for among those of the latest leftFor.
const (
	leftAlike = 3
	leftAfter = 100 * time.Millisecond
	leftFor   = 5 * time.Minute
)

// leave looks at a request that its client has left. Of those that end together one counts: they say that something
// ended all, and nothing of a limit.
func (e *ended) leave(r *decision.Record, now time.Time) {
	at := r.Time.Add(r.Timings.End)
	if r.Outcome != decision.ClientLeft || r.Attempt != 1 || len(e.left) == leftAlike || r.Timings.End < leftAfter || at.Before(now.Add(-leftFor)) {
		return
	}
	if !e.leftLast.IsZero() && at.After(e.leftLast.Add(-leftAfter)) {
		return
	}
	e.left, e.leftLast = append(e.left, r.Timings.End), at
}

// limit returns the time after which the latest requests were given up, all of them; 0 if they differ.
func (e *ended) limit() time.Duration {
	if len(e.left) < leftAlike {
		return 0
	}
	least, most := slices.Min(e.left), slices.Max(e.left)
	if most-least > leftAfter/5+most/20 {
		return 0
	}
	return most
}

// ended is how the requests of the latest endedFor have ended.
type ended struct {
	all, bad   int
	counts     map[string]int // of the bad ones, by outcome
	latest     string         // the latest error
	unfinished int            // nobody told how they ended
	headers    int            // whose headers were more than a leg of Envoy's takes

	left     []time.Duration // how long some took that their clients have left, newest first
	leftLast time.Time       // when the one before ended that is in left

	picked, guessed int // prompts, and those of them that no tokenizer has counted
	why             string
}

// lately reads the journal, newest first.
func lately(j *journal.Journal, now time.Time) ended {
	e := ended{counts: map[string]int{}}
	j.Visit(func(r *decision.Record) {
		since := now.Add(-endedFor)
		e.leave(r, now)
		if r.Time.After(since) && r.ISLTokens > 0 {
			e.pick(r)
		}
		if end := r.Timings.End; end > 0 && r.Time.Add(end).After(since) || end == 0 && r.Outcome != decision.Routed && r.Time.After(since) {
			e.end(r)
		}
	})
	return e
}

func (e *ended) pick(r *decision.Record) {
	e.picked++
	switch tokens.Reason(r.TokenReason) {
	case tokens.ReasonSetAside, tokens.ReasonSlow, tokens.ReasonFailed, tokens.ReasonKey:
		e.guessed++
		e.why = cmp.Or(e.why, r.TokenReason)
	default:
	}
}

func (e *ended) end(r *decision.Record) {
	e.all++
	if r.Status == http.StatusRequestHeaderFieldsTooLarge {
		e.headers++
	}
	if s := r.Status; (r.Outcome == decision.Refused || r.Outcome == decision.Rejected) && s >= 400 && s < 500 && s != 429 {
		return // the client's fault: it must not hide ours
	}
	switch r.Outcome {
	case decision.Refused, decision.Rejected, decision.Failed, decision.Cut, decision.Retried:
		e.bad++
		e.counts[r.OutcomeText()]++
		e.latest = cmp.Or(e.latest, r.Error, r.LegError)
	case decision.Unfinished:
		e.unfinished++
	case decision.Routed, decision.OK, decision.ClientLeft, decision.Answered:
	}
}

func (e *ended) troubles() (ts []trouble.Trouble) {
	if e.bad > 0 {
		latest := ""
		if e.latest != "" {
			latest = ". The latest error: " + strings.TrimSuffix(e.latest, ".")
		}
		ts = append(ts, trouble.Trouble{Kind: trouble.RequestsFailing, Count: int64(e.bad), What: fmt.Sprintf(
			"%d of the %d attempts that ended in the last %s did not succeed: %s%s", e.bad, e.all, endedFor, outcomesOf(e.counts), latest)})
	}
	if after := e.limit(); after > 0 {
		ts = append(ts, trouble.Trouble{Kind: trouble.TimeLimit, What: fmt.Sprintf(
			"The latest %d requests that ended before their deadline took about %s each: the cause is a time-out of Envoy's route, of another proxy or of the client", leftAlike, after.Round(10*time.Millisecond))})
	}
	if e.headers > 0 {
		ts = append(ts, trouble.Trouble{Kind: trouble.HeaderLimit, Count: int64(e.headers), What: fmt.Sprintf(
			"%d of the latest requests had more headers than a leg's listener takes", e.headers)})
	}
	if e.unfinished > 0 {
		ts = append(ts, trouble.Trouble{Kind: trouble.AccessLog, Count: int64(e.unfinished), What: fmt.Sprintf(
			"For %d answers Envoy has not reported the end", e.unfinished)})
	}
	if e.guessed > 0 {
		ts = append(ts, trouble.Trouble{Kind: trouble.PromptsGuessed, Subject: e.why, Count: int64(e.guessed), What: fmt.Sprintf(
			"For %d of the latest %d prompts the tokens are not known: %s", e.guessed, e.picked, e.why)})
	}
	return ts
}

// outcomesOf lists the outcomes, the most frequent one first.
func outcomesOf(counts map[string]int) string {
	const most = 4
	kinds := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	if len(kinds) > most {
		kinds = append(kinds[:most], "…")
	}
	for i, k := range kinds {
		if n := counts[k]; n > 1 {
			kinds[i] = fmt.Sprintf("%s ×%d", k, n)
		}
	}
	return strings.Join(kinds, ", ")
}
