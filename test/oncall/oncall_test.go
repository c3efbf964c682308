package oncall

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/telemetry"
)

func TestTheCommittedFilesAreThoseOfTheList(t *testing.T) {
	files, err := Files()
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "%s: run `make alerts-files`", name)
	}
}

// readRules returns the rules as the file has them.
func readRules(t *testing.T, faster int) (recorded, alerts []rule) {
	t.Helper()
	text, err := Rules(faster)
	require.NoError(t, err)
	var file struct {
		Groups []group `yaml:"groups"`
	}
	require.NoError(t, yaml.UnmarshalWithOptions(text, &file, yaml.Strict()))
	require.Len(t, file.Groups, 2)
	return file.Groups[0].Rules, file.Groups[1].Rules
}

// targetLabels are those that a scrape adds.
var targetLabels = []string{"job", "instance", "namespace", "pod", "container", "endpoint", "le"}

var (
	quotedText = regexp.MustCompile(`"[^"]*"`)
	selector   = regexp.MustCompile(`(\w+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping   = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) ?\(([^)]*)\)`)
)

// unknown returns what an expression names that no scrape of Baton has.
func unknown(expr string, recorded ...string) []string {
	defs := map[string]telemetry.Metric{}
	for _, m := range telemetry.Metrics() {
		defs[m.Name] = m
	}
	var out []string
	labels := slices.Clone(targetLabels)
	bare := quotedText.ReplaceAllString(expr, `""`)
	for _, name := range recorded {
		bare = strings.ReplaceAll(bare, name, "")
	}
	names := metricsOf(bare)
	if len(names) == 0 && bare == expr {
		out = append(out, "names no metric: "+expr)
	}
	for _, name := range names {
		if defs[name].Name == "" {
			out = append(out, "no metric: "+name)
		}
		labels = append(labels, defs[name].Labels...)
	}
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		of := append(slices.Clone(targetLabels), defs[strings.TrimSuffix(s[1], "_bucket")].Labels...)
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(of, m[1]) {
				out = append(out, "no label of "+s[1]+": "+m[1])
			}
			for _, v := range strings.Split(m[3], "|") {
				if s[1] == telemetry.MetricTrouble && m[1] == telemetry.LabelKind && !slices.Contains(telemetry.TroubleKinds(), v) {
					out = append(out, "no kind of trouble: "+v)
				}
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(bare, -1) {
		for _, l := range strings.Split(g[1], ",") {
			if l = strings.TrimSpace(l); l != "" && !slices.Contains(labels, l) {
				out = append(out, "no label here: "+l)
			}
		}
	}
	return out
}

func TestWhatNoScrapeHasIsSeen(t *testing.T) {
	require.Empty(t, unknown(`sum by (kind) (baton_trouble{kind=~"no_workers|queue_full",job="a"})`))
	require.Equal(t, []string{"no metric: baton_troubles"}, unknown("baton_troubles"))
	require.Equal(t, []string{"no kind of trouble: queue_empty"}, unknown(`baton_trouble{kind=~"queue_full|queue_empty"}`))
	require.Equal(t, []string{"no label of baton_trouble: kinds"}, unknown(`baton_trouble{kinds="queue_full"}`))
	require.Equal(t, []string{"no label here: model"}, unknown(`max by (model, kind) (baton_trouble)`))
}

func TestRulesNameWhatAScrapeHas(t *testing.T) {
	recorded, alerts := readRules(t, 1)
	for _, r := range recorded {
		require.Empty(t, unknown(r.Expr), r.Record)
	}
	for _, r := range alerts {
		require.Empty(t, unknown(r.Expr, recordedRequests, recordedFailing), r.Alert)
	}
}

// withoutAlert are the kinds of trouble that no alert names, with the reason.
var withoutAlert = map[string]string{
	"requests_failing":  "BatonRequestsFail goes by the rate: of few requests one bad one stays among the latest for hours",
	"prompts_estimated": "of some prompts, such as those with pictures, the tokens are never known; the dashboard has what it costs",
	"exposed":           "somebody has accepted it, by insecure_listen",
}

func TestEachKindOfTroubleHasAnAlert(t *testing.T) {
	var all []string
	for _, a := range Alerts() {
		for _, s := range selector.FindAllStringSubmatch(a.Expr, -1) {
			if s[1] == telemetry.MetricTrouble {
				all = append(all, strings.Split(matcher.FindStringSubmatch(s[2])[3], "|")...)
			}
		}
	}
	for _, kind := range telemetry.TroubleKinds() {
		require.Equal(t, withoutAlert[kind] == "", slices.Contains(all, kind), kind)
	}
}

func TestAnAlertSaysWhatToDo(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range Alerts() {
		require.False(t, seen[a.Name], a.Name)
		seen[a.Name] = true
		for _, text := range []string{a.Because, a.Summary, a.Meaning, a.Users, a.Look, a.Do} {
			require.NotEmpty(t, text, a.Name)
		}
		require.Zero(t, a.For%time.Minute, a.Name)
	}
	book := runbook()
	_, alerts := readRules(t, 1)
	for _, r := range alerts {
		_, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "docs/runbook.md#")
		require.Contains(t, strings.ToLower(book), "\n## "+anchor+"\n")
		require.Contains(t, []string{"page", "ticket"}, r.Labels["severity"])
	}
}

