package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The pictures have a column of three steps, and the table a row of thirty.
const (
	columnSteps = 3
	rowSteps    = 30
)

// Pictures are drawn on this ground, which the page stretches.
const pictureWidth, pictureHeight = float64(hour.Steps / columnSteps), 36.0

// series is one line of a picture, or one layer of it.
type series struct {
	Name, Class string
	of          func(s *hour.Span) float64 // NaN: not known
}

// picture is what one picture of the hour shows.
type picture struct {
	ID, Title, Unit string // Unit: in words
	text            func(v float64) string
	stacked         bool
	most            float64 // the upper edge; 0: the most that there is
	empty           string  // said if there is nothing to show
	lines           []series
}

// pictureView is a picture as the template prints it.
type pictureView struct {
	picture
	Empty, Most, Desc string
	Series            []seriesView
}

// InOrder are the lines in their own order, as a legend has them.
func (v pictureView) InOrder() []seriesView {
	out := slices.Clone(v.Series)
	slices.Reverse(out)
	return out
}

type seriesView struct{ Name, Class, Path, Newest string }

type hourView struct {
	Pictures []pictureView
	Table    hourTable
}

// hourTable has the same as the pictures, in text.
type hourTable struct {
	Pictures []pictureView // those that have something to show, for the heads
	Rows     [][]string
}

// newHourView returns nil if no hour is kept.
func newHourView(spans func(time.Time, int) []hour.Span, now time.Time) *hourView {
	if spans == nil {
		return nil
	}
	v := &hourView{}
	columns, rows := spans(now, columnSteps), spans(now, rowSteps)
	slices.Reverse(rows)
	v.Table.Rows = make([][]string, len(rows))
	for i := range rows {
		v.Table.Rows[i] = []string{strings.TrimSuffix(duration(now.Sub(rows[i].End)), " 00 s") + " ago"}
		if i == 0 {
			v.Table.Rows[i][0] = "now"
		}
	}
	for _, p := range pictures() {
		pv := p.draw(columns)
		v.Pictures = append(v.Pictures, pv)
		if pv.Empty != "" {
			continue
		}
		v.Table.Pictures = append(v.Table.Pictures, pv)
		lines := p.shown(columns)
		for i := range rows {
			for _, l := range lines {
				v.Table.Rows[i] = append(v.Table.Rows[i], p.say(l.of(&rows[i])))
			}
		}
	}
	return v
}

func pictures() []picture {
	roles := func(of func(l *hour.Load) float64, roles ...worker.Role) (out []series) {
		for _, r := range roles {
			out = append(out, series{r.String(), "k-" + r.String(), func(s *hour.Span) float64 {
				if !s.Load[r].Known {
					return math.NaN()
				}
				return of(&s.Load[r])
			}})
		}
		return out
	}
	times := func(of func(s *hour.Span) *hour.Times) []series {
		quantile := func(q func(t *hour.Times) time.Duration) func(s *hour.Span) float64 {
			return func(s *hour.Span) float64 {
				if of(s).Count == 0 {
					return math.NaN()
				}
				return q(of(s)).Seconds()
			}
		}
		return []series{
			{"p50", "k-p50", quantile(func(t *hour.Times) time.Duration { return t.P50 })},
			{"p99", "k-p99", quantile(func(t *hour.Times) time.Duration { return t.P99 })},
		}
	}
	seconds := func(v float64) string {
		if v == 0 {
			return "0 s"
		}
		return duration(time.Duration(v * float64(time.Second)))
	}
	part := func(n, of func(p *hour.Prompt) int64) func(s *hour.Span) float64 {
		return func(s *hour.Span) float64 { return float64(n(&s.Prompt)) / float64(of(&s.Prompt)) } // 0/0 is NaN
	}
	asked := func(p *hour.Prompt) int64 { return p.Asked }
	return []picture{
		{ID: "requests", Title: "Requests", Unit: "that ended, a second", text: rate, stacked: true, empty: "No request has ended.", lines: outcomeSeries()},
		{ID: "first-token", Title: "First token", Unit: "after the request came", text: seconds, empty: "No first token was seen.",
			lines: times(func(s *hour.Span) *hour.Times { return &s.FirstToken })},
		{ID: "per-token", Title: "Between tokens", Unit: "in the mean of an answer", text: seconds, empty: "No answer has told how many tokens it has.",
			lines: times(func(s *hour.Span) *hour.Times { return &s.PerToken })},
		{ID: "hits", Title: "Hit rate", Unit: "of prompt tokens", text: percent, most: 1, empty: "No prompt was counted.", lines: []series{
			{"available", "k-available", part(func(p *hour.Prompt) int64 { return p.Available }, asked)},
			{"predicted", "k-predicted", part(func(p *hour.Prompt) int64 { return p.Predicted }, asked)},
			{"delivered", "k-delivered", part(func(p *hour.Prompt) int64 { return p.Delivered }, func(p *hour.Prompt) int64 { return p.Told })},
		}},
		{ID: "queue", Title: "Queue", Unit: "until a rank is free, in the mean", text: seconds, empty: "No workers were there.",
			lines: roles(func(l *hour.Load) float64 { return l.QueueSeconds }, worker.Prefill, worker.Decode, worker.Aggregated)},
		{ID: "blocks", Title: "Decode blocks", Unit: "booked", text: func(v float64) string { return grouped(int64(math.Round(v))) }, empty: "No workers that decode were there.",
			lines: roles(func(l *hour.Load) float64 { return l.DecodeBlocks }, worker.Decode, worker.Aggregated)},
	}
}

