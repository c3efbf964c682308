package telemetry

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// TraceConfig says where spans are sent. The zero value means no tracing.
type TraceConfig struct {
	// Endpoint is the OTLP gRPC collector as "host:port"; "" means none.
	Endpoint string

	// Insecure means plain text to any address; else only a loopback address gets that, and any
	// other TLS with the system's roots. Spans hold request ids, model names and worker addresses,
	// and no prompts.
	Insecure bool

	// SampleRatio is the share of requests that are traced, of those without a parent
	// that decides it, in (0, 1]. 0 means 1. Below 0 means none: then only parents
	// decide. A traced request costs tens of microseconds of CPU.
	SampleRatio float64
}

// Validate returns every fault, joined, or nil.
func (c TraceConfig) Validate() error {
	if c.Endpoint == "" {
		return nil
	}
	var errs []error
	host, port, err := net.SplitHostPort(c.Endpoint)
	if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || host == "" {
		errs = append(errs, fmt.Errorf("trace endpoint %q: expected host:port", c.Endpoint))
	}
	if !(c.SampleRatio <= 1) {
		errs = append(errs, fmt.Errorf("trace sample ratio %v: expected a number up to 1", c.SampleRatio))
	}
	return errors.Join(errs...)
}

func (c TraceConfig) credentials() credentials.TransportCredentials {
	if c.Insecure || isLoopback(c.Endpoint) {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
}

func isLoopback(hostPort string) bool {
	host, _, _ := net.SplitHostPort(hostPort)
	a, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && a.IsLoopback())
}

// Tracer starts spans. Safe for concurrent use. A nil Tracer starts none.
type Tracer struct {
	tracer   trace.Tracer // nil: there is no tracing
	provider *sdktrace.TracerProvider
	conn     *grpc.ClientConn
}

func newTracer(cfg Config, ins *Instruments) (*Tracer, error) {
	c := cfg.Trace
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	if c.Endpoint == "" {
		return &Tracer{}, nil
	}
	// What the library says of a variable OTEL_… that it cannot read has its value, which may hold a
	// password. The exporter below tells what fails.
	otel.SetLogger(logr.Discard())
	// The exporter's own connection would take its address and its credentials from
	// environment variables, if there are any. So it gets this one.
	conn, err := grpc.NewClient(c.Endpoint, grpc.WithTransportCredentials(c.credentials()))
	if err != nil {
		return nil, fmt.Errorf("telemetry: trace endpoint %q: %w", c.Endpoint, err)
	}
	exp, err := otlptracegrpc.New(context.Background(), otlptracegrpc.WithGRPCConn(conn),
		otlptracegrpc.WithTimeout(5*time.Second))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("telemetry: make the trace exporter: %w", err), conn.Close())
	}
	t := newSpanTracer(cfg, &exporter{SpanExporter: exp, ins: ins, logger: cfg.Logger})
	t.conn = conn
	return t, nil
}

func newSpanTracer(cfg Config, exp sdktrace.SpanExporter) *Tracer {
	ratio := cmp.Or(cfg.Trace.SampleRatio, 1)
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))),
		sdktrace.WithBatcher(exp, sdktrace.WithBatchTimeout(time.Second), sdktrace.WithExportTimeout(5*time.Second)),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "baton"),
			attribute.String("service.version", cfg.Version),
		)),
	)
	return &Tracer{tracer: tp.Tracer(scope), provider: tp}
}

// Enabled reports whether spans are sent. If they are not, a caller need not make their
// attributes.
func (t *Tracer) Enabled() bool { return t != nil && t.tracer != nil }

// Start starts a span under parent, which may be remote, local or zero (a new trace, if
// it is sampled), at the given time; a zero time means now. Without tracing the span does
// nothing.
func (t *Tracer) Start(parent trace.SpanContext, name string, at time.Time, attrs ...attribute.KeyValue) trace.Span {
	if !t.Enabled() {
		return noop.Span{}
	}
	ctx := context.Background()
	if parent.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, parent)
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(at), trace.WithAttributes(attrs...))
	return span
}

// End ends the span at the given time; zero means now. A fault other than "" marks the
// span as failed, and is its description. A nil span is ignored.
func End(span trace.Span, at time.Time, fault string, attrs ...attribute.KeyValue) {
	if span == nil || !span.IsRecording() {
		return
	}
	span.SetAttributes(attrs...)
	if fault != "" {
		span.SetStatus(codes.Error, fault)
	}
	span.End(trace.WithTimestamp(at))
}

func (t *Tracer) shutdown(ctx context.Context) error {
	if !t.Enabled() {
		return nil
	}
	err := t.provider.Shutdown(ctx)
	if t.conn != nil {
		err = errors.Join(err, t.conn.Close())
	}
	return err
}

// exporter counts the spans that could not be sent, and logs that at intervals. It
// returns no errors, since the SDK would pass them to a global handler.
type exporter struct {
	sdktrace.SpanExporter
	ins    *Instruments
	logger *slog.Logger
	logged atomic.Int64 // when it last logged, in seconds of Unix time
}

// ExportSpans sends the spans and returns nil in any case.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	e.ins.traceFailures.add(int64(len(spans)), labels{})
	now, last := time.Now().Unix(), e.logged.Load()
	if now-last >= 60 && e.logged.CompareAndSwap(last, now) {
		e.logger.Warn("spans could not be sent", slog.Any(logkey.Err, err), slog.Int(logkey.Count, len(spans)))
	}
	return nil
}
