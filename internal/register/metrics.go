package register

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed-60ae5743/baton/internal/register/engine"
)

// metrics is the page /metrics; docs/register.md lists it. Gauges are computed from the
// state when the page is asked for.
type metrics struct {
	page http.Handler

	withdrawals     *prometheus.CounterVec // by cause
	healthFailures  *prometheus.CounterVec // by outcome
	drains          prometheus.Counter
	registrations   prometheus.Counter
	losses          prometheus.Counter
	registryFailure prometheus.Counter
}

const metricPrefix = "baton_register_"

func newMetrics(state func() State) *metrics {
	reg := prometheus.NewRegistry()
	with := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return with.NewCounter(prometheus.CounterOpts{Name: metricPrefix + name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + name, Help: help}, []string{label})
	}
	gauge := func(name, help string, value func(State) float64) {
		with.NewGaugeFunc(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help}, func() float64 { return value(state()) })
	}
	gauge("announced", "1 while there is a record that the registry should hold.", func(s State) float64 { return one(s.Record != nil) })
	gauge("held", "1 while the registry holds the latest record.", func(s State) float64 { return one(s.Held) })
	gauge("draining", "1 while the worker drains.", func(s State) float64 { return one(s.Phase == draining.String()) })
	gauge("engine_healthy", "1 while the engine's health is good.", func(s State) float64 { return one(s.Healthy) })
	with.NewCounterFunc(prometheus.CounterOpts{Name: metricPrefix + "lives_total", Help: "Lives of the engine that were announced."},
		func() float64 { return float64(state().Life) })
	m := &metrics{
		page:            promhttp.HandlerFor(reg, promhttp.HandlerOpts{}),
		withdrawals:     counters("withdrawals_total", "Records that were withdrawn.", "reason"),
		healthFailures:  counters("health_failures_total", "Health questions without a good answer.", "outcome"),
		drains:          counter("drains_total", "Drains that have begun."),
		registrations:   counter("registrations_total", "Times the worker became announced under an instance id."),
		losses:          counter("losses_total", "Registrations that were lost: the lease ended, or another process deleted the key."),
		registryFailure: counter("registry_failures_total", "Failures of the registry; of a series in a row, the first only."),
	}
	// Shown as 0 from the start: an alert on a rate would miss the first event of a new
	// series.
	for _, c := range causes {
		m.withdrawals.WithLabelValues(string(c))
	}
	for _, h := range []engine.Health{engine.Silent, engine.Unhealthy, engine.Refused} {
		m.healthFailures.WithLabelValues(h.String())
	}
	return m
}

func one(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// saw counts an event before the machine takes it.
func (m *metrics) saw(ev event) {
	if h, ok := ev.(healthAsked); ok && h.health != engine.Healthy {
		m.healthFailures.WithLabelValues(h.health.String()).Inc()
	}
}

// did counts an action.
func (m *metrics) did(a action) {
	switch {
	case a.verb == withdraw:
		m.withdrawals.WithLabelValues(string(a.cause)).Inc()
	case a.verb == announce && a.rec.Draining:
		m.drains.Inc()
	}
}
