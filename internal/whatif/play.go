package whatif

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/pkg/picker"
)

// Causes for which a pick is not the recorded one.
const (
	Overlap  = "overlap"  // the rank had more of the prompt
	ByLoad   = "load"     // the recorded rank was busy
	Limited  = "limited"  // the recorded rank is not in this fleet, or the request limited who could be picked
	Mode     = "mode"     // this configuration does not look
	Tie      = "tie"      // both ranks were as good
	Refusal  = "refusal"  // one of the two was none
	AsBefore = "the same" // it is the recorded one
)

// Report is what was found.
type Report struct {
	Input    *Input
	Requests int // that count in figures
	Span     time.Duration
	Fleet    string
	Assumed  []string // where the fleet's numbers are from

	Measured *replay.Figures // nil: the input does not tell
	Timed    int             // requests of which the first token was measured
	Told     int             // requests whose engine has told what it had cached; 0: Measured.Hit says nothing
	Recorded *replay.Figures // simulated with the recorded picks
	Played   replay.Figures

	Error   *Error         // of the simulation; nil: not known
	Path    time.Duration  // in all simulated first tokens
	Differs map[string]int // picks by cause; nil: none were recorded
}

// Error is by how much the simulation of the recorded picks is off from what was measured.
type Error struct {
	Hit      float64 // difference of the shares
	P50, P99 float64 // of the first token, relative
}

// Play plays the requests as a plugin of this configuration would route them.
func Play(in *Input, o *Options, c Config) (*Report, error) {
	f, assumed, err := in.Fleet(o)
	if err != nil {
		return nil, err
	}
	w := replay.Workload{BlockTokens: in.Load.BlockTokens, Requests: slices.Clone(in.Load.Requests)}
	if o.Rate > 0 {
		replay.Scale(w.Requests, o.Rate)
	}
	n := len(w.Requests)
	from := min(int(o.Warm*float64(n)), n-1)
	rep := &Report{Input: in, Requests: n - from, Span: w.Requests[n-1].At - w.Requests[from].At, Fleet: nameOf(f), Assumed: assumed}
	if in.Seen != nil {
		if err := rep.recorded(o, from); err != nil {
			return nil, err
		}
	}
	f.ReportEvery = c.ReportEvery
	c.Paced, c.Estimated = !o.Fresh, c.Estimated || in.Estimated
	var runs []replay.Figures
	for i := range max(o.Seeds, 1) {
		c.Seed = uint64(i) + 1 //nolint:gosec // a count
		p, err := NewPlugin(f, w.BlockTokens, c)
		if err != nil {
			return nil, err
		}
		d := &differing{Plugin: p, in: in, from: from, by: map[string]int{}, other: o.Fleet != "", between: o.Between}
		r, err := replay.Run(f, &w, d)
		if err != nil {
			return nil, err
		}
		runs = append(runs, figures(r, from))
		if i == 0 && in.Seen != nil {
			rep.Differs = d.by
		}
	}
	rep.Played = medians(runs)
	rep.Played.First = later(rep.Played.First, rep.Path)
	return rep, nil
}

// figures sums up the outcomes from one on.
func figures(r *replay.Result, from int) replay.Figures {
	part := replay.Result{BlockTokens: r.BlockTokens, Outcomes: r.Outcomes[from:], Computed: r.Computed, Lost: r.Lost}
	return part.Figures(replay.Target{})
}

// medians has the medians of figures of equal requests.
func medians(runs []replay.Figures) (out replay.Figures) {
	var first, between []replay.Times
	var hit, believed, busiest []float64
	var refused []int
	for i := range runs {
		first, between = append(first, runs[i].First), append(between, runs[i].Between)
		hit, believed, busiest = append(hit, runs[i].Hit), append(believed, runs[i].Believed), append(busiest, runs[i].Busiest)
		refused = append(refused, runs[i].Refused)
	}
	return replay.Figures{
		First: replay.MedianTimes(first), Between: replay.MedianTimes(between),
		Hit: stats.Median(hit), Believed: stats.Median(believed), Busiest: stats.Median(busiest), Refused: stats.Median(refused),
	}
}

// later returns t with each time longer by d, which may be below 0.
func later(t replay.Times, d time.Duration) replay.Times {
	for _, v := range t.Each() {
		*v = max(*v+d, 0)
	}
	return t
}