// TestTheTimesOfRulesShrinkAlike: a second of a test is a minute.
func TestTheTimesOfRulesShrinkAlike(t *testing.T) {
	text, err := Rules(60)
	require.NoError(t, err)
	_, real := readRules(t, 1)
	_, alerts := readRules(t, 60)
	for i, r := range real {
		require.Equal(t, strings.ReplaceAll(r.For, "m", "s"), alerts[i].For, r.Alert)
	}
	require.Contains(t, string(text), "[5s]")
	require.Contains(t, string(text), "interval: 500ms")
	require.NotRegexp(t, `\[\d+m\]`, string(text))
}

// row is a line of the failure table in Go.
var row = regexp.MustCompile(`(?m)^\s*(\w+)\s*= Failure\{Code: "(\w+)", Status: (\d+)(.*)$`)

// TestTheCodesAreThoseOfTheFailureTable: which requests count as failing is not for a list to forget.
func TestTheCodesAreThoseOfTheFailureTable(t *testing.T) {
	src, err := os.ReadFile("../../internal/leg/failure.go")
	require.NoError(t, err)
	clients, unserved := strings.Split(clientCodes, "|"), strings.Split(unservedCodes, "|")
	known := map[string]bool{}
	rows := row.FindAllStringSubmatch(string(src), -1)
	require.Greater(t, len(rows), 50)
	for _, r := range rows {
		name, code, status, rest := r[1], r[2], r[3], r[4]
		known[code] = true
		refuses := !strings.Contains(rest, "Ends:") && !strings.Contains(strings.ToLower(name), "failleg")
		theirs := refuses && (status[0] == '4' || strings.HasPrefix(name, "failPin"))
		require.Equal(t, theirs, slices.Contains(clients, code), "%s: whose doing is it?", code)
	}
	for _, code := range append(clients, unserved...) {
		require.True(t, known[code], code)
	}
}

// strictly reads a dashboard by Grafana's own schema: no unknown field, none missing. Where there is no fault
// it returns an error that is an empty list.
func strictly(t *testing.T, text []byte) (d classic) {
	t.Helper()
	plugins.RegisterDefaultPlugins()
	faults := func(text string) string {
		if err := new(classic).UnmarshalJSONStrict([]byte(text)); err != nil {
			return err.Error()
		}
		return ""
	}
	require.Empty(t, faults(string(text)))
	for _, wrong := range []string{`"refId"`, `"title"`, `"schemaVersion"`, `"showLegend"`} {
		broken := strings.Replace(string(text), wrong, `"another"`, 1)
		require.NotEqual(t, string(text), broken, wrong)
		require.NotEmpty(t, faults(broken), "a judge that sees nothing: %s", wrong)
	}
	require.NoError(t, json.Unmarshal(text, &d)) // the strict reader leaves out panels
	require.NoError(t, d.Validate())
	return d
}

func TestDashboardsAreGrafanasAndNameWhatAScrapeHas(t *testing.T) {
	boards, err := dashboards()
	require.NoError(t, err)
	for name, text := range boards {
		d := strictly(t, text)
		require.EqualValues(t, 42, d.SchemaVersion, "README.md says it")
		require.NotEmpty(t, d.Panels, name)
		for _, p := range d.Panels {
			require.Equal(t, "${datasource}", *p.Panel.Datasource.Uid)
			require.NotEmpty(t, *p.Panel.Description, *p.Panel.Title)
			require.NotEmpty(t, *p.Panel.FieldConfig.Defaults.Unit, *p.Panel.Title)
		}
	}
	for _, b := range []board{overview(), ofWorkers()} {
		for _, p := range b.panels {
			for _, q := range p.queries {
				require.Empty(t, unknown(q.expr), p.title)
				require.Contains(t, q.expr, `job=~"$job"`, p.title)
			}
		}
	}
}
