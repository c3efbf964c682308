package extproc

import (
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/seed-60ae5743/baton/internal/journal"
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
	source := sourceLabel(v.prompt.Source)
	for _, c := range []*choice{&v.prefill, &v.decode} {
		if c.made {
			t.Decided(c.role.String(), c.params.Mode.String(), c.decision.Reason.String(), source)
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

// record adds a decision to the journal.
func (srv *Server) record(s *mainStream, q *question, v *verdict, sc *scratch) journal.Handle {
	if srv.cfg.Journal == nil {
		return journal.Handle{}
	}
	m := &s.m
	return srv.cfg.Journal.Add(func(r *journal.Record) {
		srv.fill(r, q, v, sc)
		r.Time = s.began
		r.RequestID, r.Attempt = m.hdr.requestID, m.attempt
		r.Path = m.path.String()
		r.BodyBytes = int64(len(q.query.Body))
		r.Outcome = journal.Routed
		if q.disagg && v.fail == nil {
			r.Leg = journal.LegDispatched
		}
	})
}

func (srv *Server) fill(r *journal.Record, q *question, v *verdict, sc *scratch) {
	r.Model, r.Namespace = q.pool.Key.Model, q.pool.Key.Namespace
	r.TokenSource = journal.TokenSource(v.prompt.Source.String())
	r.TokenReason = string(v.prompt.Reason)
	r.ISLTokens, r.PromptBlocks, r.BlockSize = int64(v.prompt.ISLTokens), int64(v.blocks), v.size
	r.DecisionIn = v.took
	srv.fillChoice(&r.Prefill, &v.prefill, q, sc)
	srv.fillChoice(&r.Decode, &v.decode, q, sc)
}

func (srv *Server) fillChoice(out *journal.Choice, c *choice, q *question, sc *scratch) {
	if !c.made {
		return
	}
	out.Rank = c.decision.Rank
	if w := q.snap.Worker(out.Rank.ID); w != nil {
		out.Endpoint = w.Endpoint.String()
	}
	out.Mode, out.Reason = c.params.Mode.String(), c.decision.Reason.String()
	out.OverlapBlocks, out.Cost = int64(c.overlap), c.decision.Cost
	sc.rows = picker.AppendTable(sc.rows[:0], &c.req, c.cands, &c.params)
	for i := range sc.rows {
		row := rowOf(&sc.rows[i])
		out.Offer(&row)
	}
	srv.fillOut(out, c, q)
}

// fillOut adds the ranks that were not asked, with the reason.
func (srv *Server) fillOut(out *journal.Choice, c *choice, q *question) {
	ranks := q.pool.Ranks(c.role)
	if len(ranks) == len(c.cands) {
		return
	}
	health := srv.cfg.Health.Status()
	for _, r := range ranks {
		if isCandidate(c.cands, r) {
			continue
		}
		note := "has failed this request before"
		for i := range health {
			if h := &health[i]; h.ID == r.ID && h.State.String() != "healthy" {
				note = h.State.String() + ": " + string(h.Reason)
			}
		}
		out.Offer(&journal.Row{Rank: r, Out: true, Note: note})
	}
}

func isCandidate(cands []picker.Candidate, r worker.Rank) bool {
	for i := range cands {
		if cands[i].Rank == r {
			return true
		}
	}
	return false
}

func rowOf(r *picker.Row) journal.Row {
	return journal.Row{
		Rank: r.Rank, OverlapBlocks: int64(r.OverlapBlocks), Estimated: r.Estimated,
		CachedTokens: r.CachedTokens, UncachedTokens: r.UncachedTokens,
		ActivePrefillTokens: r.ActivePrefillTokens, ActiveDecodeBlocks: r.ActiveDecodeBlocks,
		ActiveRequests: int64(r.ActiveRequests), CreditBlocks: r.CreditBlocks,
		PrefillCost: r.PrefillCost, DecodeCost: r.DecodeCost, Cost: r.Cost,
	}
}

// noteRefusal records a request that was refused before anything was decided.
func (srv *Server) noteRefusal(s *mainStream, e *effect) journal.Handle {
	if srv.cfg.Journal == nil || e.outcome == outcomeAnswered {
		return journal.Handle{}
	}
	return srv.cfg.Journal.Add(func(r *journal.Record) {
		r.Time, r.RequestID, r.Attempt = s.began, s.m.hdr.requestID, s.m.attempt
		r.Path = short(s.m.hdr.path)
		if n, err := strconv.ParseInt(s.m.hdr.contentLength, 10, 64); err == nil {
			r.BodyBytes = n
		}
		if s.m.scan != nil {
			r.Model = short(string(s.m.scan.Model))
		}
		if r.Time.IsZero() {
			r.Time = time.Now()
		}
	})
}

// short is what is shown of a client's own words: names, never prompts.
func short(s string) string {
	path, _, _ := strings.Cut(s, "?")
	return strings.ToValidUTF8(path[:min(len(path), 80)], "")
}

func (srv *Server) explained(v *verdict, q *question, path string, body []byte, sc *scratch) *journal.Record {
	r := new(journal.Record)
	srv.fill(r, q, v, sc)
	r.Time, r.Path, r.BodyBytes = time.Now(), path, int64(len(body))
	r.Outcome = journal.Explained
	if v.fail != nil {
		r.Outcome, r.Detail, r.Status = journal.Refused, v.fail.code, v.fail.status
	}
	return r
}

func decisionAttributes(v *verdict) []attribute.KeyValue {
	out := []attribute.KeyValue{
		attribute.Int64(telemetry.AttrISLTokens, int64(v.prompt.ISLTokens)),
		attribute.String(telemetry.AttrTokenSource, v.prompt.Source.String()),
		attribute.String(telemetry.AttrDecode, v.decode.decision.Rank.String()),
	}
	if v.prefill.made {
		out = append(out, attribute.String(telemetry.AttrPrefill, v.prefill.decision.Rank.String()),
			attribute.Int64(telemetry.AttrOverlapBlocks, int64(v.prefill.overlap)))
	}
	return out
}

// explainHeader is the cost table in one line, for a client that asked.
func explainHeader(attempt int, v *verdict, sc *scratch) string {
	var b strings.Builder
	b.WriteString("attempt=" + strconv.Itoa(attempt) + " isl=" + strconv.Itoa(v.prompt.ISLTokens) + " blocks=" + strconv.Itoa(v.blocks) + " tokens=" + strconv.Quote(v.prompt.Source.String()))
	for _, c := range []*choice{&v.prefill, &v.decode} {
		if !c.made {
			continue
		}
		b.WriteString("; " + c.role.String() + "=" + c.decision.Rank.String() + " reason=" + c.decision.Reason.String())
		sc.rows = picker.AppendTable(sc.rows[:0], &c.req, c.cands, &c.params)
		for i := range sc.rows {
			if i == journal.MaxRows {
				b.WriteString(" +" + strconv.Itoa(len(sc.rows)-i))
				break
			}
			r := &sc.rows[i]
			b.WriteString(" " + r.Rank.String() + ":" + strconv.FormatFloat(r.Cost, 'g', 5, 64) + "(overlap=" + strconv.FormatUint(uint64(r.OverlapBlocks), 10) + ")")
		}
	}
	return b.String()
}
