package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"

	"github.com/seed-60ae5743/baton/internal/hour"
)

// scope is the instrumentation scope of metrics and spans.
const scope = "github.com/seed-60ae5743/baton"

// Config sets up [New]. The zero value gives metrics and no tracing.
type Config struct {
	// Version and Revision are shown in baton_build_info and in spans.
	Version  string
	Revision string

	Trace TraceConfig

	// Hour is told of each request, too; nil: nobody is.
	Hour *hour.Hour

	// Logger gets a line about spans that could not be sent, at most once a minute; nil
	// means no log.
	Logger *slog.Logger
}

// Telemetry holds the instruments and the tracer, and what serves them.
type Telemetry struct {
	Instruments *Instruments
	Tracer      *Tracer

	registry *prometheus.Registry
	metrics  *sdkmetric.MeterProvider
}

// New makes a Telemetry. It does not connect to anything yet.
func New(cfg Config) (*Telemetry, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Version = cmp.Or(cfg.Version, "unknown")
	reg := prometheus.NewRegistry()
	exp, err := otelprom.New(
		otelprom.WithRegisterer(reg),
		otelprom.WithoutScopeInfo(),
		otelprom.WithoutTargetInfo(),
		otelprom.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithoutSuffixes),
	)
	if err != nil {
		return nil, fmt.Errorf("telemetry: make the prometheus exporter: %w", err)
	}
	mp := sdkmetric.NewMeterProvider(
		sdkmetric.WithReader(exp),
		sdkmetric.WithExemplarFilter(exemplar.AlwaysOffFilter),
		// The SDK's own limit would merge the workers beyond it into one line. Counters
		// have limits of their own in counter.go.
		sdkmetric.WithCardinalityLimit(0),
	)
	ins, err := newInstruments(mp.Meter(scope), reg)
	if err != nil {
		return nil, err
	}
	ins.hour = cfg.Hour
	if err := registerProcess(reg, cfg); err != nil {
		return nil, fmt.Errorf("telemetry: register process collectors: %w", err)
	}
	tr, err := newTracer(cfg, ins)
	if err != nil {
		return nil, errors.Join(err, mp.Shutdown(context.Background()))
	}
	return &Telemetry{Instruments: ins, Tracer: tr, registry: reg, metrics: mp}, nil
}

func registerProcess(reg *prometheus.Registry, cfg Config) error {
	all := Metrics()
	help := all[slices.IndexFunc(all, func(m Metric) bool { return m.Name == MetricBuildInfo })].Help
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: MetricBuildInfo,
		Help: help,
		ConstLabels: prometheus.Labels{
			LabelVersion: cfg.Version, LabelRevision: cfg.Revision, LabelGoVersion: runtime.Version(),
		},
	})
	build.Set(1)
	return errors.Join(
		reg.Register(build),
		reg.Register(collectors.NewGoCollector()),
		reg.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	)
}

// Handler serves the metrics in the format that the scrape asks for.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		// A fault of one collector must not hide the others.
		ErrorHandling: promhttp.ContinueOnError,
	})
}

// Shutdown sends the spans that are left and ends all goroutines, within the time that
// ctx allows.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	return errors.Join(t.Tracer.shutdown(ctx), t.metrics.Shutdown(ctx))
}
