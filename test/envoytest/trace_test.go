//go:build e2e

package envoytest

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// span is what the tests read of one.
type span struct {
	service, name, trace, id, parent string

	attributes map[string]string
}

// collector is an OTLP gRPC collector that keeps what it gets.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	port int

	mu    sync.Mutex
	spans []span
	raw   []string
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	l := listen(t)
	c := &collector{port: l.Addr().(*net.TCPAddr).Port}
	g := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(g, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return c
}

// Export takes spans.
func (c *collector) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, req.String())
	for _, rs := range req.GetResourceSpans() {
		service := ""
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, spanOf(service, s))
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func spanOf(service string, s *tracev1.Span) span {
	attributes := map[string]string{}
	for _, a := range s.GetAttributes() {
		attributes[a.GetKey()] = a.GetValue().GetStringValue()
		if n, is := a.GetValue().GetValue().(*commonv1.AnyValue_IntValue); is {
			attributes[a.GetKey()] = strconv.FormatInt(n.IntValue, 10)
		}
	}
	return span{
		attributes: attributes,
		service:    service, name: s.GetName(), trace: hex.EncodeToString(s.GetTraceId()),
		id: hex.EncodeToString(s.GetSpanId()), parent: hex.EncodeToString(s.GetParentSpanId()),
	}
}

// of returns the spans of a trace.
func (c *collector) of(trace string) (out []span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.trace == trace {
			out = append(out, s)
		}
	}
	return out
}

func (c *collector) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.raw, "\n")
}

// named returns the only span with a name.
func named(t *testing.T, spans []span, name string) span {
	t.Helper()
	var found []span
	for _, s := range spans {
		if s.name == name {
			found = append(found, s)
		}
	}
	require.Len(t, found, 1, "%s in %v", name, spans)
	return found[0]
}

// TestOneTraceHoldsEnvoyTheDecisionAndBothLegs: client → Envoy → decision →
// both legs, and the workers could go on from there.
func TestOneTraceHoldsEnvoyTheDecisionAndBothLegs(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	l := layout{
		prefill: 1, decode: 1,
		config: fmt.Sprintf("trace: {endpoint: \"127.0.0.1:%d\"}\n", c.port),
		envoy:  envoy.Params{TracingHost: "127.0.0.1", TracingPort: c.port},
	}
	both(t, l, func(t *testing.T, f *fleet) {
		trace, client := "0af7651916cd43dd8448eb211c803100", "b7ad6b7169203331"
		if f.fullDuplex {
			trace = "0af7651916cd43dd8448eb211c803101" // the modes run side by side, with one collector
		}
		r := f.send(t.Context(), "/v1/completions", completion("traced words", 3, true),
			"traceparent", "00-"+trace+"-"+client+"-01", "tracestate", "own=1")
		requireAnswer(t, r, "traced words", 3)
		prefill, decode := f.legs()
		for range 5 { // Envoy sends its spans five at a time, or after five seconds
			f.send(t.Context(), "/v1/completions", completion("more", 1, false))
		}
		f.await("all spans of the request", func() bool { return len(c.of(trace)) >= 5 })
		spans := c.of(trace)
		require.Len(t, spans, 5, "%v", spans)

		request := named(t, spans, "baton.request")
		require.Equal(t, "baton", request.service)
		byID := make(map[string]span)
		for _, s := range spans {
			byID[s.id] = s
		}
		edge := byID[request.parent]
		require.Equal(t, "envoy", edge.service, "the request's parent is Envoy's span: %v", spans)
		require.Equal(t, client, edge.parent, "Envoy's parent is the client's span")
		for _, name := range []string{"baton.decision", "baton.decode_leg", "baton.prefill_leg"} {
			require.Equal(t, request.id, named(t, spans, name).parent, name)
		}
		for leg, h := range map[string]string{"prefill": prefill.Headers.Get("Traceparent"), "decode": decode.Headers.Get("Traceparent")} {
			parts := strings.Split(h, "-")
			require.Len(t, parts, 4, "%s: traceparent %q", leg, h)
			require.Equal(t, trace, parts[1], leg)
			require.Equal(t, "01", parts[3], leg)
			parent, known := byID[parts[2]]
			require.True(t, known, "%s goes on from a span of the trace: %v", leg, spans)
			require.Equal(t, "baton", parent.service)
		}
		require.Contains(t, decode.Headers.Get("Tracestate"), "own=1")
	})
}

