package oncall

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"

	"github.com/seed-60ae5743/baton/internal/telemetry"
)

// classic is the form of dashboards that every Grafana reads, by import and from files. Its successor is
// Grafana 13's, and nothing else reads that.
type classic = dashboard.Dashboard //nolint:staticcheck // the successor: see above

// panel is a picture over time.
type panel struct {
	title, unit string
	queries     []query
}

// query is one of a panel's, with what its lines are called.
type query struct{ expr, legend string }

// board is a dashboard. Its variables choose what the expressions call $job, and $worker.
type board struct {
	uid, title string
	ofWorker   bool
	panels     []panel
}

// quantiles returns the median and the 99th percentile of a histogram.
func quantiles(metric, legend string) []query {
	q := func(of string) query {
		return query{"histogram_quantile(" + of + ", sum by (le) (rate(" + metric + `_bucket{job=~"$job"}[$__rate_interval])))`, legend + " p" + strings.TrimPrefix(of, "0.")}
	}
	return []query{q("0.50"), q("0.99")}
}

// hit returns which part of the prompt tokens of one kind is another kind.
func hit(kind, of string) query {
	sum := func(k string) string {
		return `sum(rate(baton_prompt_tokens_total{job=~"$job",kind="` + k + `"}[$__rate_interval]))`
	}
	return query{sum(kind) + " / " + sum(of), kind}
}

// by sums a counter's rate, or takes the greatest of a gauge that all replicas have alike.
func by(agg, labels, expr string) query {
	legend := "{{" + strings.ReplaceAll(labels, ", ", "}} {{") + "}}"
	return query{agg + " by (" + labels + ") (" + expr + ")", legend}
}

func rate(metric string) string { return "rate(" + metric + `{job=~"$job"}[$__rate_interval])` }
func now(metric string) string  { return metric + `{job=~"$job"}` }

func overview() board {
	return board{uid: "baton-overview", title: "Baton", panels: []panel{
		{"Troubles", "short", []query{{`max by (kind) (baton_trouble{job=~"$job"}) > 0`, "{{kind}}"}}},
		{"Requests by outcome", "reqps", []query{by("sum", "outcome", rate("baton_requests_total"))}},
		{"Failures by code", "reqps", []query{by("sum", "code", rate("baton_failures_total"))}},
		{"First token", "s", quantiles("gen_ai_server_time_to_first_token_seconds", "first token")},
		{"Time between tokens", "s", quantiles("gen_ai_server_time_per_output_token_seconds", "each token")},
		{"Whole request", "s", quantiles("gen_ai_server_request_duration_seconds", "request")},
		{"Hit rate of prompts", "percentunit", []query{hit("available", "asked"), hit("predicted", "asked"), hit("delivered", "told")}},
		{"Lost overlap by cause", "percentunit", []query{{
			`sum by (cause) (rate(baton_overlap_lost_tokens_total{job=~"$job"}[$__rate_interval])) / on () group_left () sum(rate(baton_prompt_tokens_total{job=~"$job",kind="asked"}[$__rate_interval]))`, "{{cause}}",
		}}},
		{"Queue of prompts, mean of ranks", "s", []query{by("max", "model, role", now("baton_backlog_seconds"))}},
		{"Queue of prompts, least busy rank", "s", []query{by("max", "model, role", now("baton_least_backlog_seconds"))}},
		{"Free decode blocks", "percentunit", []query{{
			`min by (model, role) (baton_decode_free_blocks{job=~"$job"} / baton_decode_capacity_blocks{job=~"$job"})`, "{{model}} {{role}}",
		}}},
		{"Requests that wait, and streams that stand still", "short", []query{
			{`sum(baton_requests_waiting{job=~"$job"})`, "wait for a worker"}, {`sum(baton_streams_silent{job=~"$job"})`, "stand still"},
		}},
		{"Workers by state", "short", []query{by("max", "role, state", now("baton_workers"))}},
		{"KV event streams by state", "short", []query{
			by("max", "state", now("baton_kv_event_streams")), {`max(baton_kv_events_silent_workers{job=~"$job"})`, "silent workers"},
		}},
		{"Replicas, as others hear them", "short", []query{by("max", "state", now("baton_replicas"))}},
		{"Models by whether they can be served", "short", []query{by("max", "activation, can_serve", now("baton_keys"))}},
		{"Decisions", "s", quantiles("baton_decision_seconds", "decision")},
		{"Fresh attempts", "ops", []query{by("sum", "reason", rate("baton_fresh_picks_total"))}},
	}}
}

