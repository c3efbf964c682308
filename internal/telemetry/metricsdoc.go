package telemetry

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// MetricsDoc returns the text of docs/metrics.md.
func MetricsDoc() string {
	var b strings.Builder
	b.WriteString("# Metrics, spans and log keys\n\n" +
		"Generated from internal/telemetry (`make docs`); do not edit.\n\n" +
		"## Metrics\n\n" +
		"Served on the admin address under `/metrics`, beside the Go runtime's `go_*` and the process's `process_*`.\n\n" +
		"| metric | kind | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, m := range Metrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Kind, m.Unit, quoted(m.Labels), m.Help)
	}
	b.WriteString("\n`gen_ai_…` and `baton_time_to_first_byte_seconds` are also native histograms, for a scrape that asks for them (`scrape_native_histograms`). " +
		"`gen_ai_…` have the names and buckets of OpenTelemetry's GenAI conventions.\n\n" +
		"Buckets, as upper bounds:\n\n")
	for _, m := range Metrics() {
		if m.Kind != Histogram {
			continue
		}
		s := make([]string, len(m.Buckets))
		for i, f := range m.Buckets {
			s[i] = strconv.FormatFloat(f, 'g', -1, 64)
		}
		fmt.Fprintf(&b, "- `%s`: %s\n", m.Name, strings.Join(s, ", "))
	}
	b.WriteString("\n## Labels\n\n" +
		"No label takes values that a client can choose. " +
		"A counter that has seen " + strconv.Itoa(maxSets) + " combinations counts further ones with every label `" + Other + "`; one of workers, with the worker `" + Other + "`.\n\n" +
		"| label | values |\n| --- | --- |\n")
	for _, l := range Labels() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.Name, l.Values)
	}
	b.WriteString("\nValues of `" + LabelOutcome + "`:\n\n")
	list(&b, outcomes())
	b.WriteString("\nValues of `" + LabelKind + "`:\n\n")
	list(&b, promptKinds())
	b.WriteString("\n## Spans\n\n" +
		"Sent over OTLP gRPC when an endpoint is configured. Trace context is W3C (`traceparent`, `tracestate`); " +
		"a sampled parent is always followed.\n\n" +
		"| span | meaning | attributes |\n| --- | --- | --- |\n")
	for _, s := range Spans() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, s.Help, quoted(s.Attributes))
	}
	b.WriteString("\n## Log keys\n\n| key | meaning |\n| --- | --- |\n")
	for _, k := range logkey.All() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", k.Name, k.Help)
	}
	return b.String()
}

// list writes values that are too long for a cell of a table.
func list(b *strings.Builder, values []Label) {
	for _, v := range values {
		fmt.Fprintf(b, "- %s: %s.\n", v.Name, v.Values)
	}
}

func quoted(names []string) string {
	s := make([]string, len(names))
	for i, n := range names {
		s[i] = "`" + n + "`"
	}
	return strings.Join(s, ", ")
}
