package health

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// probe is one request that is to be sent.
type probe struct {
	rank   worker.Rank
	number uint64
	of     flight
	turn   *turn
	at     string // http://host:port
	path   string
	within time.Duration
	told   bool // it is known which models the worker has
	answers
}

// flight says what the probe that is under way is for.
type flight uint8

const (
	grounded    flight = iota // none is under way
	onSchedule                // to bring back a worker that is aside
	onSuspicion               // to see whether a worker in service is alive
	onArrival                 // to see where the address of a new worker leads; no entry has it as its flight
)

// verdict says what a probe has shown.
type verdict uint8

const (
	unclear     verdict = iota // the probe did not reach the worker, for a reason that is not the worker's
	well                       // the answer was a success
	answered                   // the answer was something else
	unwell                     // the answer was a server error
	unreachable                // the connection was refused, or it broke
	unconnected                // the connection was not made in time
	silent                     // the connection was made, and nothing of the worker has answered in time
	late                       // another page has answered, and this one did not come in time
	looped                     // a Baton has answered
	stranger                   // an engine of other models has answered
)

// heard reports whether the worker has answered.
func (v verdict) heard() bool { return v == well || v == answered || v == unwell }

// timedOut reports whether a time has run out.
func (v verdict) timedOut() bool { return v == unconnected || v == silent || v == late }

// How long a suspect may be silent before it is doubted, and how long a connection may
// take. A probe's page may cost the engine work: SGLang's takes 1.0 to 1.1 s when nothing
// runs, and waits for the end of a prefill batch. So a suspect whose page does not come at
// once is also asked for knockPath, which costs nothing in any engine. If neither comes,
// the whole process is silent. silentAfter and lateAfter hold for a worker of which nothing
// is known; one whose answers have lately taken longer is given slack times that. None fails
// by a time that is too short: requests go to its mates. connectWithin leaves TCP time for
// two more tries, 1 and 3 s after the first (RFC 6298).
const (
	knockAfter    = 250 * time.Millisecond
	silentAfter   = time.Second
	lateAfter     = 1250 * time.Millisecond
	connectWithin = 3500 * time.Millisecond
	slack         = 3

	knockPath = "/v1/models"
)

// longestProbe bounds the time of a probe, which doubles each time that the worker has not
// answered: that of a long prefill batch.
const longestProbe = 2 * time.Minute

// stoodStill is how late the end of a probe has to be noticed for this process to have stood
// still: the answer may have come meanwhile, so the probe says nothing.
const stoodStill = time.Second

// answers is how long the answers of a worker have lately taken: the longest time of its page
// and of knockPath, which fade.
type answers struct{ page, knock time.Duration }

// heard takes how long one answer has taken.
func (a *answers) heard(path string, took time.Duration) {
	at := &a.page
	if path == knockPath {
		at = &a.knock
	}
	*at = max(took, *at-*at/8)
}

// silentAfter and lateAfter return how long the worker may be silent, and its page be late,
// before it is doubted.
func (a answers) silentAfter() time.Duration { return max(silentAfter, slack*a.knock) }
func (a answers) lateAfter() time.Duration {
	return max(lateAfter, a.silentAfter(), slack*(a.page-silentAfter))
}

// Run probes workers that are new, aside or suspect, until ctx ends. It returns nil after
// the last probe has ended. It sleeps while there is nothing to probe.
func (t *Tracker) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	defer probes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if p, any := t.begin(time.Now()); any {
			probes.Go(func() {
				t.probed(p, t.ask(ctx, p), time.Now())
			})
		}
		var fire <-chan time.Time
		if at, any := t.nextDue(); any {
			timer.Reset(max(0, time.Until(at)))
			fire = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case <-fire:
		}
	}
}

// ask sends a probe and returns its result. It tells of a suspect that is silent before
// that.
func (t *Tracker) ask(ctx context.Context, p probe) verdict {
	within, cancel := context.WithTimeout(ctx, p.within)
	var sent sync.WaitGroup
	defer sent.Wait()
	defer cancel()
	get := func(path string) <-chan verdict {
		answer, asked := make(chan verdict, 1), time.Now()
		sent.Go(func() {
			v, models := t.send(ctx, within, p.at+path)
			if v.heard() && !t.heard(&p, path, models, time.Since(asked)) {
				v = stranger
			}
			answer <- v
		})
		return answer
	}
	if p.of == onSuspicion {
		return askSuspect(t, &p, get)
	}
	v := <-get(p.path)
	if p.of == onSchedule && v == well && p.told { // whoever listens there now may be another engine
		if k := <-get(knockPath); k == stranger || k == looped {
			return k
		}
	}
	return v
}

// timed returns what a page shows that has taken so long. The flag knocked says that another page
// has come.
func (p *probe) timed(v verdict, took time.Duration, knocked bool) verdict {
	switch {
	case v.timedOut() && took > p.within+stoodStill:
		return unclear
	case v.timedOut() && knocked:
		return late
	}
	return v
}

