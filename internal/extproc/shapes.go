package extproc

import (
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// shapes holds back requests of a shape under which two workers were lost. The shape of a request is
// its model and those members of its body that its engine's list does not have; a request without
// such members has none, and is never held back. A shape is held back for shapeHeld. Then one request
// at a time is let through. One whose answer begins after that, also of those on their way, ends it. Safe for concurrent use.
type shapes struct {
	mu   sync.Mutex
	held recent.Map[shape, heldShape] // guarded by mu
}

const (
	shapeHeld  = time.Minute
	shapeKept  = time.Hour
	shapesMost = 256 // the oldest goes first
)

// shape is comparable, and bounded: see [capability.Table.Unlisted]. The zero value is none.
type shape struct {
	model   string
	members string // with a comma between two
}

func shapeOf(model string, members []string) shape {
	if len(members) == 0 {
		return shape{}
	}
	return shape{strings.Clone(model), strings.Join(members, ",")}
}

type heldShape struct {
	until time.Time // nobody is let through before
	tried bool      // one request is let through, and has not ended
}

func newShapes() *shapes {
	return &shapes{held: recent.Map[shape, heldShape]{Keep: shapeKept, Most: shapesMost}}
}

// ask returns why a request is held back, or nil. If it is the one that is let through, tries is
// true, and the caller calls ended once it has ended.
func (l *shapes) ask(s shape, now time.Time) (why *leg.Failure, tries bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, held := l.held.Get(s, now)
	switch {
	case !held:
		return nil, false
	case !now.Before(h.until) && !h.tried:
		h.tried = true
		l.held.Put(s, h, now)
		return nil, true
	}
	f := leg.FailHeldBack
	f.Message += ": " + s.words() + ". Such requests are held back " + h.words(now) + ", or until one is served."
	return &f, false
}

// lost holds s back from now on. It returns false if it was held back before.
func (l *shapes) lost(s shape, now time.Time) (anew bool) {
	if s == (shape{}) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, before := l.held.Get(s, now)
	if !l.held.Put(s, heldShape{until: now.Add(shapeHeld)}, now) {
		l.held.DropOldest()
		l.held.Put(s, heldShape{until: now.Add(shapeHeld)}, now)
	}
	return !before
}

// served ends what is held back of s if the answer began after two workers were lost: that of an answer
// before is often known later. It reports whether that was anything.
func (l *shapes) served(s shape, began, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, held := l.held.Get(s, now)
	return held && began.After(h.until.Add(-shapeHeld)) && l.held.Delete(s)
}

// list describes what is held back, oldest first.
func (l *shapes) list(now time.Time) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held.Expire(now)
	for s, h := range l.held.All() {
		out = append(out, "Two workers were lost under a request for model "+s.model+" with "+s.words()+", in no list of what its engine takes. Such requests get held_back "+
			h.words(now)+", or until one is served: see the engines' logs")
	}
	return out
}

// words names the members. Their names are the client's words: those that are no names are not shown.
func (s shape) words() string {
	names := strings.Split(s.members, ",")
	for i, n := range names {
		if strings.Trim(n, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != "" {
			names[i] = "(no word)"
		}
	}
	return "the members " + strings.Join(names, ", ")
}

func (h heldShape) words(now time.Time) string {
	if now.Before(h.until) {
		return "until " + h.until.UTC().Format("15:04:05 MST")
	}
	return "while one of them is tried"
}

// shaped notes what the end of an attempt says of the request's shape.
func shaped(s *mainStream, now time.Time, e *leg.Effect) {
	l, tried := s.srv.shapes, s.asked.tried()
	switch {
	case s.asked.shape == shape{}:
	case e.Outcome == blame.OK && s.m.Answer().Relayed.IsZero(): // prefill has answered alone, which proves nothing of decode
		if tried {
			l.ended(s.asked.shape, now)
		}
	case e.Outcome == blame.OK:
		if l.served(s.asked.shape, s.m.Answer().Relayed, now) {
			s.srv.log.Info("a request with the members that two lost workers had was served: requests with these members are no longer held back",
				logkey.Model, s.asked.shape.model, logkey.Members, s.asked.shape.words())
		}
	case e.Fail != nil && e.Fail.Code == leg.FailDecodesLost.Code:
		if l.lost(s.asked.shape, now) {
			s.srv.log.Warn("two workers were lost while they had a request with members that no list of their engine has: requests with these members are held back until one of them is served",
				logkey.Model, s.asked.shape.model, logkey.Members, s.asked.shape.words(), logkey.RequestID, s.m.Request().Headers.RequestID)
		}
	case tried:
		l.ended(s.asked.shape, now)
	}
}

// HeldBack describes the shapes of requests that srv holds back. Safe for concurrent use.
func HeldBack(srv *Server, now time.Time) []string { return srv.shapes.list(now) }

// ended notes that a request which was let through has ended and proves nothing: another one may be.
func (l *shapes) ended(s shape, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, held := l.held.Get(s, now)
	if held {
		h.tried = false
		l.held.Put(s, h, now)
	}
}
