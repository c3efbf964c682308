package main

import (
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/whatif"
)

func quantile(title, colour string, of func(*replay.Times) time.Duration) whatif.Panel {
	return whatif.Panel{Title: title, Colour: colour, Of: func(f *replay.Figures) float64 { return of(&f.First).Seconds() }}
}

func panels() []whatif.Panel {
	return whatif.Panels(seconds, quantile("TTFT p95", "#d08a3c", func(t *replay.Times) time.Duration { return t.P95 }))
}

func livePanels() []whatif.Panel {
	return whatif.Panels(seconds, quantile("TTFT p90", "#d08a3c", func(t *replay.Times) time.Duration { return t.P90 }),
		quantile("TTFT p99", "#a5573b", func(t *replay.Times) time.Duration { return t.P99 }))
}

// plot draws the simulation: a group for each cell.
func plot(r *report) string {
	var groups []whatif.Group
	for i := range r.Cells {
		g := whatif.Group{Heading: r.Cells[i].Heading, Bound: r.Cells[i].Load.Bound()}
		for _, row := range r.Cells[i].Rows {
			g.Bars = append(g.Bars, whatif.Bar{Name: row.Mode, Row: &row.Figures, Opacity: 1})
		}
		groups = append(groups, g)
	}
	title := fmt.Sprintf("Routing quality: %s, simulated, seed %d", r.Trace, r.Seed)
	return whatif.Draw([]string{title}, groups, panels())
}

// plotLive draws the live part, with the simulation in paler bars below each.
func plotLive(c *comparison) string {
	g := whatif.Group{Heading: "full: live · paler: simulated, same slice · palest: simulated, all requests · line: bound of the slice", Bound: c.Bound}
	for i := range c.Live {
		_, rows := c.lines(&c.Live[i])
		for k, r := range rows {
			name := ""
			if k == 0 {
				name = c.Live[i].Mode
			}
			g.Bars = append(g.Bars, whatif.Bar{Name: name, Row: &r.Figures, Opacity: []float64{1, 0.5, 0.25}[k]})
		}
	}
	return whatif.Draw([]string{
		"Routing quality live: real Envoy, plugin and workers' processes; " + c.Trace,
		c.scaling() + "; times in the trace's time",
	}, []whatif.Group{g}, livePanels())
}
