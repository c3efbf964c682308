package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/telemetry"
)

// This file is about what came of a request: how long it took, and what of its prompt
// was cached. Answers pass Envoy alone, so Envoy's access log has the times, and the
// usage that its filter baton.usage has read.

// tokenCounts is what engines say of a request's tokens.
type tokenCounts struct {
	usage  openai.Usage // of the answer
	cached int64        // of the prompt, by who had to compute it
	known  bool         // cached is
}

// hear takes what an event says of tokens.
func (c *tokenCounts) hear(ev *notice) {
	switch ev.kind {
	case evLeg:
		if ev.leg.state == legWell && ev.leg.counted {
			c.cached, c.known = ev.leg.cached, true
		}
	case evPrefilled:
		if u, ok := openai.FindUsage(ev.answer.body); ok && u.HasCached {
			c.cached, c.known = u.Cached, true
		}
	case evResponseBody:
		if u, ok := openai.FindUsage(ev.body); ok {
			c.usage = u
		}
	case evLogged:
		if ev.usage.Output > 0 {
			c.usage = ev.usage
		}
	}
}

// measure counts what came of a request that workers were picked for.
func (s *mainStream) measure(now time.Time, e *effect) {
	p := s.m.planned()
	if p == nil || e.outcome == blame.Retried || e.outcome == outcomeAnswered {
		return
	}
	t := telemetry.Served{Model: s.prompt.Model, Operation: operation(s.m.request().path)}
	if e.outcome != blame.OK {
		t.Error = string(e.outcome)
		if e.fail != nil {
			t.Error = e.fail.code
		}
	}
	s.clock(&t, now, s.m.began())
	if n := s.counts.usage.Output; n > 1 && t.FirstToken > 0 && t.Error == "" {
		t.PerToken = (t.Whole - t.FirstToken) / time.Duration(n-1)
	}
	s.srv.cfg.Telemetry.Took(&t)
	s.learn(&t)
	if t.Error != "" || s.prompt.Prompt == 0 {
		return
	}
	if u := &s.counts.usage; !p.disaggregated && u.HasCached {
		s.counts.cached, s.counts.known = u.Cached, true
	}
	s.prompt.Delivered, s.prompt.Told = s.counts.cached, s.counts.known
	s.srv.cfg.Telemetry.Prompt(&s.prompt)
}

// clock reads the times of a request from when the data plane received it. began: it
// was answered.
func (s *mainStream) clock(t *telemetry.Served, now time.Time, began bool) {
	start := s.m.request().start
	var first time.Time
	switch {
	case s.sent.last > 0:
		now = s.sent.start.Add(s.sent.last)
		if s.sent.first > 0 {
			first = s.sent.start.Add(s.sent.first)
		}
	default: // no log, or none yet
		first = s.m.decoded().relayed
	}
	t.Whole = now.Sub(start)
	if !began || first.IsZero() {
		return
	}
	t.FirstByte = first.Sub(start)
	switch {
	case !s.tokenAt.IsZero():
		t.FirstToken = max(s.tokenAt.Sub(start), t.FirstByte)
	case s.m.planned().looks && s.srv.cfg.FirstToken == FirstTokenHold && (s.looked.Load() || s.srv.rules.replicas):
		t.FirstToken = t.FirstByte // the head has waited for it
	}
}

func operation(p openai.Path) string {
	switch p {
	case openai.ChatCompletions:
		return "chat"
	case openai.Completions:
		return "text_completion"
	case openai.Generate:
		return "generate"
	default:
		return ""
	}
}
