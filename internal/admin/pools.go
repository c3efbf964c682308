package admin

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Bounds of the tables of workers. All workers are in the JSON state, and search finds all.
const (
	maxWorkerRows = 200 // of all pools
	minPoolRows   = 4   // of a pool, if so many match
	maxPools      = maxWorkerRows / minPoolRows
	fewWorkers    = 24 // so many are shown unfolded
)

// query is how a reader wants the page.
type query struct {
	n    int    // decisions
	Text string // that workers have
	Sort string // key of a column; with "-" before it: the most first; "": trouble first
}

// maxQueryText bounds the text to search for, in bytes.
const maxQueryText = 200

func newQuery(v url.Values, n int) query {
	q := query{n: n, Text: strings.TrimSpace(strings.ToValidUTF8(v.Get("q"), "")), Sort: v.Get("sort")}
	if len(q.Text) > maxQueryText {
		q.Text = strings.ToValidUTF8(q.Text[:maxQueryText], "")
	}
	if !slices.ContainsFunc(columns, func(c column) bool { return c.Key == strings.TrimPrefix(q.Sort, "-") }) {
		q.Sort = ""
	}
	return q
}

// column is one of the columns by which workers can be sorted.
type column struct {
	Key, Name, Title string
	number           func(w *sumRow) int64 // nil: by what compare says
	compare          func(a, b *sumRow) int
}

var columns = []column{
	{Key: "worker", Name: "Worker", compare: func(a, b *sumRow) int { return cmp.Compare(a.Endpoint, b.Endpoint) }},
	{Key: "state", Name: "State", compare: func(a, b *sumRow) int { return cmp.Compare(a.severity, b.severity) }},
	{Key: "legs", Name: "In flight", Title: "legs booked on it", number: func(w *sumRow) int64 { return int64(w.sum.Requests) }},
	{Key: "prefill", Name: "Prefill tokens", Title: "prompt tokens booked and not yet prefilled", number: func(w *sumRow) int64 { return w.sum.PrefillTokens }},
	{Key: "decode", Name: "Decode blocks", Title: "KV blocks booked for running answers", number: func(w *sumRow) int64 { return w.sum.DecodeBlocks }},
	{Key: "index", Name: "Index blocks", Title: "blocks the index knows on it, and those it dropped for want of memory", number: func(w *sumRow) int64 { return w.sum.IndexBlocks }},
}

// columnView is the head of a column: a link that sorts by it, or sorts the other way, or not
// any more.
type columnView struct {
	column
	Href, Sorted string
	Number       bool
}

func columnViews(q query) (out []columnView) {
	for _, c := range columns {
		v := columnView{column: c, Number: c.number != nil}
		turns := []string{c.Key, "-" + c.Key, ""}
		if v.Number { // the most first
			turns[0], turns[1] = turns[1], turns[0]
		}
		next := turns[0]
		if i := slices.Index(turns[:2], q.Sort); i >= 0 {
			next = turns[i+1]
			v.Sorted = map[bool]string{true: "descending", false: "ascending"}[strings.HasPrefix(q.Sort, "-")]
		}
		at := url.Values{}
		if q.Text != "" {
			at.Set("q", q.Text)
		}
		if q.n != defaultDecisions {
			at.Set("n", strconv.Itoa(q.n))
		}
		if next != "" {
			at.Set("sort", next)
		}
		v.Href = "?" + at.Encode()
		out = append(out, v)
	}
	return out
}

// sumRow is a worker with what it is sorted and found by.
type sumRow struct {
	*WorkerRow
	sum      RankRow
	severity int
	troubled int // its streams of KV events that are in trouble
}

// pool has the workers that serve the same models in the same role and namespace.
type pool struct {
	name, id string
	role     worker.Role
	rows     []sumRow
}

type poolView struct {
	ID, Name, Role               string
	Open                         bool
	Counts                       []countView
	Legs, Prefill, Decode, Index string
	Streams                      string // those in trouble; "": none is
	Workers                      []workerView
	Found, All, Left             int
}

// pools sorts the workers into pools: those with trouble first, then by name.
func pools(ws []WorkerRow) []*pool {
	by := map[string]*pool{}
	for i := range ws {
		w := &ws[i]
		name := cmp.Or(strings.Join(w.Models, ", "), "any model")
		if w.Namespace != "" {
			name += " in " + w.Namespace
		}
		key := w.Role.String() + " " + name
		p := by[key]
		if p == nil {
			h := fnv.New64a()
			_, _ = h.Write([]byte(key))
			p = &pool{name: name, id: "pool-" + strconv.FormatUint(h.Sum64(), 36), role: w.Role}
			by[key] = p
		}
		p.rows = append(p.rows, newSumRow(w))
	}
	out := make([]*pool, 0, len(by))
	for _, p := range by {
		slices.SortFunc(p.rows, func(a, b sumRow) int {
			return cmp.Or(cmp.Compare(a.severity, b.severity), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.ID, b.ID))
		})
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *pool) int {
		return cmp.Or(cmp.Compare(min(a.rows[0].severity, wellSeverity), min(b.rows[0].severity, wellSeverity)),
			cmp.Compare(a.name, b.name), cmp.Compare(a.role, b.role))
	})
	return out
}