func ofWorkers() board {
	of := func(metric string) string { return metric + `{job=~"$job",worker_id=~"$worker"}` }
	perRank := func(metric string) []query { return []query{by("max", "worker_id, dp_rank", of(metric))} }
	return board{uid: "baton-workers", title: "Baton: workers", ofWorker: true, panels: []panel{
		{"Attempts by outcome", "ops", []query{by("sum", "worker_id, role, outcome", "rate("+of("baton_worker_attempts_total")+"[$__rate_interval])")}},
		{"Charges", "ops", []query{by("sum", "worker_id, charge", "rate("+of("baton_worker_charges_total")+"[$__rate_interval])")}},
		{"Prompt tokens booked", "short", perRank("baton_worker_prefill_tokens")},
		{"Prefill legs booked", "short", perRank("baton_worker_prefill_requests")},
		{"KV blocks that picks count", "short", perRank("baton_worker_decoding_blocks")},
		{"Answers booked", "short", perRank("baton_worker_decode_requests")},
		{"Blocks in the index", "short", perRank("baton_worker_index_blocks")},
		{"Blocks that the index dropped", "ops", []query{by("sum", "worker_id, dp_rank", "rate("+of("baton_worker_index_shed_blocks_total")+"[$__rate_interval])")}},
	}}
}

// dashboards returns each dashboard by the name of its file.
func dashboards() (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, b := range []board{overview(), ofWorkers()} {
		model, err := b.build()
		if err != nil {
			return nil, fmt.Errorf("oncall: dashboard %s: %w", b.uid, err)
		}
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", " ")
		if err := e.Encode(model); err != nil {
			return nil, fmt.Errorf("oncall: dashboard %s: %w", b.uid, err)
		}
		out["dashboards/"+b.uid+".json"] = text.Bytes()
	}
	return out, nil
}

func (b *board) build() (classic, error) {
	kind, from := "prometheus", "${datasource}"
	source := common.DataSourceRef{Type: &kind, Uid: &from}
	d := dashboard.NewDashboardBuilder(b.title) //nolint:staticcheck // see classic
	d = d.Uid(b.uid).Tags([]string{"baton"}).Editable().Refresh("30s").Time("now-1h", "now").
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Prometheus").Type(kind)).
		WithVariable(variable("job", "Deployment", "label_values(baton_ready, job)", "", source))
	if b.ofWorker {
		d = d.WithVariable(variable("worker", "Worker", `query_result(max by (endpoint, role, worker_id) (baton_worker_info{job=~"$job"}))`,
			`/endpoint="(?<text>[^"]+)".*worker_id="(?<value>[^"]+)"/`, source))
	}
	for i, p := range b.panels {
		const width, height = 12, 8
		g := timeseries.NewPanelBuilder().Title(p.title).Description(p.help()).Unit(p.unit).Min(0).Datasource(source).
			GridPos(dashboard.GridPos{H: height, W: width, X: uint32(i%2) * width, Y: uint32(i/2) * height}).
			Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom)).
			Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending))
		for j, q := range p.queries {
			g = g.WithTarget(prometheus.NewDataqueryBuilder().Expr(q.expr).LegendFormat(q.legend).RefId(string(rune('A' + j))).Range().Datasource(source))
		}
		d = d.WithPanel(g)
	}
	return d.Build()
}

func variable(name, label, from, regex string, source common.DataSourceRef) *dashboard.QueryVariableBuilder {
	return dashboard.NewQueryVariableBuilder(name).Label(label).Query(dashboard.StringOrMap{String: &from}).Regex(regex).Datasource(source).
		Multi(true).IncludeAll(true).AllValue(".*").Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc)
}

// markup is what a description of Grafana's does not need of the docs' links.
var markup = regexp.MustCompile(` ?\(\[[^]]*\]\([^)]*\)\)`)

// help is what the metrics of the panel mean, as docs/metrics.md says it.
func (p *panel) help() string {
	var out []string
	for _, m := range telemetry.Metrics() {
		named := func(q query) bool { return slices.Contains(metricsOf(q.expr), m.Name) }
		if slices.ContainsFunc(p.queries, named) {
			out = append(out, m.Name+": "+markup.ReplaceAllString(m.Help, ""))
		}
	}
	return strings.Join(out, "\n\n")
}

// word is a name in PromQL.
var word = regexp.MustCompile(`\b(?:baton|gen_ai_server)_\w+`)

// metricsOf returns the metrics that an expression names, a histogram's buckets as the histogram.
func metricsOf(expr string) []string {
	var out []string
	for _, m := range word.FindAllString(expr, -1) {
		out = append(out, strings.TrimSuffix(m, "_bucket"))
	}
	return out
}
