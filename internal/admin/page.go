package admin

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

//go:embed assets
var assets embed.FS

// pageView is what the template prints: the state, of which the functions in words make text
// for people, and what is made of it here. The template escapes it.
type pageView struct {
	*State
	Bad         bool      // one of Troubles makes requests fail or wait
	Hour        *hourView // nil: none is kept
	Query       query
	Columns     []columnView
	Pools       []poolView
	PoolsLeft   int
	Counts      []countView
	Decisions   []decision.Record
	JournalSize int
	Shadow      *shadowView // in place of the state's
}

type countView struct {
	Text string
	Bad  bool
}

type workerView struct {
	ID, Endpoint string
	Pair         string // what its partner must share, if something of it is known
	Health       Health
	Why          string
	SinceFull    string
	Ranks        []rankView
	Total        rankView
}

type rankView struct {
	Name, Requests, PrefillTokens, DecodeBlocks, IndexBlocks, Capacity, Shed, Pace string
	Stream                                                                         streamView
}

type streamView struct {
	Class, Text, Detail string
}

func parsePage() (*template.Template, error) {
	return template.New("page.html").Funcs(words).ParseFS(assets, "assets/page.html")
}

func newPageView(s *State, recs []decision.Record, size int) *pageView {
	return &pageView{
		State: s, Bad: slices.ContainsFunc(s.Troubles, func(t trouble.Trouble) bool { return t.Severe() }),
		Counts: counts(s.Workers), Decisions: recs, JournalSize: size, Shadow: newShadowView(s.Shadow, s.Now),
	}
}

// wellSeverity is that of a worker without trouble; a smaller one is in trouble, or leaves.
const wellSeverity = 4

// severity orders workers, with those in trouble first.
func severity(w *WorkerRow) int {
	switch w.Health {
	case Aside, Partly:
		return 0
	case Recovering, Unheard:
		return 1
	case Draining:
		return 3
	case Healthy:
	}
	if w.InTrouble((*EventStream).Silent) != nil || w.InTrouble((*EventStream).Partial) != nil {
		return 2
	}
	return wellSeverity
}

// counts says how many workers of each role are in each state.
func counts(ws []WorkerRow) []countView {
	n := map[worker.Role]map[Health]int{}
	for i := range ws {
		if n[ws[i].Role] == nil {
			n[ws[i].Role] = map[Health]int{}
		}
		n[ws[i].Role][ws[i].Health]++
	}
	var out []countView
	for _, r := range []worker.Role{worker.Prefill, worker.Decode, worker.Aggregated} {
		for _, h := range healths(n[r]) {
			out = append(out, countView{fmt.Sprintf("%d %s %s", n[r][h], r, h), h.bad()})
		}
	}
	return out
}

func newWorkerView(w *WorkerRow, now time.Time) workerView {
	v := workerView{
		ID: w.ID.String(), Endpoint: Cut(w.Endpoint, maxShown), Health: w.Health, Why: Cut(w.Reason, maxShown),
	}
	if w.Pair != (worker.PairFacts{}) {
		v.Pair = w.Pair.String()
	}
	if !w.Since.IsZero() {
		v.SinceFull = full(w.Since.Time)
		v.Why = strings.TrimPrefix(v.Why+", for "+duration(now.Sub(w.Since.Time)), ", ")
	}
	if text := w.Facts.text(now); text != "" {
		v.Why = strings.TrimPrefix(v.Why+"; "+text, "; ")
	}
	if !w.StaleSince.IsZero() {
		v.Why = strings.TrimPrefix(v.Why+"; stale for "+duration(now.Sub(w.StaleSince.Time)), "; ")
	}
	total := w.totals()
	v.Total = newRankView("", &total, now)
	if len(w.Ranks) == 1 {
		v.Total.Stream = newStreamView(&w.Ranks[0].Events, now)
		v.Total.Pace = w.Ranks[0].Pace.text(w.Role == worker.Decode)
		return v
	}
	for i := range w.Ranks {
		r := &w.Ranks[i]
		name := fmt.Sprintf("rank %d", r.DPRank)
		if r.Health != "" {
			name += fmt.Sprintf(" (%s%s)", r.Health, trouble.Because(r.Reason))
		}
		row := newRankView(name, r, now)
		row.Pace = r.Pace.text(w.Role == worker.Decode)
		v.Ranks = append(v.Ranks, row)
	}
	return v
}