// askSuspect asks a suspect for its page, and for another one if that does not come at once. It
// tells of a silence before the result.
func askSuspect(t *Tracker, p *probe, get func(path string) <-chan verdict) verdict {
	begun, page := time.Now(), get(p.path)
	var knock <-chan verdict
	knocked, doubt, due := false, ReasonSilent, knockAfter
	wake := time.NewTimer(due)
	defer wake.Stop()
	for {
		select {
		case v := <-page:
			if v == well && p.told && knock == nil { // it may have been restarted as another engine
				if k := <-get(knockPath); k == stranger {
					return k
				}
			}
			return p.timed(v, time.Since(begun), knocked)
		case v := <-knock:
			if v == looped || v == stranger {
				return v
			}
			if v.heard() {
				knocked, doubt, due = true, ReasonPageLate, p.answers.lateAfter()
				wake.Reset(due - time.Since(begun))
			}
		case <-wake.C:
			stood := time.Since(begun) > due+stoodStill
			if knock == nil {
				knock, due = get(knockPath), p.answers.silentAfter()
				wake.Reset(due - knockAfter)
				continue
			}
			if !stood {
				t.unanswered(p.rank, p.number, doubt, time.Now())
			}
		}
	}
}

// heard notes how long an answer of a worker has taken, and which models it was first heard to
// serve. It returns false if those are others now: SGLang would serve requests for any model. An
// engine may serve more than before, since adapters are loaded.
func (t *Tracker) heard(p *probe, path string, models []string, took time.Duration) (same bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(p.rank)
	if e == nil || e != p.turn.of {
		return true
	}
	e.answers.heard(path, took)
	if p.at != e.atEndpoint.at || len(models) == 0 {
		return true
	}
	if e.models == nil {
		e.models = models
	}
	return slices.ContainsFunc(models, func(m string) bool { return slices.Contains(e.models, m) })
}

// send asks for one page. The second context, of the first, ends in time. The models are those
// that knockPath names.
func (t *Tracker) send(ctx, within context.Context, url string) (v verdict, models []string) {
	var connected atomic.Bool
	within = httptrace.WithClientTrace(within, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := http.NewRequestWithContext(within, http.MethodGet, url, nil)
	if err != nil {
		return unclear, nil
	}
	res, err := t.cfg.Client.Do(req)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return unclear, nil // ctx has ended: the error says nothing about the worker
	case timedOut(err) && connected.Load():
		return silent, nil
	default:
		return verdictOf(err), nil
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	switch {
	case res.Header.Get(prefill.HeaderAnsweredBy) == prefill.AnsweredByBaton:
		return looped, nil
	case res.StatusCode >= http.StatusInternalServerError:
		return unwell, nil
	case err != nil || res.StatusCode/100 != 2:
		return answered, nil
	}
	if strings.HasSuffix(url, knockPath) {
		models = ModelsIn(body)
	}
	return well, models
}

// ModelsIn returns the models that an answer of an engine's /v1/models names; nil: it names none,
// or is something else.
func ModelsIn(body []byte) (models []string) {
	var list struct {
		Data []struct{ ID string }
	}
	if json.Unmarshal(body, &list) != nil {
		return nil
	}
	for _, m := range list.Data {
		models = append(models, m.ID)
	}
	return models
}

// timedOut reports whether a time ran out: that of a context, or of the dialer, which
// returns either of two errors.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)
}

// verdictOf tells failures of the worker, or of the way to it, from failures on this
// machine: that no file descriptor is free does not mean that a worker is dead.
func verdictOf(err error) verdict {
	if timedOut(err) {
		return unconnected
	}
	for _, sign := range [...]error{syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN} { // nobody there has refused
		if errors.Is(err, sign) {
			return unconnected
		}
	}
	for _, sign := range [...]error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, sign) {
			return unreachable
		}
	}
	return unclear
}

// aheadMost is how many suspects in a row are probed before a worker aside that is due:
// workers come back even while a whole fleet is suspect.
const aheadMost = 3

