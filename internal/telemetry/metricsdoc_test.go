package telemetry

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

// TestMetricsDocIsUpToDate compares docs/metrics.md; -rewrite writes it.
func TestMetricsDocIsUpToDate(t *testing.T) {
	const file = "../../docs/metrics.md"
	_ = datadriven.TestData{} // its package declares -rewrite
	want := metricsDoc(t)
	if flag.Lookup("rewrite").Value.String() == "true" {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(b))
}

// metricsDoc returns the text of docs/metrics.md.
func metricsDoc(t *testing.T) string {
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
	for _, l := range labelDefs() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.Name, l.Values)
	}
	b.WriteString("\nValues of `" + LabelOutcome + "`:\n\n")
	list(&b, outcomes())
	b.WriteString("\nValues of `" + LabelKind + "`:\n\n")
	list(&b, promptKinds())
	b.WriteString("- of baton_trouble: `" + strings.Join(TroubleKinds(), "`, `") + "`; the [runbook](runbook.md) has an alert for each.\n")
	b.WriteString("\nValues of `" + LabelCause + "` of lost overlap:\n\n")
	list(&b, lossCauses())
	b.WriteString(joins)
	b.WriteString("\n## Spans\n\n" +
		"Sent over OTLP gRPC when an endpoint is configured. Trace context is W3C (`traceparent`, `tracestate`); " +
		"a sampled parent is always followed.\n\n" +
		"| span | meaning | attributes |\n| --- | --- | --- |\n")
	for _, s := range spanDefs() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, s.Help, quoted(s.Attributes))
	}
	b.WriteString("\n## Log keys\n\n| key | meaning |\n| --- | --- |\n")
	for _, k := range logKeys(t) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", k.Name, k.Values)
	}
	return b.String()
}

// joins says how the metrics of a worker get its address.
const joins = "\n## Joins\n\n" +
	"`" + MetricWorkerInfo + "` gives the other metrics of a worker its address. A worker with several models has a line for each, so " +
	"take them together first, or one model's:\n\n" +
	"```\n" +
	MetricPrefillTokens + "\n  * on (instance, worker_id) group_left (endpoint, host)\n    max by (instance, worker_id, endpoint, host) (" + MetricWorkerInfo + ")\n\n" +
	"sum by (host) (\n  rate(" + MetricWorkerAttempts + "{outcome=\"failed\"}[5m])\n" +
	"  * on (instance, worker_id) group_left (host) " + MetricWorkerInfo + "{model=\"m\"})\n" +
	"```\n\n" +
	"A ServiceMonitor of yours needs `honorLabels: true` (the chart's has it), else its own `endpoint` takes the place of the worker's. " +
	"Workers that are counted as `" + Other + "` have no such line, nor has one that has left.\n"