// TestARequestThatItsClientDoesNotTraceIsNotTraced: the client decides.
func TestARequestThatItsClientDoesNotTraceIsNotTraced(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	f := newFleet(t, layout{prefill: 1, decode: 1, config: fmt.Sprintf("trace: {endpoint: \"127.0.0.1:%d\"}\n", c.port)})
	trace := "0af7651916cd43dd8448eb211c8031ff"
	requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("quiet", 2, false), "traceparent", "00-"+trace+"-b7ad6b7169203331-00"), "quiet", 2)
	marked := "0af7651916cd43dd8448eb211c8031fe"
	requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("loud", 2, false), "traceparent", "00-"+marked+"-b7ad6b7169203331-01"), "loud", 2)
	f.await("the later request's spans", func() bool { return len(c.of(marked)) >= 4 })
	require.Empty(t, c.of(trace))
}

// TestNoPromptIsShownAnywhere: logs at debug level, spans, state, decisions,
// the status page and metrics, after requests that go well, fail and are refused.
func TestNoPromptIsShownAnywhere(t *testing.T) {
	t.Parallel()
	const mark = "xyzzyplughsecret"
	c := newCollector(t)
	l := layout{prefill: 2, decode: 2, config: explains + fmt.Sprintf("trace: {endpoint: \"127.0.0.1:%d\"}\n", c.port)}
	both(t, l, func(t *testing.T, f *fleet) {
		trace := "00-0af7651916cd43dd8448eb211c8031aa-b7ad6b7169203331-01"
		for path, bodies := range map[string][]string{
			"/v1/completions": {
				completion(mark+" tell me more", 3, true), completion(strings.Repeat(mark+" ", 40), 3, false),
				`{"model":"m","prompt":["` + mark + `","b"],"max_tokens":2}`,
				`{"model":"m","prompt":"` + mark + `","prompt":"` + mark + `"}`, `{"model":"m","prompt":"` + mark,
				`{"model":"m","prompt":{"` + mark + `":1}}`, `{"model":"m","prompt":"p","` + mark + `":"` + mark + `","stream":"` + mark + `"}`,
				`{"model":"m","prompt":"` + mark + `","bootstrap_host":"` + mark + `"}`, mark,
			},
			"/v1/chat/completions": {
				`{"model":"m","messages":[{"role":"user","content":"` + mark + `"}],"max_tokens":2}`,
				`{"model":"m","messages":"` + mark + `"}`,
			},
			"/generate": {`{"text":"` + mark + `","sampling_params":{"max_new_tokens":2}}`},
		} {
			for _, body := range bodies {
				r := f.send(t.Context(), path, body, "x-debug-decision", "1", "traceparent", trace)
				require.NoError(t, r.err)
				require.NotContains(t, fmt.Sprint(r.header), mark)
				if r.status >= 400 {
					require.NotContains(t, r.body, mark, "an error shows the prompt")
				}
			}
		}
		for _, w := range append(f.prefill, f.decode...) { // engines that quote what they were sent
			f.fault(w, enginesim.Fault{Mode: enginesim.FaultError, Words: "transfer failed of " + mark + " tell me more"})
		}
		f.send(t.Context(), "/v1/completions", completion(mark+" tell me more", 3, true), "traceparent", trace)
		f.await("the worker's words", func() bool {
			return strings.Contains(f.adminGet("/debug/decisions"), "500 at /v1/completions: transfer failed of")
		})
		f.await("spans", func() bool { return strings.Contains(c.text(), "baton.prefill_leg") })
		require.Contains(t, f.plugin.Log(), "takes requests", "the log is not kept, so this proves nothing")
		for name, text := range map[string]string{
			"the log": f.plugin.Log(), "Envoy's log": f.envoy.Log(), "/debug/state": f.adminGet("/debug/state"),
			"/debug/decisions": f.adminGet("/debug/decisions"), "the page": f.adminGet("/"), "/metrics": f.adminGet("/metrics"),
			"spans": c.text(),
		} {
			require.NotContains(t, text, mark, name)
		}
	})
}
