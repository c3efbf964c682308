package extproc

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file turns decisions into what people and metrics see. No prompt text
// passes through it.

// observe counts one decision.
func (srv *Server) observe(v *verdict, q *question) {
	t := srv.cfg.Telemetry
	t.DecisionTook(v.took)
	if v.split.reason != "" && v.fail == nil {
		t.ServedAlone(string(v.split.reason))
	}
	source := sourceLabel(v.prompt.Source)
	for _, c := range []*choice{&v.prefill, &v.decode} {
		if c.made {
			t.Decided(c.role.String(), c.mode(), c.decision.Reason.String(), source)
		}
	}
}

func sourceLabel(s tokens.Source) string {
	switch s {
	case tokens.FromRequest:
		return telemetry.SourceRequestIDs
	case tokens.FromEngine:
		return telemetry.SourceEngineTokenize
	case tokens.Estimate:
		return telemetry.SourceByteEstimate
	default:
		return "none"
	}
}

// recordOf fills in the record of a decision, which the journal keeps, and the header and
// the trace are made of.
func (srv *Server) recordOf(r *decision.Record, s *mainStream, q *question, v *verdict) *decision.Record {
	m := &s.m
	*r = decision.Record{}
	r.Time = s.began
	r.RequestID, r.Attempt = m.hdr.RequestID, m.attempt
	if r.Path = m.path.String(); m.passing.on {
		r.Path = short(m.hdr.Path)
	}
	r.BodyBytes = int64(len(q.query.Body))
	r.Outcome = decision.Routed
	if q.wish.query {
		r.Outcome = decision.Answered
	}
	if q.disagg && v.fail == nil && !q.wish.query {
		r.Leg = decision.LegDispatched
	}
	srv.fill(r, q, v)
	return r
}

// tell puts a decision where people look: into the journal, the trace and, where the
// client asks for it, a header of its answer.
func (srv *Server) tell(s *mainStream, r *decision.Record, p *plan, b *booked) {
	b.note = srv.cfg.Journal.Keep(r)
	if s.span != nil && srv.cfg.Tracer.Enabled() {
		p.traceparent = srv.traceDecision(s, r, b)
	}
	if srv.cfg.DebugHeader && s.m.hdr.Debug != "" {
		p.explain = r.Line()
	}
}

func (srv *Server) fill(r *decision.Record, q *question, v *verdict) {
	r.Model, r.Namespace = q.pool.Key.Model, q.pool.Key.Namespace
	r.TokenSource = decision.TokenSource(v.prompt.Source.String())
	r.TokenReason = string(v.prompt.Reason)
	r.ISLTokens, r.PromptBlocks, r.BlockSize = int64(v.prompt.ISLTokens), int64(v.blocks), v.size
	r.DecisionIn = v.took
	r.Split = v.split.String()
	srv.fillChoice(&r.Prefill, &v.prefill, q)
	srv.fillChoice(&r.Decode, &v.decode, q)
}

func (srv *Server) fillChoice(out *decision.Choice, c *choice, q *question) {
	if c.explain == nil {
		return
	}
	out.Role, out.Mode = c.role, c.mode()
	if c.made {
		out.Rank = c.decision.Rank
		out.Endpoint = endpointOf(q, out.Rank)
		out.Reason = c.decision.Reason.String()
		out.OverlapBlocks, out.Cost = int64(c.decision.OverlapBlocks), c.decision.Cost
	}
	if c.full != nil {
		out.Refused = queueNote(c.full)
	}
	for i := range c.explain.Rows {
		row := rowOf(&c.explain.Rows[i])
		row.Endpoint = endpointOf(q, row.Rank)
		out.Offer(&row)
	}
	srv.fillOut(out, c, q)
	out.Skip(c.explain.Left)
}

// endpointOf is where a rank is reached; "" if it is not in the set that was decided on.
func endpointOf(q *question, r worker.Rank) string {
	w := q.snap.Worker(r.ID)
	if w == nil {
		return ""
	}
	e := w.EndpointOf(r.DPRank)
	return e.String()
}

func queueNote(e *picker.SaturatedError) string {
	return "its workers have " + strconv.FormatInt(e.QueuedISLTokens, 10) + " prompt tokens queued, the limit is " +
		strconv.FormatInt(e.MaxQueuedISLTokens, 10)
}

// fillOut adds ranks that could not be picked, with the reason.
func (srv *Server) fillOut(out *decision.Choice, c *choice, q *question) {
	x := c.explain
	for i := range x.Out {
		o := &x.Out[i]
		row := decision.Row{Rank: o.Rank, Endpoint: endpointOf(q, o.Rank), Out: true}
		switch o.Cause {
		case load.OutExcluded:
			row.Note = "has failed this request before"
			if slices.Contains(c.stranded, o.Rank) {
				row.Note = "no decode worker may be picked in its transfer domain"
			}
		case load.OutUnknown:
			row.Note = "has left"
		case load.OutTaint:
			row.Note = "lacks the taint " + o.Taint
			if o.Taint == noTaint {
				row.Note = "lacks the taint " + c.missing
			}
		case load.OutSubset:
			row.Note = c.without
		case load.OutOverloaded:
			row.Note = o.Overload.String()
		case load.OutAside:
			row.Note = srv.asideNote(o.Rank)
		}
		out.Offer(&row)
	}
}

