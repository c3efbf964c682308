package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// HeaderTraceparent and HeaderTracestate carry W3C trace context
// (https://www.w3.org/TR/trace-context/).
const (
	HeaderTraceparent = "traceparent"
	HeaderTracestate  = "tracestate"
)

// Extract reads W3C trace context from header values. It returns the zero span context if
// traceparent is missing or not valid. A bad tracestate is dropped, as the W3C text
// demands.
func Extract(traceparent, tracestate string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	c := carrier{traceparent, tracestate}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), &c))
}

// Traceparent returns the header value for requests that are made under sc, or "" if sc
// is not valid.
func Traceparent(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	var c carrier
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), &c)
	return c.traceparent
}

// carrier holds the two headers, as a propagation.TextMapCarrier.
type carrier struct{ traceparent, tracestate string }

// Get returns one of the headers.
func (c *carrier) Get(key string) string {
	switch key {
	case HeaderTraceparent:
		return c.traceparent
	case HeaderTracestate:
		return c.tracestate
	}
	return ""
}

// Set sets one of the headers.
func (c *carrier) Set(key, value string) {
	switch key {
	case HeaderTraceparent:
		c.traceparent = value
	case HeaderTracestate:
		c.tracestate = value
	}
}

// Keys names the headers.
func (c *carrier) Keys() []string { return []string{HeaderTraceparent, HeaderTracestate} }
