package main

import (
	"slices"
)

// spread is a figure over the repeats. N is 0 where there is none.
type spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	slices.Sort(values)
	n := len(values)
	return spread{N: n, Median: (values[(n-1)/2] + values[n/2]) / 2, Low: values[0], High: values[n-1]}
}

// figure compares one quantity of a server with that of another, the base.
// Ratio is over the ratios of each repeat; a repeat in which the base cost
// nothing (noise over what is taken off) has none.
type figure struct {
	Base  spread `json:"base"`
	Ours  spread `json:"ours"`
	Ratio spread `json:"ratio"`
}

// row is one server in one cell.
type row struct {
	cell
	Server   string  `json:"server"`
	Base     string  `json:"base"` // the server it is compared with
	Over     string  `json:"over"` // the case that is taken off both
	OverP50  spread  `json:"over_p50_us"`
	OverP99  spread  `json:"over_p99_us"`
	P50      figure  `json:"added_p50_us"`
	P99      figure  `json:"added_p99_us"`
	CPU      figure  `json:"server_cpu_us"`
	EnvoyCPU figure  `json:"added_envoy_cpu_us"`
	Bytes    figure  `json:"allocated_bytes"`
	Mallocs  figure  `json:"mallocs"`
	Aim      float64 `json:"aim"` // 0: none for this server
	Failed   int     `json:"failed"`
}

// Aims, as ratios over the server that does nothing; for two legs one after the
// other, over two at once by the same plugin: in turn may cost twice.
const (
	aimSmall   = 1.2 // 2 KB
	aimLarge   = 1.3 // 220 KB with a field injected
	aimInTurn  = 2.0
	largeBytes = 100_000
)

// against returns what a server is compared with, and the case that is taken
// off both.
func against(server string) (base, over string) {
	switch server {
	case syncServer:
		return batonServer, directServer
	case streamServer:
		return unreadServer, aloneServer
	default:
		return nothingServer, aloneServer
	}
}

func aim(c cell, server string) float64 {
	switch {
	case server == syncServer:
		return aimInTurn
	case server != batonServer:
		return 0
	case c.BodyBytes >= largeBytes:
		return aimLarge
	default:
		return aimSmall
	}
}

// met reports whether a ratio keeps the row's aim; a missing one does not.
func (r *row) met(f figure) bool { return f.Ratio.N > 0 && f.Ratio.Median <= r.Aim }

// rows compares the samples: a row for each cell and each server but the one
// that does nothing. Without any other, nothing stands for itself.
func rows(p *plan, samples []sample) []row {
	servers := slices.DeleteFunc(slices.Clone(p.Servers), func(s string) bool { return s == nothingServer || s == unreadServer })
	if len(servers) == 0 {
		servers = []string{nothingServer}
	}
	var out []row
	for _, c := range p.Cells {
		for _, s := range servers {
			if p.wants(s, c) {
				out = append(out, rowOf(p, samples, c, s))
			}
		}
	}
	return out
}

func rowOf(p *plan, samples []sample, c cell, server string) row {
	r := row{cell: c, Server: server, Aim: aim(c, server)}
	r.Base, r.Over = against(server)
	off, base, ours := pick(p, samples, c, r.Over), pick(p, samples, c, r.Base), pick(p, samples, c, server)
	r.OverP50 = spreadOf(values(off, func(s *sample) float64 { return s.P50 }))
	r.OverP99 = spreadOf(values(off, func(s *sample) float64 { return s.P99 }))
	over := func(off []*sample, of func(*sample) float64) figure {
		return figureOf(off, base, ours, of)
	}
	r.P50 = over(off, func(s *sample) float64 { return s.P50 })
	r.P99 = over(off, func(s *sample) float64 { return s.P99 })
	r.EnvoyCPU = over(off, func(s *sample) float64 { return s.EnvoyCPU })
	r.CPU = over(nil, func(s *sample) float64 { return s.CPU })
	r.Bytes = over(nil, func(s *sample) float64 { return s.Bytes })
	r.Mallocs = over(nil, func(s *sample) float64 { return s.Mallocs })
	for _, list := range [][]*sample{off, base, ours} {
		for _, s := range list {
			if s != nil {
				r.Failed += s.Failed
			}
		}
	}
	return r
}

// pick returns the samples of one case by repeat; nil where one is missing.
func pick(p *plan, samples []sample, c cell, server string) []*sample {
	out := make([]*sample, p.Repeats)
	if server == aloneServer || server == directServer {
		c.Mode = ""
	}
	for i := range samples {
		s := &samples[i]
		if s.Case == server && (cell{s.Mode, s.BodyBytes, s.Clients}) == c && s.Repeat < len(out) {
			out[s.Repeat] = s
		}
	}
	return out
}

func values(list []*sample, of func(*sample) float64) []float64 {
	var out []float64
	for _, s := range list {
		if s != nil {
			out = append(out, of(s))
		}
	}
	return out
}

// figureOf compares within each repeat; off, where not nil, is taken off both
// sides first.
func figureOf(off, base, ours []*sample, of func(*sample) float64) figure {
	var b, o, ratios []float64
	for i := range base {
		less := 0.0
		if off != nil {
			if off[i] == nil {
				continue
			}
			less = of(off[i])
		}
		if base[i] != nil {
			b = append(b, of(base[i])-less)
		}
		if ours[i] != nil {
			o = append(o, of(ours[i])-less)
		}
		if base[i] != nil && ours[i] != nil && of(base[i])-less > 0 {
			ratios = append(ratios, (of(ours[i])-less)/(of(base[i])-less))
		}
	}
	return figure{Base: spreadOf(b), Ours: spreadOf(o), Ratio: spreadOf(ratios)}
}
