package extproc

import (
	"cmp"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file hands decisions, and what became of them, to the recorder. No text of a prompt
// goes there.

// recordDecision records a decision or a refusal, and returns its number.
func (a *asking) recordDecision(d *route.Decision, refused *route.Refusal) uint64 {
	return a.srv.cfg.Recorder.Decided(func(x *record.Decision) {
		r := d.Record
		x.At, x.Attempt = cmp.Or(a.asked.began, time.Now()), a.m.Request().Attempt
		x.Model, x.Source, x.Tokens = d.Key.Model, string(r.TokenSource), d.Prompt.ISLTokens
		x.BlockTokens = d.BlockSize * max(d.Prompt.BlocksPerHash, 1)
		for _, h := range d.Prompt.Hashes {
			x.Chain = append(x.Chain, uint64(h))
		}
		x.MaxTokens, x.Target = d.Answer.MaxTokens, d.Answer.Target
		x.Bound = a.asked.subset != nil || d.Prefill.Named || d.Decode.Named
		if refused != nil {
			x.Refused = string(refused.Reason)
		}
		for _, c := range [...]*decision.Choice{&r.Prefill, &r.Decode} {
			for i := range c.Rows() {
				if row := &c.Rows()[i]; !row.Out {
					x.Loads = append(x.Loads, record.Load{Rank: row.Rank, PrefillTokens: row.ActivePrefillTokens, DecodeBlocks: row.ActiveDecodeBlocks, Requests: row.ActiveRequests})
				}
			}
		}
		if refused == nil {
			x.Prefill, x.Decode = pickOf(&r.Prefill), pickOf(&r.Decode)
		}
	})
}

func pickOf(c *decision.Choice) record.Pick {
	if !c.Made() {
		return record.Pick{}
	}
	return record.Pick{Rank: c.Rank, Mode: c.Mode, Reason: c.Reason, Overlap: int(c.OverlapBlocks)}
}

// recordEnd records what became of the stream's last decision, once.
func recordEnd(s *mainStream, now time.Time, o leg.Outcome) {
	e := record.End{Number: s.decided.recording(), Outcome: string(o), Cached: -1}
	if e.Number == 0 {
		return
	}
	if p := s.m.Plan(); p != nil && o != blame.Retried {
		var t telemetry.Served
		s.clock(&t, now, s.m.Began())
		e.First, e.Whole, e.Output = t.FirstToken, t.Whole, s.answered.counts.usage.Output
		if u := &s.answered.counts.usage; !p.Disaggregated && u.HasCached {
			e.Cached = u.Cached
		} else if s.answered.counts.known {
			e.Cached = s.answered.counts.cached
		}
	}
	s.srv.cfg.Recorder.Ended(&e)
}

// Speeds returns what is believed of the ranks of a snapshot, and of hand-offs by model.
func (p *Paces) Speeds(s *worker.Snapshot) (out []record.Speed) {
	for _, w := range s.Workers() {
		for dp := range worker.DPRank(w.DPSize) {
			r := worker.Rank{ID: w.ID, DPRank: dp}
			if v, _, known := p.Believed(w, r); known {
				out = append(out, record.Speed{Rank: r, PerToken: v.PerToken, PerRequest: v.PerRequest})
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for of, f := range p.pairs {
		if v, known := f.Mean(); known {
			out = append(out, record.Speed{Model: of.Model, PerToken: v.PerToken, PerRequest: v.PerRequest})
		}
	}
	return out
}
