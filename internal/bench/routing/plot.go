package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// The plot's measures, in pixels.
const (
	plotNames = 110 // width of the column of names
	panel     = 210 // width of a panel's bars
	panelStep = 290 // from panel to panel
	barStep   = 17
	cellHead  = 46
)

// measureOf is one panel: a number of each row, and how it is written.
type measureOf struct {
	title, colour string
	of            func(row) float64
	text          func(float64) string
}

func writeSeconds(v float64) string { return seconds(time.Duration(v * float64(time.Second))) }

func hitRate() measureOf {
	return measureOf{"hit rate", "#3b6ea5", func(r row) float64 { return r.Hit }, func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }}
}

func p50() measureOf {
	return measureOf{"TTFT p50", "#6a9a58", func(r row) float64 { return r.First.P50.Seconds() }, writeSeconds}
}

func measures() []measureOf {
	return []measureOf{hitRate(), p50(), {"TTFT p95", "#d08a3c", func(r row) float64 { return r.First.P95.Seconds() }, writeSeconds}}
}

func liveMeasures() []measureOf {
	return []measureOf{
		hitRate(), p50(),
		{"TTFT p90", "#d08a3c", func(r row) float64 { return r.First.P90.Seconds() }, writeSeconds},
		{"TTFT p99", "#a5573b", func(r row) float64 { return r.First.P99.Seconds() }, writeSeconds},
	}
}

// group is bars under one heading.
type group struct {
	heading string
	bound   float64 // drawn over the hit rate; 0: none
	bars    []bar
}

// bar is one row of a group, a bar in each panel.
type bar struct {
	name    string
	row     row
	opacity float64
}

func (g *group) height() int { return cellHead + barStep*len(g.bars) + 12 }

// draw draws groups below each other under a title of some lines. Each panel
// has a scale of its own, from zero.
func draw(title []string, groups []group, panels []measureOf) string {
	height := 20 + 18*len(title)
	for i := range groups {
		height += groups[i].height()
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", plotNames+len(panels)*panelStep, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	for i, line := range title {
		fmt.Fprintf(&b, `<text x="10" y="%d" font-size="%d">%s</text>`+"\n", 20+18*i, 14-2*min(i, 1), html.EscapeString(line))
	}
	y := 20 + 18*len(title)
	for i := range groups {
		groups[i].draw(&b, y, panels)
		y += groups[i].height()
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (g *group) draw(b *strings.Builder, y int, panels []measureOf) {
	fmt.Fprintf(b, `<text x="10" y="%d" font-weight="bold">%s</text>`+"\n", y+12, html.EscapeString(g.heading))
	for i, r := range g.bars {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotNames-6, y+cellHead+i*barStep+10, html.EscapeString(r.name))
	}
	for k, m := range panels {
		left, most := plotNames+k*panelStep, 0.0
		if k == 0 {
			most = g.bound
		}
		for _, r := range g.bars {
			most = max(most, m.of(r.row))
		}
		if most == 0 {
			most = 1
		}
		fmt.Fprintf(b, `<text x="%d" y="%d" fill="#666">%s</text>`+"\n", left, y+cellHead-8, m.title)
		for i, r := range g.bars {
			top, width := y+cellHead+i*barStep, panel*m.of(r.row)/most
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s" fill-opacity="%g"/>`, left, top, width, barStep-4, m.colour, r.opacity)
			fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="10">%s</text>`+"\n", float64(left)+width+4, top+10, m.text(m.of(r.row)))
		}
		if k == 0 && g.bound > 0 {
			at := float64(left) + panel*g.bound/most
			fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#b00020"/><text x="%.1f" y="%d" fill="#b00020" text-anchor="end">bound %.1f %%</text>`+"\n",
				at, y+cellHead-4, at, y+cellHead+barStep*len(g.bars), at, y+cellHead-8, 100*g.bound)
		}
	}
}

// plot draws the simulation: a group for each cell.
func plot(r *report) string {
	var groups []group
	for i := range r.Cells {
		g := group{heading: r.Cells[i].Heading, bound: r.Cells[i].Load.Bound()}
		for _, row := range r.Cells[i].Rows {
			g.bars = append(g.bars, bar{row.Mode, row, 1})
		}
		groups = append(groups, g)
	}
	title := fmt.Sprintf("Routing quality: %s, simulated, seed %d", r.Trace, r.Seed)
	return draw([]string{title}, groups, measures())
}

// plotLive draws the live part, with the simulation in paler bars below each.
func plotLive(c *comparison) string {
	g := group{heading: "full: live · paler: simulated, same slice · palest: simulated, all requests · line: bound of the slice", bound: c.Bound}
	for i := range c.Live {
		_, rows := c.lines(&c.Live[i])
		for k, r := range rows {
			name := ""
			if k == 0 {
				name = c.Live[i].Mode
			}
			g.bars = append(g.bars, bar{name, r, []float64{1, 0.5, 0.25}[k]})
		}
	}
	return draw([]string{
		"Routing quality live: real Envoy, plugin and workers' processes; " + c.Trace,
		c.scaling() + "; times in the trace's time",
	}, []group{g}, liveMeasures())
}
