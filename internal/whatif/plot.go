package whatif

import (
	"fmt"
	"html"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// The plot's measures, in pixels.
const (
	plotNames = 110 // width of the column of names
	panel     = 210 // width of a panel's bars
	panelStep = 290 // from panel to panel
	barStep   = 17
	cellHead  = 46
)

// Panel is a number of each row, and how it is written.
type Panel struct {
	Title, Colour string
	Of            func(*replay.Figures) float64
	Text          func(float64) string
}

// Panels are the hit rate, and the first token by its p50 and the given other quantiles.
func Panels(text func(time.Duration) string, others ...Panel) []Panel {
	out := []Panel{
		{"hit rate", "#3b6ea5", func(f *replay.Figures) float64 { return f.Hit }, func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }},
		{Title: "TTFT p50", Colour: "#6a9a58", Of: func(f *replay.Figures) float64 { return f.First.P50.Seconds() }},
	}
	out = append(out, others...)
	for i := range out[1:] {
		out[i+1].Text = func(v float64) string { return text(time.Duration(v * float64(time.Second))) }
	}
	return out
}

// Group is bars under one heading.
type Group struct {
	Heading string
	Bound   float64 // drawn over the hit rate; 0: none
	Bars    []Bar
}

// Bar is one row of a group, a bar in each panel.
type Bar struct {
	Name    string
	Row     *replay.Figures
	Opacity float64
}

func (g *Group) height() int { return cellHead + barStep*len(g.Bars) + 12 }

// Draw draws groups below each other under a title of some lines. Each panel
// has a scale of its own, from zero.
func Draw(title []string, groups []Group, panels []Panel) string {
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

func (g *Group) draw(b *strings.Builder, y int, panels []Panel) {
	fmt.Fprintf(b, `<text x="10" y="%d" font-weight="bold">%s</text>`+"\n", y+12, html.EscapeString(g.Heading))
	for i, r := range g.Bars {
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotNames-6, y+cellHead+i*barStep+10, html.EscapeString(r.Name))
	}
	for k, m := range panels {
		left, most := plotNames+k*panelStep, 0.0
		if k == 0 {
			most = g.Bound
		}
		for _, r := range g.Bars {
			most = max(most, m.Of(r.Row))
		}
		if most == 0 {
			most = 1
		}
		fmt.Fprintf(b, `<text x="%d" y="%d" fill="#666">%s</text>`+"\n", left, y+cellHead-8, m.Title)
		for i, r := range g.Bars {
			top, width := y+cellHead+i*barStep, panel*m.Of(r.Row)/most
			fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s" fill-opacity="%g"/>`, left, top, width, barStep-4, m.Colour, r.Opacity)
			fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="10">%s</text>`+"\n", float64(left)+width+4, top+10, m.Text(m.Of(r.Row)))
		}
		if k == 0 && g.Bound > 0 {
			at := float64(left) + panel*g.Bound/most
			fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#b00020"/><text x="%.1f" y="%d" fill="#b00020" text-anchor="end">bound %.1f %%</text>`+"\n",
				at, y+cellHead-4, at, y+cellHead+barStep*len(g.Bars), at, y+cellHead-8, 100*g.Bound)
		}
	}
}