// outcomeSeries has the good outcomes first, which are the lowest layers.
func outcomeSeries() (out []series) {
	for i, name := range hour.Outcomes() {
		out = append(out, series{strings.ReplaceAll(name, "_", " "), "k-" + name, func(s *hour.Span) float64 {
			return float64(s.Requests[i]) / s.Known.Seconds()
		}})
	}
	return append(out[1:], out[0]) // unfinished last
}

func rate(v float64) string {
	if v == 0 || v >= 100 {
		return fmt.Sprintf("%.0f/s", v)
	}
	return strconv.FormatFloat(v, 'g', 2, 64) + "/s"
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

// say is the text of a value.
func (p *picture) say(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	return p.text(v)
}

// shown returns the lines that have a value; of layers, those that are not always 0.
func (p *picture) shown(spans []hour.Span) (out []series) {
	for _, l := range p.lines {
		for i := range spans {
			v := l.of(&spans[i])
			if spans[i].Known > 0 && !math.IsNaN(v) && (v > 0 || !p.stacked) {
				out = append(out, l)
				break
			}
		}
	}
	return out
}

func (p *picture) draw(spans []hour.Span) pictureView {
	v := pictureView{picture: *p}
	lines := p.shown(spans)
	if len(lines) == 0 {
		v.Empty = p.empty
		return v
	}
	values, most := p.values(lines, spans)
	v.Most = p.say(most)
	said := make([]string, 0, len(lines))
	for i, l := range lines {
		s := seriesView{Name: l.Name, Class: l.Class, Newest: p.say(l.of(&spans[len(spans)-1])), Path: path(values[i], cmp.Or(p.most, most), p.stacked)}
		v.Series = append(v.Series, s)
		said = append(said, s.Name+" "+s.Newest)
	}
	v.Desc = fmt.Sprintf("The last hour. Now: %s. At most %s.", strings.Join(said, ", "), v.Most)
	slices.Reverse(v.Series) // the first is painted last; a layer covers the sum that holds it
	return v
}

// values are those that are drawn, of layers the sums up to each, and the most of all.
func (p *picture) values(lines []series, spans []hour.Span) (values [][]float64, most float64) {
	values = make([][]float64, len(lines))
	for i, l := range lines {
		values[i] = make([]float64, len(spans))
		for j := range spans {
			v := l.of(&spans[j])
			if spans[j].Known == 0 {
				v = math.NaN()
			}
			if p.stacked && i > 0 {
				v += values[i-1][j]
			}
			values[i][j] = v
			if v > most {
				most = v
			}
		}
	}
	return values, most
}

// path is an SVG path in steps, as high as most. An area reaches to the ground. Where nothing
// is known, there is a gap.
func path(values []float64, most float64, area bool) string {
	height := func(v float64) float64 {
		if v == 0 {
			return pictureHeight - 0.5 // it is seen, too
		}
		return min(math.Round(10*(pictureHeight-(pictureHeight-1)*v/most))/10, pictureHeight-0.5)
	}
	var b strings.Builder
	last := math.NaN() // the height of the step before
	for x := 0; x < len(values); {
		y, to := height(values[x]), x+1
		for to < len(values) && height(values[to]) == y {
			to++
		}
		switch {
		case math.IsNaN(y):
			if area && !math.IsNaN(last) {
				fmt.Fprintf(&b, "V%gZ", pictureHeight)
			}
		case !math.IsNaN(last):
			fmt.Fprintf(&b, "V%gH%d", y, to)
		case area:
			fmt.Fprintf(&b, "M%d %gV%gH%d", x, pictureHeight, y, to)
		default:
			fmt.Fprintf(&b, "M%d %gH%d", x, y, to)
		}
		last, x = y, to
	}
	if area && !math.IsNaN(last) {
		fmt.Fprintf(&b, "V%gZ", pictureHeight)
	}
	return b.String()
}

type hourJSON struct {
	StepSeconds float64    `json:"step_seconds"`
	Steps       []stepJSON `json:"steps"` // oldest first
}

type stepJSON struct {
	At         time.Time            `json:"at"` // its end
	Requests   map[string]int64     `json:"requests"`
	FirstToken *timesJSON           `json:"first_token,omitempty"`
	PerToken   *timesJSON           `json:"per_token,omitempty"`
	Prompt     *hour.Prompt         `json:"prompt_tokens,omitempty"`
	Load       map[string]hour.Load `json:"load,omitempty"`
}

type timesJSON struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
}

func newHourJSON(spans []hour.Span) *hourJSON {
	d := &hourJSON{StepSeconds: hour.Step.Seconds(), Steps: []stepJSON{}}
	times := func(t *hour.Times) *timesJSON {
		if t.Count == 0 {
			return nil
		}
		return &timesJSON{t.Count, t.P50.Seconds(), t.P99.Seconds()}
	}
	names := hour.Outcomes()
	for i := range spans {
		s := &spans[i]
		if s.Known == 0 {
			continue
		}
		j := stepJSON{At: s.End.UTC(), Requests: map[string]int64{}, FirstToken: times(&s.FirstToken), PerToken: times(&s.PerToken), Load: map[string]hour.Load{}}
		for o, n := range s.Requests {
			if n > 0 {
				j.Requests[names[o]] = n
			}
		}
		if s.Prompt.Asked > 0 {
			j.Prompt = &s.Prompt
		}
		for r, l := range s.Load {
			if l.Known {
				j.Load[worker.Role(r).String()] = l //nolint:gosec // few
			}
		}
		d.Steps = append(d.Steps, j)
	}
	return d
}

func (s *Server) serveHour(w http.ResponseWriter, _ *http.Request) {
	b, err := json.Marshal(newHourJSON(s.cfg.Hour(time.Now(), 1)))
	s.answer(w, http.StatusOK, b, err)
}
