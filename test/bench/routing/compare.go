package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// comparison is the live part beside the simulation.
type comparison struct {
	options  liveOptions
	Trace    string
	Requests int
	Bound    float64 // of the slice
	Demand   float64
	Span     time.Duration // of the slice, as it passed
	Live     []liveRow
	Slice    map[string]row // simulated, by mode
	All      int            // requests of the simulation's first part
	Whole    map[string]row // simulated there, by mode; may lack modes
}

// lines returns the rows of a mode, with what each is.
func (c *comparison) lines(l *liveRow) (how []string, rows []row) {
	how, rows = []string{"live", "simulated, same slice"}, []row{l.row, c.Slice[l.Like]}
	if w, ok := c.Whole[l.Like]; ok {
		how, rows = append(how, fmt.Sprintf("simulated, all %d", c.All)), append(rows, w)
	}
	return how, rows
}

// scaling says in a sentence what was made smaller.
func (c *comparison) scaling() string {
	o := &c.options
	return fmt.Sprintf("%d requests, time ÷ %g, prompts ÷ %d: %d prefill and %d decode workers, %d blocks a cache",
		c.Requests, o.scale.Speedup, traceBlock/o.scale.Page, o.fleet.Ranks, o.decode, o.fleet.Capacity)
}

func (c *comparison) markdown() string {
	o := &c.options
	var b strings.Builder
	b.WriteString("\n## Live: real Envoy, plugin and workers' processes\n\n")
	fmt.Fprintf(&b, "The first %s. Arrivals and prefill are %g times as fast as in the trace (%s in all), and a block of %d tokens is one of %d: a worker prefills %g tokens/s and takes %s a prompt. Times are printed in the trace's time, %g times what passed, and with them all that the path itself takes.\n",
		c.scaling(), o.scale.Speedup, c.Span.Round(time.Second), traceBlock, o.scale.Page, o.tokensPerSecond(),
		time.Duration(float64(o.fleet.Overhead)/o.scale.Speedup), o.scale.Speedup)
	fmt.Fprintf(&b, "Answers have one token. The slice would take %.0f %% of the fleet's time if nothing were cached; one cache that forgets nothing would have %.1f %% of its tokens. Hit is what the prefill workers' own counters say.\n\n", 100*c.Demand, 100*c.Bound)
	for _, m := range o.modes {
		fmt.Fprintf(&b, "- %s: %s\n", m.name, m.what)
	}
	if o.published != nil {
		fmt.Fprintf(&b, "\nRequests are chats. Their tokens are those of %s's published tokenizer and template, as SGLang's own code and Hugging Face's tokenizers make them.\n", o.published.family)
	}
	b.WriteString("\n| mode | | hit | believed | exact prompts | TTFT mean | p50 | p90 | p99 | busiest | errors | at the workers: mean | p50 | p90 | p99 |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for i := range c.Live {
		l := &c.Live[i]
		how, rows := c.lines(l)
		for k, r := range rows {
			name, errs, exact, at := "", "", "", r.First
			if k == 0 {
				name, errs, exact, at = l.Mode, fmt.Sprint(l.Errors), share(l.Exact), l.Workers
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %.2f | %s | %s | %s | %s | %s |\n", name, how[k], r.hitRange(), share(r.Believed), exact,
				seconds(r.First.Mean), seconds(r.First.P50), seconds(r.First.P90), seconds(r.First.P99), r.Busiest, errs,
				seconds(at.Mean), seconds(at.P50), seconds(at.P90), seconds(at.P99))
		}
	}
	b.WriteString("\n" + c.agreement() + "\n\n")
	b.WriteString("Of the runs, in time as it passed: one request alone, how late requests were sent, and what all parts took of the machine's processors.\n\n| mode | alone p50 | late p99 | processors |\n| --- | ---: | ---: | ---: |\n")
	for _, l := range c.Live {
		cpu := "–"
		if !math.IsNaN(l.CPU) {
			cpu = fmt.Sprintf("%.0f %%", 100*l.CPU)
		}
		fmt.Fprintf(&b, "| %s | %.1f ms | %.1f ms | %s |\n", l.Mode, l.Idle, l.Late, cpu)
	}
	for _, w := range c.warnings() {
		b.WriteString("\nWARNING: " + w + ".\n")
	}
	return b.String()
}

