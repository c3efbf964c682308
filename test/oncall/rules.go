package oncall

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// every is how often the rules are evaluated.
const every = 30 * time.Second

type group struct {
	Name     string `yaml:"name"`
	Interval string `yaml:"interval"`
	Rules    []rule `yaml:"rules"`
}

type rule struct {
	Record      string            `yaml:"record,omitempty"`
	Alert       string            `yaml:"alert,omitempty"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

// window is a range in an expression, or how far it looks back.
var window = regexp.MustCompile(`(\[|offset )(\d+[smh])`)

// Rules renders Prometheus' file of rules, with all times divided by faster.
func Rules(faster int) ([]byte, error) {
	scaled := func(d time.Duration) string { return promTime(d / time.Duration(faster)) }
	scale := func(expr string) string {
		return window.ReplaceAllStringFunc(expr, func(w string) string {
			m := window.FindStringSubmatch(w)
			d, _ := time.ParseDuration(m[2])
			return m[1] + scaled(d)
		})
	}
	record := group{Name: "baton-recorded", Interval: scaled(every)}
	for _, r := range recorded() {
		record.Rules = append(record.Rules, rule{Record: r.Record, Expr: scale(r.Expr)})
	}
	alerts := group{Name: "baton", Interval: scaled(every)}
	for _, a := range Alerts() {
		r := rule{
			Alert: a.Name, Expr: scale(a.Expr), Labels: map[string]string{"severity": a.severity()},
			Annotations: map[string]string{"summary": a.Summary, "description": a.Meaning + " What to do: " + a.Do, "runbook_url": runbookURL + a.anchor()},
		}
		if a.For > 0 {
			r.For = scaled(a.For)
		}
		alerts.Rules = append(alerts.Rules, r)
	}
	out, err := yaml.MarshalWithOptions(map[string][]group{"groups": {record, alerts}}, yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("oncall: write rules: %w", err)
	}
	return append([]byte(generated), out...), nil
}

// recorded are series that alerts compare with each other.
func recorded() []rule {
	const sum = "sum without (instance, pod, endpoint, container, outcome, code) "
	return []rule{
		{Record: recordedRequests, Expr: sum + "(rate(baton_requests_total[5m]))"},
		{Record: recordedFailing, Expr: sum + `(rate(baton_requests_total{outcome=~"failed|cut|refused",code!~"` + clientCodes + `"}[5m]))`},
	}
}

func (a *Alert) severity() string {
	if a.Page {
		return "page"
	}
	return "ticket"
}

// anchor is that of the section's heading in docs/runbook.md, as GitHub makes it.
func (a *Alert) anchor() string { return "#" + strings.ToLower(a.Name) }

// promTime writes a time as Prometheus reads it: its durations have no fractions.
func promTime(d time.Duration) string {
	for _, u := range []struct {
		unit string
		is   time.Duration
	}{{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if d >= u.is && d%u.is == 0 {
			return strconv.FormatInt(int64(d/u.is), 10) + u.unit
		}
	}
	return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
}
