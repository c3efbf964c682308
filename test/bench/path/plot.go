package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
)

// The plot's measures, in pixels.
const (
	plotLeft  = 190
	plotWidth = 460
	barHeight = 9
	rowHeight = 34
	plotTop   = 58
)

// plot draws the ratios of added p50 and CPU as bars with their ranges, and
// the aim of each row as a line.
func plot(list []row) []byte {
	most := 1.5
	for i := range list {
		for _, f := range []figure{list[i].P50, list[i].CPU} {
			most = max(most, min(f.Ratio.Median*1.1, 8)) // what is off the scale is cut
		}
	}
	height := plotTop + rowHeight*len(list) + 20
	x := func(v float64) float64 { return plotLeft + plotWidth*min(max(v, 0), most)/most }
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", plotLeft+plotWidth+70, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	b.WriteString(`<text x="10" y="18" font-size="14">Added by Baton, as a multiple of a server that does nothing (baton-sync: of legs at once)</text>` + "\n")
	fmt.Fprintf(&b, `<rect x="10" y="30" width="10" height="9" fill="#3b6ea5"/><text x="25" y="38">p50</text>`+
		`<rect x="60" y="30" width="10" height="9" fill="#d08a3c"/><text x="75" y="38">CPU</text>`+
		`<line x1="115" y1="28" x2="115" y2="41" stroke="#b00020" stroke-width="2"/><text x="121" y="38">aim</text>`+"\n")
	for v := 0.0; v <= most; v += math.Max(0.5, math.Floor(most/6)) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle" fill="#666">%g×</text>`+"\n",
			x(v), plotTop-8, x(v), height-20, x(v), height-6, v)
	}
	for i := range list {
		r := &list[i]
		y := plotTop + rowHeight*i
		name := r.cell.String()
		if r.Server != batonServer {
			name += " " + r.Server
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotLeft-8, y+13, html.EscapeString(name))
		for k, f := range []figure{r.P50, r.CPU} {
			bar(&b, x, float64(y+k*(barHeight+1)), f.Ratio, []string{"#3b6ea5", "#d08a3c"}[k])
		}
		if r.Aim > 0 {
			fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#b00020" stroke-width="2"/>`+"\n", x(r.Aim), y-2, x(r.Aim), y+2*barHeight+3)
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func bar(b *bytes.Buffer, x func(float64) float64, y float64, s spread, colour string) {
	if s.N == 0 {
		return
	}
	mid := y + barHeight/2.0
	fmt.Fprintf(b, `<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>`, plotLeft, y, x(s.Median)-plotLeft, barHeight, colour)
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#222"/>`, x(s.Low), mid, x(s.High), mid)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-size="9">%.2f</text>`+"\n", x(max(s.Median, s.High))+4, y+barHeight-1, s.Median)
}
