package extproc

import (
	"cmp"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file measures how long a request took and how much of its prompt was cached. If the
// answer does not pass the plugin, Envoy's access log has the times, and the usage that the
// filter baton.usage has read.

// tokenCounts is what engines tell about the tokens of a request.
type tokenCounts struct {
	usage  openai.Usage // of the answer
	prompt int64        // as told by prefill; 0: it has not been
	cached int64        // of the prompt, as told by the worker that computed it
	known  bool         // cached was told
}

// hear stores what the event says about tokens. It returns true if prefill has told how many
// of the prompt it had cached.
func (c *tokenCounts) hear(ev *notice) (computed bool) {
	switch ev.Kind {
	case leg.EventLeg:
		if ev.Leg.State == leg.Well && ev.Leg.Counted {
			c.computed(ev.Leg.Cached)
			computed = true
		}
		if ev.Leg.Told.Reading == leg.ReadUsage {
			c.prompt = ev.Leg.Told.Prompt
		}
	case leg.EventPrefilled:
		if u, ok := openai.FindUsage(ev.Answer.Body); ok {
			c.prompt = u.Prompt
			if u.HasCached {
				c.computed(u.Cached)
				computed = true
			}
		}
	case leg.EventResponseBody:
		if u, ok := openai.FindUsage(ev.Body); ok {
			c.usage = u
		}
	case leg.EventLogged:
		if ev.usage.Output > 0 {
			c.usage = ev.usage
		}
	}
	return computed
}

// computed takes how many tokens of the prompt the worker that computed it had cached.
func (c *tokenCounts) computed(cached int64) { c.cached, c.known = cached, true }

// measure records the times and tokens of a request for which workers were picked. It skips
// an attempt that another one follows, and a request that only asks who would serve it.
func (s *mainStream) measure(now time.Time, e *leg.Effect) {
	p := s.m.Plan()
	if p == nil || e.Outcome == blame.Retried || e.Outcome == leg.Answered {
		return
	}
	t := telemetry.Served{Model: s.decided.prompt.Model, Operation: operations[s.m.Request().Path], Target: s.decided.answer.Target, Late: s.decided.answer.Late}
	if e.Outcome != blame.OK {
		t.Error = string(e.Outcome)
		if e.Fail != nil {
			t.Error = e.Fail.Code
		}
	}
	s.clock(&t, now, s.m.Began())
	if n := s.answered.counts.usage.Output; n > 1 && t.FirstToken > 0 && t.Error == "" {
		t.PerToken = (t.Whole - t.FirstToken) / time.Duration(n-1)
	}
	s.srv.cfg.Telemetry.Took(&t)
	if t.FirstToken > 0 {
		s.srv.cfg.Journal.Mark(s.decided.note, decision.FirstToken, s.m.Request().Start.Add(t.FirstToken))
	}
	learn(s, &t)
	if answers, _ := leg.PrefillAnswers(&s.m); t.Error == "" && !answers {
		s.srv.Paces.answer(s, &t, now)
	}
	if t.Error != "" || s.decided.prompt.Prompt == 0 {
		return
	}
	if n := cmp.Or(s.answered.counts.prompt, s.answered.counts.usage.Prompt); n > 0 {
		s.decided.claim.Counted(int(n))
	}
	if u := &s.answered.counts.usage; !p.Disaggregated && u.HasCached {
		s.answered.counts.computed(u.Cached)
	}
	s.srv.cfg.Telemetry.Prompt(s.decided.delivered(&s.answered.counts))
	lose(s, now)
}

// computing returns the rank that computes the prompt; ID 0: the proxy chooses it, so it is
// not known.
func computing(p *leg.Plan) worker.Rank {
	switch {
	case p.Disaggregated:
		return p.Prefill
	case p.Several:
		return worker.Rank{}
	default:
		return p.Decode
	}
}

// clock sets the times of a request, counted from when the data plane received it. If began
// is false, no answer has begun, and only the whole time is set.
func (s *mainStream) clock(t *telemetry.Served, now time.Time, began bool) {
	start := s.m.Request().Start
	var first time.Time
	switch {
	case s.answered.sent.last > 0:
		sent := s.answered.sent.start.Add(s.asked.ahead)
		now = sent.Add(s.answered.sent.last)
		if s.answered.sent.first > 0 {
			first = sent.Add(s.answered.sent.first)
		}
	default: // there is no access log, or it has not come yet
		first = s.m.Answer().Relayed
	}
	t.Whole = now.Sub(start)
	if answers, events := leg.PrefillAnswers(&s.m); answers { // all at once; decode has no head that tells when
		t.FirstByte = t.Whole
		if events {
			t.FirstToken = t.Whole
		}
		return
	}
	if !began || first.IsZero() {
		return
	}
	t.FirstByte = first.Sub(start)
	switch {
	case !s.answered.tokenAt.IsZero():
		t.FirstToken = max(s.answered.tokenAt.Sub(start), t.FirstByte)
	case s.m.Plan().Looks && s.srv.cfg.FirstToken == FirstTokenHold && (s.answered.looked.Load() || s.srv.rules.Replicas):
		t.FirstToken = t.FirstByte // the head has waited for the first token
	}
	if p := s.m.Plan(); p.Disaggregated && p.Kind.PrefillFirst() && !p.Prefilled.IsZero() {
		t.HandOff, t.HandOffAge = p.Kind.String(), start.Add(cmp.Or(t.FirstToken, t.FirstByte)).Sub(p.Prefilled)
	}
}

// operations are the metrics' names of what is done on a path; "": none.
var operations = [openai.Other + 1]string{
	openai.ChatCompletions: "chat", openai.Completions: "text_completion", openai.Generate: "generate", openai.TokensIn: "generate",
	openai.Responses: "responses", openai.AnthropicMessages: "messages",
}
