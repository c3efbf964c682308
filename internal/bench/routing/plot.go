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

func measures() []measureOf {
	write := func(v float64) string { return seconds(time.Duration(v * float64(time.Second))) }
	return []measureOf{
		{"hit rate", "#3b6ea5", func(r row) float64 { return r.Hit }, func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }},
		{"TTFT p50", "#6a9a58", func(r row) float64 { return r.P50.Seconds() }, write},
		{"TTFT p95", "#d08a3c", func(r row) float64 { return r.P95.Seconds() }, write},
	}
}

// plot draws a group of bars for each cell: a panel for the hit rate, with the
// bound as a line, and one each for the p50 and the p95. Each panel has a scale
// of its own, from zero.
func plot(r *report) string {
	height := 40
	for i := range r.Cells {
		height += cellHead + barStep*len(r.Cells[i].Rows) + 12
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", plotNames+3*panelStep, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	fmt.Fprintf(&b, `<text x="10" y="20" font-size="14">Routing quality: %s, %d simulated prefill ranks, seed %d</text>`+"\n",
		html.EscapeString(r.Trace), r.Fleet.Ranks, r.Seed)
	y := 40
	for i := range r.Cells {
		r.Cells[i].plot(&b, y, r.Bound)
		y += cellHead + barStep*len(r.Cells[i].Rows) + 12
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (c *cell) plot(b *strings.Builder, y int, bound float64) {
	fmt.Fprintf(b, `<text x="10" y="%d" font-weight="bold">%s</text>`+"\n", y+12, html.EscapeString(c.String()))
	for i, r := range c.Rows {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotNames-6, y+cellHead+i*barStep+10, html.EscapeString(r.Mode))
	}
	for k, m := range measures() {
		left, most := plotNames+k*panelStep, 0.0
		if k == 0 {
			most = bound
		}
		for _, r := range c.Rows {
			most = max(most, m.of(r))
		}
		if most == 0 {
			most = 1
		}
		fmt.Fprintf(b, `<text x="%d" y="%d" fill="#666">%s</text>`+"\n", left, y+cellHead-8, m.title)
		for i, r := range c.Rows {
			top, width := y+cellHead+i*barStep, panel*m.of(r)/most
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, left, top, width, barStep-4, m.colour)
			fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="10">%s</text>`+"\n", float64(left)+width+4, top+10, m.text(m.of(r)))
		}
		if k == 0 && bound > 0 {
			at := float64(left) + panel*bound/most
			fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#b00020"/><text x="%.1f" y="%d" fill="#b00020" text-anchor="end">bound %.1f %%</text>`+"\n",
				at, y+cellHead-4, at, y+cellHead+barStep*len(c.Rows), at, y+cellHead-8, 100*bound)
		}
	}
}
