package extproc

import (
	"bytes"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file says how long the legs of a plan may take.

// decodePerToken is decode's allowance for each token of an answer that is not streamed. A
// request that does not say how many tokens it wants counts as unsaidMaxTokens. The last two
// add to the time that a leg may take to start.
const (
	decodePerToken   = 30 * time.Millisecond
	unsaidMaxTokens  = 4096
	startBytesPerSec = 20 << 20 // bytes of a body that Envoy sends into a leg in a second
	startPerRequest  = time.Millisecond
)

// limited is one leg whose time is limited, as package patience learns from it.
type limited struct {
	subject   patience.Subject
	allowance time.Duration
	from      time.Time
}

// legLimits are the limits of a plan's legs: how long prefill takes to start and to end, decode to
// answer, and its answer to stand still.
type legLimits struct{ start, prefill, decode, gap limited }

// begin notes when the leg begins.
func (l *limited) begin(now time.Time) { l.from = now }

// Members of a request that cause work which its prompt tokens do not show: their names
// after the first quote, or how these begin.
var (
	mediaNames  = []string{`image_url"`, `input_audio"`, `video_url"`, `audio_url"`, `image_data"`}
	guidedNames = []string{`response_format"`, `guided_`, `structured_outputs"`, `json_schema"`}
)

// kindOf returns the kind of a request by the names that occur in its body. If such a name
// occurs in a prompt, the only effect is that the limits of this request are longer. A body
// may have megabytes, so it is read once, from quote to quote.
func kindOf(body []byte) patience.Kind {
	kind := patience.Plain
	for {
		quote := bytes.IndexByte(body, '"')
		if quote < 0 || quote+1 == len(body) {
			return kind
		}
		body = body[quote+1:]
		switch body[0] {
		case 'i', 'v', 'a':
			if beginsWith(body, mediaNames) {
				return patience.Media
			}
		case 'r', 'g', 's', 'j':
			if kind == patience.Plain && beginsWith(body, guidedNames) {
				kind = patience.Guided
			}
		}
	}
}

func beginsWith(body []byte, names []string) bool {
	for _, name := range names {
		if len(body) >= len(name) && string(body[:len(name)]) == name {
			return true
		}
	}
	return false
}

// limit sets in the plan how long its legs may take, and returns the limits. The argument pool is the key of the
// workers, and body that of the request. For a request that is passed on unread there are no
// limits.
func (a *asking) limit(p *leg.Plan, pool worker.Key, body []byte, now time.Time) (l legLimits) {
	q := a.m.Request()
	if q.Passes() {
		return l
	}
	srv, kind := a.srv, kindOf(body)
	l.decode = limited{
		subject:   patience.Subject{Worker: p.Decode.ID, Pool: pool, Leg: patience.Stream, Kind: kind},
		allowance: srv.cfg.AnswerBase,
	}
	if !q.Scan.Stream {
		tokens := q.Scan.MaxTokens
		if tokens < 0 {
			tokens = unsaidMaxTokens
		}
		l.decode.subject.Leg = patience.Whole
		l.decode.allowance += time.Duration(min(tokens, 1<<24)) * decodePerToken
	}
	p.AnswerWithin = srv.patience.Limit(l.decode.subject, l.decode.allowance)
	if q.Scan.Stream {
		gap := patience.Subject{Worker: p.Decode.ID, Pool: pool, Leg: patience.Gap, Kind: kind}
		l.gap = limited{subject: gap, allowance: gapBases * srv.cfg.AnswerBase}
		p.GapWithin = srv.patience.Limit(gap, l.gap.allowance)
	}
	if !p.Disaggregated || p.Kind.ByOthers() {
		return l
	}
	p.Failing = srv.cfg.Health.HandoffFailing(p.Prefill, p.Decode, now)
	l.start = limited{
		subject: patience.Subject{Worker: p.Prefill.ID, Pool: pool, Leg: patience.Start},
		allowance: srv.cfg.StartTimeout + time.Duration(len(body))*time.Second/startBytesPerSec +
			time.Duration(srv.attempts.len())*startPerRequest,
		from: now,
	}
	p.StartWithin = srv.patience.Limit(l.start.subject, l.start.allowance)
	queued := srv.cfg.Book.LoadOfAll(p.Prefill)
	l.prefill = limited{
		subject:   patience.Subject{Worker: p.Prefill.ID, Pool: pool, Leg: patience.Prefill, Kind: kind},
		allowance: srv.cfg.overdueAfter(queued.PrefillTokens), from: now,
	}
	p.OverdueAfter = min(srv.patience.Limit(l.prefill.subject, l.prefill.allowance), srv.cfg.PrefillTimeout)
	return l
}

// repays reports whether the effect says that a fresh attempt has served sooner than a leg that
// was late had been waited for.
func repays(e *leg.Effect) bool {
	return e.Op == leg.OpPairFailed || e.Op == leg.OpCharge && e.Charge == blame.Slow && e.Proven
}

// learn notes how long the leg took. It must be called only if the leg has served.
func (l *limited) learn(p *patience.Limits, now time.Time) {
	if !l.from.IsZero() {
		p.Took(l.subject, l.allowance, now.Sub(l.from))
		l.from = time.Time{}
	}
}

// Away tells the attempts that wait for the rank of a transition that it was set aside, so that they stop
// waiting, or that nothing of it answers while a mate is well, so that they go there if they
// can. Away returns at once, so health's hooks may call it.
func (srv *Server) Away(t *health.Transition) {
	if t.To == health.Aside && t.Reason == health.Reason(health.ConnectFailed.String()) { // what comes back is another process
		srv.pairs.do(func(b *sides.Book) { b.Renew(t.Rank.ID) })
	}
	kind := leg.EventGone
	switch {
	case t.Mute():
		kind = leg.EventMute
	case !t.Silent():
		return
	}
	rank, ownPort := t.Rank, t.OwnPort
	srv.engines.runOnce(func() { srv.attempts.away(kind, rank, ownPort) })
}