// hitRange is the hit rate, with its range where runs differ.
func (r *row) hitRange() string {
	if r.LowHit == r.HighHit {
		return fmt.Sprintf("%.1f %%", 100*r.Hit)
	}
	return fmt.Sprintf("%.1f %% (%.1f–%.1f)", 100*r.Hit, 100*r.LowHit, 100*r.HighHit)
}

func share(v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

// agreement says how far the simulation of the slice and the live runs are from
// each other.
func (c *comparison) agreement() string {
	apart, at := 0.0, ""
	low, high := math.Inf(1), math.Inf(-1)
	within := 0
	for i := range c.Live {
		l, s := &c.Live[i], c.Slice[c.Live[i].Like]
		if d := math.Abs(l.Hit - s.Hit); d >= apart {
			apart, at = d, l.Mode
		}
		if l.Hit >= s.LowHit && l.Hit <= s.HighHit {
			within++
		}
		d := (l.First.P50 - s.First.P50).Seconds()
		low, high = min(low, d), max(high, d)
	}
	of := func(name string, of func(*row) float64) string {
		same, pairs := c.ordered(of)
		return fmt.Sprintf("%d of %d by %s", same, pairs, name)
	}
	return fmt.Sprintf("On the same slice, live and simulated hit rates are at most %.1f points apart (%s); %d of %d live ones lie within the range that %d seeds have. The live TTFT p50 less the simulated one is %.2f s to %.2f s; the path alone stands for up to %.2f s. Pairs of modes in the same order: %s, %s, %s.",
		100*apart, at, within, len(c.Live), sliceSeeds, low, high, c.path(),
		of("hit rate", func(r *row) float64 { return r.Hit }),
		of("p50", func(r *row) float64 { return r.First.P50.Seconds() }),
		of("p90", func(r *row) float64 { return r.First.P90.Seconds() }))
}

// path is what the way of a request adds, in the trace's time: an idle request
// less the prefill that the simulation counts as well.
func (c *comparison) path() float64 {
	worst := 0.0
	for _, l := range c.Live {
		worst = max(worst, l.Idle)
	}
	return max(worst/1e3*c.options.scale.Speedup-c.options.fleet.Overhead.Seconds(), 0)
}

// ordered counts the pairs of modes that differ in the simulation, and those of
// them that stand in the same order live.
func (c *comparison) ordered(of func(*row) float64) (same, pairs int) {
	for i := range c.Live {
		for k := range i {
			a, b := c.Slice[c.Live[i].Like], c.Slice[c.Live[k].Like]
			simulated, live := of(&a)-of(&b), of(&c.Live[i].row)-of(&c.Live[k].row)
			if simulated == 0 {
				continue
			}
			pairs++
			if simulated*live > 0 {
				same++
			}
		}
	}
	return same, pairs
}

// warnings are reasons to doubt the live figures.
func (c *comparison) warnings() []string {
	var out []string
	for _, l := range c.Live {
		for _, f := range l.Faults {
			out = append(out, l.Mode+": "+f)
		}
		if p50 := l.First.P50.Seconds() / c.options.scale.Speedup * 1e3; l.Late > p50/10 {
			out = append(out, fmt.Sprintf("%s: requests were sent %.1f ms late (p99), more than a tenth of the TTFT p50 that passed, %.1f ms: the machine is too busy for this speed-up", l.Mode, l.Late, p50))
		}
		if l.Estimated > 0 {
			out = append(out, fmt.Sprintf("%s: %d picks were by the byte estimate, as the tokenizer did not answer in time", l.Mode, l.Estimated))
		}
	}
	return out
}

// lost returns an error when a live run did not do what it should.
func (c *comparison) lost() error {
	for _, l := range c.Live {
		if len(l.Faults) > 0 {
			return fmt.Errorf("live, mode %s: %s", l.Mode, strings.Join(l.Faults, "; "))
		}
	}
	return nil
}
