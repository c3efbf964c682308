package stack

import (
	"context"
	"strconv"
	"strings"
)

// Metrics is one reading of a /metrics page.
type Metrics string

// Metrics reads the plugin's metrics.
func (p *Plugin) Metrics(ctx context.Context) (Metrics, error) {
	text, err := Get(ctx, p.Admin+"/metrics")
	return Metrics(text), err
}

// Page reads another page of the plugin's admin address, such as
// /debug/decisions?n=20.
func (p *Plugin) Page(ctx context.Context, path string) (string, error) {
	return Get(ctx, p.Admin+path)
}

// Sum adds up the lines of a metric whose labels contain all of parts. found is false if
// there is no such line: the counter has not counted yet, or the name does not exist.
func (m Metrics) Sum(name string, parts ...string) (sum float64, found bool) {
lines:
	for line := range strings.Lines(string(m)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, p := range parts {
			if !strings.Contains(line, p) {
				continue lines
			}
		}
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil {
			sum, found = sum+v, true
		}
	}
	return sum, found
}

// Booked names the bookings on workers and the open streams that the plugin still has, or
// returns "". A page without these metrics does not count as idle.
func (m Metrics) Booked() string {
	var open []string
	for _, name := range []string{
		"baton_worker_prefill_requests", "baton_worker_decode_requests",
		"baton_worker_prefill_tokens", "baton_worker_decode_blocks", "baton_streams_in_flight", "baton_body_bytes_in_flight",
	} {
		v, found := m.Sum(name)
		if !found && !strings.HasSuffix(name, "_in_flight") {
			open = append(open, name+" is not told")
		}
		if v != 0 {
			open = append(open, name+" "+strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	return strings.Join(open, ", ")
}