// list writes values that are too long for a cell of a table.
func list(b *strings.Builder, values []labelDef) {
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

// logKeys reads the keys of package logkey, and their meanings from the comments.
func logKeys(t *testing.T) []labelDef {
	f, err := parser.ParseFile(token.NewFileSet(), "logkey/logkey.go", nil, parser.ParseComments)
	require.NoError(t, err)
	var out []labelDef
	for _, d := range f.Decls {
		for _, s := range d.(*ast.GenDecl).Specs {
			key := s.(*ast.ValueSpec)
			name, err := strconv.Unquote(key.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			require.NotNil(t, key.Comment, "the key %s has no meaning", name)
			out = append(out, labelDef{name, strings.TrimSpace(key.Comment.Text())})
		}
	}
	return out
}

// labelDef describes one label and the values it can take.
type labelDef struct {
	Name, Values string
}

// labelDefs returns every label.
func labelDefs() []labelDef {
	return []labelDef{
		{LabelOutcome, "by what has ended: below"},
		{LabelCode, "a code of the failure table in ARCHITECTURE.md; if nothing failed, the outcome"},
		{LabelModel, "a model that discovery lists"},
		{LabelReason, "a short code of the package that gives it; `none` where it does not apply"},
		{LabelRole, "`prefill`, `decode`, `aggregated`"},
		{LabelMode, "a router mode: `kv`, `round-robin`, `random`, `least-loaded`, `power-of-two`; `direct` or `pre-routed` if the request named the worker"},
		{LabelTokenSource, "`request_ids`, `local_tokenizer`, `engine_tokenize`, `byte_estimate`, `none`"},
		{LabelLeg, "`main`, `prefill`; of streams also `first_token`, one that reads the beginning of an answer. Of what was seen: `mirrored_prefill`, `first_prefill`, `decode`, `alone`"},
		{LabelSeen, "the first column of the blame table in ARCHITECTURE.md"},
		{LabelCharge, "the blame table's fourth column, with `_` for spaces; `held`: a mate has not shown yet, or has disproved, that the worker is at fault; `handoff_failed`: charged to both workers of a pair"},
		{LabelFinding, "`token`, `error`, `end`, `other`"},
		{LabelExpected, "`kept`, `missed`: what the pick believed of a target"},
		{LabelResult, "`kept`, `missed`: what came of a target"},
		{LabelKind, "`asked`, `available`, `predicted`, `delivered`, `told`, `told_predicted`: below; of hand-offs: `nixl_pull`, `context_first`; of troubles: below"},
		{LabelPart, "the type of a plugin, a feature gate or a key, as the file has it, at most 60 characters"},
		{LabelOperation, "`chat`, `text_completion`, `generate` (SGLang's own); `none` if only headers were read"},
		{LabelGenAIModel, "as model"},
		{LabelErrorType, "`none`, or as code"},
		{LabelWhere, "of a panic: `main_leg`, `prefill_leg`, or the name of a task; of an answer by another endpoint: `other`, `unknown`"},
		{LabelSource, "as token_source"},
		{LabelState, "`healthy`, `aside`, `partly aside` (ranks with ports of their own, some of them), `recovering`, `draining`; of facts and of KV events, as the metric says"},
		{LabelActivation, "an activation state: `absent`, `decode-waiting`, `prefill-pending`, `prefill-ready`, `deactivated`"},
		{LabelCanServe, "`true`, `false`"},
		{LabelFrom, "as activation"},
		{LabelTo, "aside: as state; activation: as from"},
		{LabelCause, "a short code of what happened; of lost overlap: below"},
		{LabelWorker, "the instance id in decimal"},
		{LabelEndpoint, "where the worker is reached, `ip:port`"},
		{LabelHost, "the endpoint's IP address"},
		{LabelDPRank, "the data-parallel rank"},
		{LabelVersion, "Baton's version"},
		{LabelRevision, "the commit it was built from"},
		{LabelGoVersion, "the Go version it was built with"},
	}
}

// outcomes are the values of LabelOutcome, by what has ended.
func outcomes() []labelDef {
	return []labelDef{
		{"Requests, each in exactly one", "`ok`; `rejected` by a worker with a 4xx; `failed` though attempts were made; `cut` after the answer had begun; `client_left`; `refused` by the plugin or by Envoy, before any worker was asked; `answered` by the plugin itself; `unfinished` if no access log said how the answer ended"},
		{"Attempts", "these and `retried`"},
		{"Prefill legs", "`started`, `admitted`, `well`, `failed`, `ended`, `late`, `refused`, `unowned`, `aborted`"},
		{"Tokenize", "`tokenized`, `tokenized with its pictures`, `tokenized up to its first picture`, `not every picture was told of`, `the prompt is truncated`, `the prompt has pictures`, `prompt too large to tokenize`, `too many tokenize requests`, `tokenizer set aside`, `tokenizer too slow`, `tokenizer failed`, `tokenizer refused the prompt`, `tokenizer refused the API key`, `cancelled`"},
		{"Replays, dumps", "`ok`, `failed`"},
		{"Engine reports", "`ok`, `unreachable`, `refused`, `unreadable`"},
		{"Compared tokens", "`told`, the engine's KV events list all blocks of the prompt; `equal`, they do not, but its tokenizer gives the same tokens; `differs`, it gives others; `unknown`, it was not asked or gave no answer that can be compared"},
	}
}

// promptKinds are the values of LabelKind.
func promptKinds() []labelDef {
	return []labelDef{
		{"`asked`", "all tokens"},
		{"`available`", "held by the best eligible worker, as far as the index says"},
		{"`predicted`", "held by the picked worker, as far as the index says"},
		{"`delivered`", "not computed, as the engine's usage says; not every engine says it of every request"},
		{"`told`, `told_predicted`", "`asked` and `predicted` of the requests whose engine said it"},
	}
}

// lossCauses are the values of LabelCause of lost overlap.
func lossCauses() []labelDef {
	return []labelDef{
		{"`" + LossLoad + "`", "the worker that held them had more to do than computing them again costs"},
		{"`" + LossConstraint + "`", "the request, or its pair, ruled that worker out"},
		{"`" + LossAside + "`", "that worker was not in service"},
		{"`" + LossStaleIndex + "`", "the index was behind the engine"},
		{"`" + LossEvicted + "`", "the engine has evicted them since the pick"},
		{"`" + LossEstimate + "`", "the prompt's tokens were estimated"},
		{"`" + LossOtherReplica + "`", "another replica's requests came between"},
		{"`" + LossEngineSilent + "`", "that worker's KV events do not come"},
	}
}

// spanDef describes one span.
type spanDef struct {
	Name       string
	Help       string
	Attributes []string
}

// spanDefs returns every span.
func spanDefs() []spanDef {
	return []spanDef{
		{SpanRequest, "One attempt to serve a request, from its headers to its end.", []string{
			AttrRequestID, AttrAttempt, AttrModel, AttrPath, AttrOutcome, AttrReason, AttrError, AttrStatus,
		}},
		{SpanDecision, "From the complete request to the pick of both workers, tokenizing included.", []string{
			AttrISLTokens, AttrTokenSource, AttrMode, AttrReason, AttrPrefill, AttrDecode, AttrOverlapBlocks, AttrCost,
		}},
		{SpanPrefillLeg, "The prefill leg, from its first byte at Baton to its end.", []string{
			AttrPrefill, AttrEndpoint, AttrOutcome, AttrReason, AttrError, AttrStatus,
		}},
		{SpanDecodeLeg, "The decode leg, from the routed request to the end of the answer.", []string{
			AttrDecode, AttrEndpoint, AttrOutcome, AttrReason, AttrError, AttrStatus,
		}},
	}
}
