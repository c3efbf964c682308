package extproc

import (
	"bytes"
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file says how long the legs of a plan may take.

// What decode may take, before anything is learned of it, for each token of an answer
// that comes as a whole; and what a leg may take to begin.
const (
	decodePerToken   = 30 * time.Millisecond
	unsaidMaxTokens  = 4096
	startBytesPerSec = 20 << 20 // of a request's body, on its way into a leg
	startPerRequest  = time.Millisecond
)

// limited is what a leg's limit is learned from.
type limited struct {
	subject   patience.Subject
	allowance time.Duration
	from      time.Time
}

// costly are members that cost work which the prompt's tokens do not tell.
var costly = map[patience.Kind][][]byte{
	patience.Media:  {[]byte(`"image_url"`), []byte(`"input_audio"`), []byte(`"video_url"`), []byte(`"audio_url"`), []byte(`"image_data"`)},
	patience.Guided: {[]byte(`"response_format"`), []byte(`"guided_`), []byte(`"structured_outputs"`), []byte(`"json_schema"`)},
}

// kindOf says what a request costs. A text that holds one of the names only makes its
// own limits longer.
func kindOf(body []byte) patience.Kind {
	for _, k := range []patience.Kind{patience.Media, patience.Guided} {
		for _, name := range costly[k] {
			if bytes.Contains(body, name) {
				return k
			}
		}
	}
	return patience.Plain
}

// limit fills in how long the plan's legs may take: of a request with that body, to
// workers of that pool.
func (a *asking) limit(p *leg.Plan, pool worker.Key, body []byte, now time.Time) {
	q := a.m.Request()
	if q.Passes() {
		return
	}
	srv, kind := a.srv, kindOf(body)
	a.decodeLimit = limited{
		subject:   patience.Subject{Worker: p.Decode.ID, Pool: pool, Leg: patience.Stream, Kind: kind},
		allowance: srv.cfg.AnswerBase,
	}
	if !q.Scan.Stream {
		tokens := q.Scan.MaxTokens
		if tokens < 0 {
			tokens = unsaidMaxTokens
		}
		a.decodeLimit.subject.Leg = patience.Whole
		a.decodeLimit.allowance += time.Duration(min(tokens, 1<<24)) * decodePerToken
	}
	p.AnswerWithin = srv.patience.Limit(a.decodeLimit.subject, a.decodeLimit.allowance)
	if !p.Disaggregated {
		return
	}
	p.Failing = srv.cfg.Health.HandoffFailing(p.Prefill, p.Decode, now)
	p.StartWithin = srv.cfg.StartTimeout + time.Duration(len(body))*time.Second/startBytesPerSec +
		time.Duration(srv.attempts.len())*startPerRequest
	queued, _ := srv.cfg.Book.Load(p.Prefill)
	a.prefillLimit = limited{
		subject:   patience.Subject{Worker: p.Prefill.ID, Pool: pool, Leg: patience.Prefill, Kind: kind},
		allowance: srv.cfg.overdueAfter(queued.PrefillTokens), from: now,
	}
	p.OverdueAfter = min(srv.patience.Limit(a.prefillLimit.subject, a.prefillLimit.allowance), srv.cfg.PrefillTimeout)
}

// learn notes how long a leg has taken that has served.
func (l *limited) learn(p *patience.Limits, now time.Time) {
	if !l.from.IsZero() {
		p.Took(l.subject, l.allowance, now.Sub(l.from))
		l.from = time.Time{}
	}
}

// SetAside tells the attempts that wait for a rank that it is dead or silent, so
// that they need not wait: for any of its worker unless it has a port of its own. It returns at
// once; health's hooks may call it.
func (srv *Server) SetAside(r worker.Rank, ownPort bool) {
	srv.engines.run(func() { srv.attempts.aside(r, ownPort) })
}