// recorded compares what was measured with a simulation of the recorded picks.
func (rep *Report) recorded(o *Options, from int) error {
	in := rep.Input
	as := *o
	as.Fleet = ""
	f, _, err := in.Fleet(&as)
	if err != nil {
		return err
	}
	r, err := replay.Run(f, &in.Load, &repeating{in: in, fleet: f, between: o.Between})
	if err != nil {
		return fmt.Errorf("with the recorded picks: %w", err)
	}
	var first, between, path []time.Duration
	var tokens, cached, simulated int
	m, computed := replay.Figures{}, make([]int64, len(in.Ranks))
	for i := from; i < len(in.Seen); i++ {
		s, x := &in.Seen[i], &r.Outcomes[i]
		switch {
		case s.Refused:
			m.Refused++
		case x.Refused:
		default:
			if s.First > 0 {
				first, path = append(first, s.First), append(path, s.First-x.FirstToken)
			}
			if s.Between > 0 {
				between = append(between, s.Between)
			}
			if s.Cached >= 0 {
				rep.Told++
				tokens, cached, simulated = tokens+x.Tokens, cached+int(s.Cached), simulated+x.Cached
			}
			if s.Rank >= 0 {
				computed[s.Rank] += int64(x.Tokens) - max(s.Cached, 0)
			}
		}
	}
	rep.Timed = len(first)
	m.First, m.Between = replay.TimesOf(first), replay.TimesOf(between)
	m.Hit = float64(cached) / float64(max(tokens, 1))
	for i, role := range f.Ranks {
		if role.Role != replay.Decode {
			computed = append(computed, computed[i])
		}
	}
	m.Busiest = replay.Busiest(computed[len(in.Ranks):])
	rec := figures(r, from)
	if len(first) > 0 {
		rep.Path = stats.Median(path)
		rec.First = later(rec.First, rep.Path)
		rep.Error = &Error{
			Hit: float64(simulated)/float64(max(tokens, 1)) - m.Hit,
			P50: ratio(rec.First.P50, m.First.P50), P99: ratio(rec.First.P99, m.First.P99),
		}
	}
	rep.Measured, rep.Recorded = &m, &rec
	return nil
}

func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a)/float64(b) - 1
}

// repeating is a chooser that picks as was recorded; where that cannot be, in turn.
type repeating struct {
	in    *Input
	fleet *replay.Fleet
	turn  int

	between func() error
}

// Choose implements replay.Chooser.
func (r *repeating) Choose(_ time.Duration, number int, _ *replay.Request) (replay.Choice, error) {
	if r.between != nil {
		if err := r.between(); err != nil {
			return replay.Choice{}, err
		}
	}
	s := &r.in.Seen[number]
	if s.Refused {
		return replay.Choice{}, replay.ErrRefused
	}
	c := replay.Choice{Rank: s.Rank, Decode: s.Decode, Believed: s.Overlap}
	decodes := r.fleet.Of(replay.Decode)
	others := append(r.fleet.Of(replay.Prefill), r.fleet.Of(replay.Whole)...)
	r.turn++
	if !slices.Contains(others, c.Rank) {
		c.Rank = others[r.turn%len(others)]
	}
	if !slices.Contains(decodes, c.Decode) {
		c.Decode = 0
		if len(decodes) > 0 {
			c.Decode = decodes[r.turn%len(decodes)]
		}
	}
	return c, nil
}

// Leg implements replay.Chooser.
func (*repeating) Leg(time.Duration, replay.Leg) error { return nil }

// Events implements replay.Chooser.
func (*repeating) Events(time.Duration, replay.Events) error { return nil }

// Report implements replay.Chooser.
func (*repeating) Report(time.Duration, replay.Report) error { return nil }

// differing counts why picks are not the recorded ones.
type differing struct {
	*Plugin
	in    *Input
	from  int
	other bool // the fleet is another one
	by    map[string]int

	between func() error
}

// Choose implements replay.Chooser.
func (d *differing) Choose(now time.Duration, number int, r *replay.Request) (replay.Choice, error) {
	if d.between != nil {
		if err := d.between(); err != nil {
			return replay.Choice{}, err
		}
	}
	if d.in.Seen == nil || number < d.from {
		return d.Plugin.Choose(now, number, r)
	}
	s, busy := &d.in.Seen[number], false
	if s.Rank >= 0 && !d.other {
		busy = d.busy(s.Rank, now)
	}
	c, err := d.Plugin.Choose(now, number, r)
	if err == nil || errors.Is(err, replay.ErrRefused) {
		d.by[d.cause(&c, s, err != nil, busy)]++
	}
	return c, err
}

func (d *differing) cause(c *replay.Choice, s *Seen, refused, busy bool) string {
	switch {
	case refused || s.Refused:
		if refused == s.Refused {
			return AsBefore
		}
		return Refusal
	case d.other || s.Bound || s.Rank < 0:
		return Limited
	case c.Rank == s.Rank:
		return AsBefore
	case d.first().Mode != picker.KV:
		return Mode
	case d.held(c.Rank) > d.held(s.Rank):
		return Overlap
	case busy:
		return ByLoad
	default:
		return Tie
	}
}