func newRankView(name string, r *RankRow, now time.Time) rankView {
	v := rankView{
		Name: name, Requests: strconv.Itoa(r.Requests), PrefillTokens: grouped(r.PrefillTokens),
		DecodeBlocks: grouped(r.DecodeBlocks), IndexBlocks: grouped(r.IndexBlocks),
		Stream: newStreamView(&r.Events, now),
	}
	if r.ShedBlocks > 0 {
		v.Shed = grouped(r.ShedBlocks) + " dropped"
	}
	if r.CapacityBlocks > 0 {
		v.Capacity = fmt.Sprintf("%s of %s, %d %%", v.IndexBlocks, grouped(r.CapacityBlocks), 100*r.IndexBlocks/r.CapacityBlocks)
	}
	return v
}

// agesAfter is the age from which the age of a rank's events is shown. If the publisher
// can be asked, it is a second or two.
const agesAfter = 10 * time.Second

func newStreamView(e *EventStream, now time.Time) streamView {
	v := streamView{Text: string(e.State), Detail: e.Reason}
	switch e.State {
	case NoStream:
		return streamView{Class: "quiet", Text: "none"}
	case Connected:
		v.Class = "good"
	case Connecting, Replaying:
		v.Class = "warn"
	case Lost:
		v.Class = "bad"
	}
	if e.Degraded {
		v.Class, v.Text = "warn", v.Text+", degraded"
	}
	if n := e.LastSequence; n != nil {
		v.Text += ", at " + strconv.FormatUint(*n, 10)
	}
	if e.Via != "" {
		v.Text += ", via " + e.Via
	}
	if age := now.Sub(e.AsOf.Time); !e.AsOf.IsZero() && age > agesAfter {
		v.Text += ", as of " + duration(age) + " ago"
	}
	if r := refusedText(e.Refused); r != "" {
		v.Detail = strings.TrimPrefix(v.Detail+"; refused: "+r, "; ")
	}
	return v
}

// words are the functions by which the page shows rows of the state, and a decision beside
// the texts of its record.
var words = template.FuncMap{
	"after": after, "bars": bars, "bytes": bytesText, "class": outcomeClass, "clock": clock, "duration": duration, "full": full,
	"grouped": grouped, "lasting": lasting, "overlap": overlapText, "refused": refusedText, "seconds": secondsOf, "source": sourceWord,
	"short": func(s string) string { return Cut(s, maxShown) },
	"model": func(r *decision.Record) string { return keyName(r.Model, r.Namespace) },
	"at": func(c *decision.Choice) string { // the endpoint, for a narrow column
		if !c.Made() {
			return "–"
		}
		return cmp.Or(c.Endpoint, c.Rank.String())
	},
	"held": func(r *decision.Record) string {
		if r.PromptBlocks == 0 || !r.Prefill.Made() {
			return "–"
		}
		return fmt.Sprintf("%d of %d", r.Prefill.OverlapBlocks, r.PromptBlocks)
	},
}

// sourceWord is the token source in one word, for a narrow column.
func sourceWord(s decision.TokenSource) string {
	return map[decision.TokenSource]string{decision.RequestIDs: "ids", decision.EngineTokenize: "engine", decision.ByteEstimate: "estimate"}[s]
}

func outcomeClass(o decision.Outcome) string {
	switch o {
	case decision.OK:
		return "good"
	case decision.Retried, decision.ClientLeft, decision.Unfinished, decision.Rejected:
		return "warn"
	case decision.Refused, decision.Failed, decision.Cut:
		return "bad"
	case decision.Routed, decision.Answered:
	}
	return "quiet"
}

// lasting says for how long something has been so, if that is known.
func lasting(since Time, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return " for " + duration(now.Sub(since.Time))
}