// begin returns the next probe if one is due. A gap between two probes spreads those of a
// large pool that has failed at once.
func (t *Tracker) begin(now time.Time) (p probe, any bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Before(t.nextBegin) {
		return probe{}, false
	}
	x, back, arrived := t.suspects.ready(now), t.scheduled.ready(now), t.arrivals.ready(now)
	p = probe{path: probePath, within: t.cfg.ProbeTimeout}
	switch {
	case arrived != nil && (!t.welcomed || x == nil && back == nil):
		x, p.of, p.path = arrived, onArrival, knockPath
	case x != nil && (back == nil || t.ahead < aheadMost):
		p.of, x.of.asked = onSuspicion, now
		t.ahead++
		if back == nil {
			t.ahead = 0
		}
	case back == nil:
		return probe{}, false
	case back.of.flight != grounded: // the probe on suspicion is still under way
		t.scheduled.put(back, now.Add(t.cfg.ProbeInterval))
		return probe{}, false
	default:
		x, t.ahead, p.of = back, 0, onSchedule
		x.of.state.Store(uint32(Probing))
	}
	x.strike()
	t.nextBegin = now.Add(t.gap)
	t.probes++
	t.welcomed = p.of == onArrival
	p.rank, p.number, p.turn, p.at = x.of.rank, t.probes, x, x.at
	if e := x.of; p.of != onArrival {
		e.flight, e.probe, p.answers, p.told = p.of, p.number, e.answers, e.models != nil && !e.loops
		p.within = min(p.within<<e.lates, max(p.within, longestProbe))
		if e.loops {
			p.path = knockPath
		}
	}
	return p, true
}

// nextDue returns when the next probe is due, if there is one.
func (t *Tracker) nextDue() (at time.Time, any bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range [...]*agenda{&t.suspects, &t.scheduled, &t.arrivals} {
		if x := a.First(); x != nil && (!any || x.due.Before(at)) {
			at, any = x.due, true
		}
	}
	if any && at.Before(t.nextBegin) {
		at = t.nextBegin
	}
	return at, any
}

// unanswered takes that a suspect has been silent for a while, and to what.
func (t *Tracker) unanswered(r worker.Rank, number uint64, to Reason, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.find(r); e != nil && e.flight == onSuspicion && e.probe == number {
		t.doubtLocked(e, to, now)
	}
}

// probed takes the result of a probe. It ignores a result that is not of the worker's
// latest probe.
func (t *Tracker) probed(p probe, v verdict, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(p.rank)
	switch {
	case e == nil || e != p.turn.of:
		return
	case p.of == onArrival:
		t.arrivedLocked(p.turn, v, now)
		return
	case e.flight == grounded || e.probe != p.number:
		return
	}
	on := e.flight
	e.flight, e.heard = grounded, e.heard || v.heard()
	e.lates = min(e.lates+1, maxLates)
	if v != silent && v != late {
		e.lates = 0
	}
	switch {
	case on == onSuspicion && v == looped:
		t.loopsLocked(e, p.at, now)
	case on == onSuspicion && v == stranger:
		t.condemnLocked(e, ReasonOtherModels, now)
	case on == onSuspicion:
		t.judgeSuspectLocked(e, v, now)
	case e.is() == Probing && v == well && !e.loops:
		e.serverErrors = 0
		t.moveLocked(e, Recovering, false, ReasonProbe, now)
	case e.is() == Probing:
		e.state.Store(uint32(Aside))
		switch {
		case v == looped:
			t.loopsLocked(e, p.at, now)
		case v == stranger && !e.loops && e.reason != ReasonOtherModels:
			t.moveLocked(e, Aside, true, ReasonOtherModels, now)
		case v == unreachable:
			t.condemnLocked(e, reasonOf(ConnectFailed), now)
		case v == unconnected:
			t.condemnLocked(e, ReasonUnconnected, now)
		case v == silent: // one silence more makes no judgement a death
			t.condemnLocked(e, e.reason, now)
		case p.path == knockPath && p.at == e.at && (v == well || v == answered): // the address leads elsewhere now
			e.loops, e.at = false, e.atEndpoint.at
		}
		t.scheduled.put(&e.turn, now.Add(t.jitterLocked(t.cfg.ProbeInterval)))
		t.nudge()
	}
}

// judgeSuspectLocked takes the result of a probe on suspicion. That nothing of a worker
// answers is a second silence beside the one that made it suspect, of another kind: both
// together set it aside. If its machine takes connections, that needs a mate that is healthy:
// what silences all of them may end for all, and a request loses nothing by waiting there.
// Without a connection it would lose an attempt, so it waits elsewhere ([Tracker.MayReturn]).
func (t *Tracker) judgeSuspectLocked(e *entry, v verdict, now time.Time) {
	served := e.servedAt.After(e.asked)
	switch {
	case v.heard():
		t.believeLocked(e, ReasonProbe, now)
	case v == unreachable:
		t.condemnLocked(e, reasonOf(ConnectFailed), now)
		return
	case v == unconnected && !served:
		t.condemnLocked(e, ReasonUnconnected, now)
		return
	case v == silent && !served && e.mated():
		t.condemnLocked(e, ReasonSilent, now)
		return
	case v == silent:
		t.doubtLocked(e, ReasonSilent, now)
	case v != unclear:
		t.doubtLocked(e, ReasonPageLate, now)
	}
	if e.is() == Doubted {
		t.suspects.put(&e.turn, now.Add(t.jitterLocked(t.cfg.ProbeInterval)))
		t.nudge()
	}
}