func (srv *Server) asideNote(r worker.Rank) string {
	if h, known := srv.cfg.Health.Lookup(r); known && h.State != health.Healthy {
		return h.State.String() + ": " + string(h.Reason)
	}
	return "was aside" // it came back since the pick
}

func rowOf(r *picker.Row) decision.Row {
	row := decision.Row{
		Rank: r.Rank, OverlapBlocks: int64(r.OverlapBlocks), PredictedBlocks: r.PredictedBlocks, HostBlocks: r.HostBlocks, DiskBlocks: r.DiskBlocks, SharedBlocks: r.SharedBlocks, Estimated: r.Estimated, Degraded: r.Degraded,
		CachedTokens: r.CachedTokens, UncachedTokens: r.UncachedTokens,
		ActivePrefillTokens: r.ActivePrefillTokens, ActiveDecodeBlocks: r.ActiveDecodeBlocks,
		ActiveRequests: int64(r.ActiveRequests), CreditBlocks: r.CreditBlocks,
		PrefillCost: r.PrefillCost, DecodeCost: r.DecodeCost, Cost: r.Cost,
	}
	if r.Degraded && !r.Estimated {
		row.Note = "degraded: not all of its events came"
	}
	if r.Overload != picker.NotOverloaded {
		row.Note = r.Overload.String()
	}
	return row
}

// noteRefusal records a request that was refused before anything was decided.
func (srv *Server) noteRefusal(s *mainStream, e *effect) journal.Handle {
	if srv.cfg.Journal == nil || e.outcome == outcomeAnswered {
		return journal.Handle{}
	}
	return srv.cfg.Journal.Add(func(r *decision.Record) {
		r.Time, r.RequestID, r.Attempt = s.began, s.m.hdr.RequestID, s.m.attempt
		r.Path = short(s.m.hdr.Path)
		r.BodyBytes = s.m.hdr.Length.N
		if s.m.scan != nil {
			r.Model = short(string(s.m.scan.Model[:min(len(s.m.scan.Model), mostShown+1)]))
		}
		if r.Time.IsZero() {
			r.Time = time.Now()
		}
	})
}

// mostShown is how many bytes of a client's own words are shown.
const mostShown = 80

// short is what is shown of a client's own words: names, never prompts.
func short(s string) string {
	path, _, _ := strings.Cut(s, "?")
	path = path[:min(len(path), mostShown)]
	if len(path) < len(s) { // or a record would keep all of it, as long as the client liked
		path = strings.Clone(path)
	}
	return strings.ToValidUTF8(path, "")
}

func (srv *Server) explained(v *verdict, q *question, path string, body []byte) *decision.Record {
	r := new(decision.Record)
	srv.fill(r, q, v)
	r.Time, r.Path, r.BodyBytes = time.Now(), path, int64(len(body))
	r.Outcome = decision.Answered
	if v.fail != nil {
		r.Outcome, r.Detail, r.Status = decision.Refused, v.fail.code, v.fail.status
	}
	return r
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

// traceDecision writes the decision's span and returns the header that makes
// both legs children of this attempt.
func (srv *Server) traceDecision(s *mainStream, r *decision.Record, b *booked) string {
	now := time.Now()
	sp := srv.cfg.Tracer.Start(s.span.SpanContext(), telemetry.SpanDecision, now.Add(-r.DecisionIn), decisionAttributes(r)...)
	telemetry.End(sp, now, "")
	b.span = srv.cfg.Tracer.Start(s.span.SpanContext(), telemetry.SpanDecodeLeg, now)
	return telemetry.Traceparent(s.span.SpanContext())
}

// Explain decides a request without routing it: nothing is booked and no
// cursor moves. It returns a *decision.Record. The error is fit for the admin
// page; it names a row of the failure table.
func (srv *Server) Explain(ctx context.Context, path string, body []byte) (any, error) {
	p, ok := openai.ParsePath(path)
	if !ok {
		return nil, errors.New(failUnknownPath.message)
	}
	var r openai.Request
	if err := openai.Scan(p, body, &r); err != nil {
		return nil, err
	}
	w, f := wishOf(way{trust: pin.Prerouted}, nil, &r, body)
	if f != nil {
		return nil, errors.New(f.code + ": " + f.message)
	}
	q, f := srv.questionOf(&r, body, w, nil)
	if f != nil {
		return nil, errors.New(f.code + ": " + f.message)
	}
	sc := newScratch()
	prompt := srv.cfg.Tokens.Resolve(ctx, q.query, srv.tokenizers(q), &sc.tokens)
	var v verdict
	srv.judge(&v, q, prompt, sc, nil, nil)
	srv.fallBack(&v, q, sc, nil)
	return srv.explained(&v, q, path, body), nil
}