func newSumRow(w *WorkerRow) sumRow {
	r := sumRow{WorkerRow: w, sum: w.totals(), severity: severity(w)}
	if w.Health == Aside || w.Health == Draining {
		return r
	}
	for i := range w.Ranks {
		if e := &w.Ranks[i].Events; e.Silent() || e.Partial() {
			r.troubled++
		}
	}
	return r
}

// has reports whether the worker has the text, which is in small letters, in what a reader knows it by.
func (w *sumRow) has(text string) bool {
	if text == "" {
		return true
	}
	return slices.ContainsFunc(append([]string{w.Endpoint, w.ID.String(), string(w.Health), w.Role.String(), w.Namespace}, w.Models...),
		func(s string) bool { return strings.Contains(strings.ToLower(s), text) })
}

// poolViews are the pools that have workers which match, and how many are left out.
func poolViews(all []*pool, q query, now time.Time) (out []poolView, left int) {
	total, text := 0, strings.ToLower(q.Text)
	found := make([][]*sumRow, len(all))
	room := maxWorkerRows
	var match []int
	for i, p := range all {
		total += len(p.rows)
		for j := range p.rows {
			if p.rows[j].has(text) {
				found[i] = append(found[i], &p.rows[j])
			}
		}
		if found[i] != nil {
			match = append(match, i)
		}
	}
	if len(match) > maxPools {
		match, left = match[:maxPools], len(match)-maxPools
	}
	// Small pools first, so that large ones get what those leave.
	size := slices.Clone(match)
	slices.SortStableFunc(size, func(a, b int) int { return cmp.Compare(len(found[a]), len(found[b])) })
	rows := map[int]int{}
	for i, m := range size {
		rows[m] = min(len(found[m]), max(minPoolRows, room/(len(size)-i)))
		room -= rows[m]
	}
	for _, m := range match {
		out = append(out, all[m].view(found[m], rows[m], q, now))
		v := &out[len(out)-1]
		v.Open = q.Text != "" || total <= fewWorkers
	}
	return out, left
}

func (p *pool) view(found []*sumRow, n int, q query, now time.Time) poolView {
	v := poolView{ID: p.id, Name: Cut(p.name, maxShown), Role: p.role.String(), All: len(p.rows), Found: len(found), Left: len(found) - n}
	states := map[Health]int{}
	var sum RankRow
	streams := 0
	for _, w := range found {
		states[w.Health]++
		sum.add(&w.sum)
		streams += w.troubled
	}
	for _, h := range healths(states) {
		v.Counts = append(v.Counts, countView{fmt.Sprintf("%d %s", states[h], h), h.bad()})
	}
	v.Legs, v.Prefill, v.Decode, v.Index = grouped(int64(sum.Requests)), grouped(sum.PrefillTokens), grouped(sum.DecodeBlocks), grouped(sum.IndexBlocks)
	if streams > 0 {
		v.Streams = fmt.Sprintf("%d in trouble", streams)
	}
	q.order(found)
	for _, w := range found[:n] {
		v.Workers = append(v.Workers, newWorkerView(w.WorkerRow, now))
	}
	return v
}

// order sorts by the column that is asked for. Without one those in trouble come first.
func (q query) order(ws []*sumRow) {
	key, down := strings.CutPrefix(q.Sort, "-")
	for _, c := range columns {
		if c.Key != key {
			continue
		}
		slices.SortStableFunc(ws, func(a, b *sumRow) int {
			if down {
				a, b = b, a
			}
			if c.number != nil {
				return cmp.Compare(c.number(a), c.number(b))
			}
			return c.compare(a, b)
		})
	}
}

// maxShown bounds a name on the page, in bytes.
const maxShown = 200

// Cut cuts a text that somebody else has made long to so many bytes, and says so.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// healths lists the states that were counted: those that the page knows in its order, then
// all others.
func healths(counts map[Health]int) []Health {
	var out []Health
	for _, h := range []Health{Healthy, Unheard, Aside, Partly, Recovering, Draining} {
		if counts[h] > 0 {
			out = append(out, h)
		}
	}
	known := len(out)
	for h := range counts {
		if !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	slices.Sort(out[known:])
	return out
}

// bad reports whether requests cannot go to the worker, or to some of its ranks.
func (h Health) bad() bool { return h == Aside || h == Partly }

// Class is the name of the state's style.
func (h Health) Class() string { return strings.ReplaceAll(string(h), " ", "-") }
