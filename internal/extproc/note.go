package extproc

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// This file writes decisions into the journal, traces, metrics and headers. It writes no
// text of a prompt.

// observe counts a decision or a refusal, and records it.
func (a *asking) observe(d *route.Decision, refused *route.Refusal) (recorded uint64) {
	t := a.srv.cfg.Telemetry
	t.DecisionTook(d.Record.DecisionIn)
	if d.Alone != "" {
		t.ServedAlone(string(d.Alone))
	}
	for _, c := range [...]*decision.Choice{&d.Record.Prefill, &d.Record.Decode} {
		if c.Made() {
			t.Decided(c.Role.String(), c.Mode, c.Reason, sourceLabels[d.Prompt.Source])
		}
	}
	return a.recordDecision(d, refused)
}

// sourceLabels are the metrics' names of the sources of tokens.
var sourceLabels = [...]string{
	tokens.None: "none", tokens.FromRequest: telemetry.SourceRequestIDs, tokens.FromLocal: telemetry.SourceLocal,
	tokens.FromEngine: telemetry.SourceEngineTokenize, tokens.Estimate: telemetry.SourceByteEstimate,
}

// describe adds to the record of a decision what the stream knows of its request.
func (a *asking) describe(r *decision.Record) {
	q := a.m.Request()
	r.Time, r.RequestID, r.Attempt = a.asked.began, q.Headers.RequestID, q.Attempt
	r.Path = q.Path.String()
	if q.Passes() {
		r.Path = short(q.Headers.Path)
	}
	r.Clip()
}

// tell writes a decision into the journal and the trace, and, if the client asks for it,
// into a header of the answer.
func (a *asking) tell(r *decision.Record, p *leg.Plan, b *booked) {
	srv := a.srv
	b.note = srv.cfg.Journal.Keep(r)
	if a.asked.span != nil && srv.cfg.Tracer.Enabled() {
		p.Traceparent = a.traceDecision(r, b)
	}
	if srv.cfg.DebugHeader && a.m.Request().Headers.Debug != "" {
		p.Explain = r.Line()
	}
}

// noteRefusal records a request that was refused before anything was decided.
func (srv *Server) noteRefusal(s *mainStream, e *leg.Effect) journal.Handle {
	if srv.cfg.Journal == nil || e.Outcome == leg.Answered {
		return journal.Handle{}
	}
	return srv.cfg.Journal.Add(func(r *decision.Record) {
		q := s.m.Request()
		r.Time, r.RequestID, r.Attempt = s.asked.began, q.Headers.RequestID, q.Attempt
		r.Path = short(q.Headers.Path)
		r.BodyBytes = q.Headers.Length.N
		if q.Scan != nil {
			r.Model = short(string(q.Scan.Model[:min(len(q.Scan.Model), mostShown+1)]))
		}
		if r.Time.IsZero() {
			r.Time = time.Now()
		}
	})
}

// mostShown is how many bytes are shown of a path or a name that a client chose.
const mostShown = 80

// short returns what is shown of a path or a name that a client chose: nothing after a "?",
// and at most mostShown bytes.
func short(s string) string {
	path, _, _ := strings.Cut(s, "?")
	path = path[:min(len(path), mostShown)]
	if len(path) < len(s) { // a record must not keep all of s, however long, in memory
		path = strings.Clone(path)
	}
	return strings.ToValidUTF8(path, "")
}

func decisionAttributes(r *decision.Record) []attribute.KeyValue {
	c := &r.Decode
	if r.Prefill.Made() {
		c = &r.Prefill
	}
	out := []attribute.KeyValue{
		attribute.String(telemetry.AttrMode, c.Mode), attribute.String(telemetry.AttrReason, c.Reason),
		attribute.Float64(telemetry.AttrCost, c.Cost),
		attribute.Int64(telemetry.AttrISLTokens, r.ISLTokens),
		attribute.String(telemetry.AttrTokenSource, string(r.TokenSource)),
		attribute.String(telemetry.AttrDecode, r.Decode.Rank.String()),
	}
	if r.Prefill.Made() {
		out = append(out, attribute.String(telemetry.AttrPrefill, c.Rank.String()),
			attribute.Int64(telemetry.AttrOverlapBlocks, c.OverlapBlocks))
	}
	return out
}

// traceDecision writes the decision's span. It returns the traceparent header that makes the
// spans of both legs children of the attempt's span.
func (a *asking) traceDecision(r *decision.Record, b *booked) string {
	srv, now := a.srv, time.Now()
	sp := srv.cfg.Tracer.Start(a.asked.span.SpanContext(), telemetry.SpanDecision, now.Add(-r.DecisionIn), decisionAttributes(r)...)
	telemetry.End(sp, now, "")
	b.span = srv.cfg.Tracer.Start(a.asked.span.SpanContext(), telemetry.SpanDecodeLeg, now)
	return telemetry.Traceparent(a.asked.span.SpanContext())
}

// Explain decides a request without routing it: nothing is booked and no cursor moves. It
// returns a *decision.Record. The text of an error can be shown on the admin page.
func (srv *Server) Explain(ctx context.Context, path string, body []byte) (any, error) {
	p, ok := openai.ParsePath(path)
	if !ok {
		return nil, errors.New(leg.FailUnknownPath.Message)
	}
	var r openai.Request
	if err := openai.Scan(p, body, &r); err != nil {
		return nil, err
	}
	q, refused := srv.router.Ask(route.Request{Now: time.Now(), Scan: &r, Body: body, Trust: pin.Prerouted, Preview: true})
	if refused != nil {
		f := srv.failureOf(refused)
		return nil, errors.New(f.Code + ": " + f.Message)
	}
	sc := route.NewScratch()
	prompt := srv.cfg.Tokens.Resolve(ctx, q.Query(), srv.router.Tokenizers(q), &sc.Tokens)
	began := time.Now()
	d, refused := srv.router.Decide(q, prompt, sc, began)
	rec := d.Record
	rec.DecisionIn, rec.Time, rec.Path = time.Since(began), began, path
	if refused != nil {
		f := srv.failureOf(refused)
		rec.Outcome, rec.Detail, rec.Status = decision.Refused, f.Code, f.Status
	}
	rec.Clip()
	return rec, nil
}
