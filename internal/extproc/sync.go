package extproc

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is the main leg's part where prefill must have ended before decode
// may begin (docs/behaviour.md#prefill-first).

// legAnswer is what came of a leg that the plugin sent itself.
type legAnswer struct {
	status     int    // 0: no answer
	localReply string // Envoy's response flags, where Envoy itself answered
	retryAfter string // the worker's
	body       []byte
	err        error // no whole answer
	sent       bool  // somebody may have seen the request
	canceled   bool  // by us
	odd        bool  // its worker refuses more than its pool
	spent      bool  // nobody reads the request's body any more

	// Set by readAnswer.
	read      bool
	result    handoff.Result
	malformed error
}

// good reports whether a worker has answered a whole 2xx.
func (a *legAnswer) good() bool {
	return a.err == nil && !a.canceled && a.localReply == "" && a.status >= 200 && a.status < 300
}

// taken reports whether a collecting leg that ended so may have been seen by a
// decode worker, whatever it says.
func (a *legAnswer) taken() bool {
	return a.sent && (a.localReply == "" || reached(a.localReply))
}

// handover is the synchronous hand-off of one attempt.
type handover struct {
	asked  bool // prefill has not answered; the request is kept
	alone  bool // prefill's answer is the response, whatever it says
	answer []byte
	result handoff.Result
	held   bool // prefill holds KV that nobody has taken
	sent   bool // decode was sent it, and nobody has said whether it came
	taking bool // a collecting leg is on its way
}

// askPrefill begins the attempt with prefill alone.
func (m *mainLeg) askPrefill(now time.Time) {
	m.phase = mainPrefilling
	h := &m.handover
	h.asked, h.alone = true, handoff.Alone(m.scan)
	body := handoff.AppendPrefill(m.rules.buffers.Borrow(len(m.body)+syncRoom), m.body, m.scan, m.plan.kind, m.plan.handoffID, h.alone)
	if !m.fullDuplex {
		m.emit(effect{op: opExtend, wait: extension(m.deadline.Sub(now))})
	}
	m.emit(effect{
		op: opPrefill, body: body, set: m.syncHeaders(m.plan.prefill.DPRank, m.plan.prefillDPSize, m.plan.token),
		wait: min(m.deadline.Sub(now), m.rules.prefillTimeout) + m.rules.orphanGrace,
	})
}

// syncRoom is more than prefill's body grows by.
const syncRoom = 320

// syncHeaders lists what a leg of ours carries: what a mirrored one would, and in place of
// what Envoy adds there, what we know.
func (m *mainLeg) syncHeaders(dp worker.DPRank, dpSize uint32, token string) []wire.Header {
	set := make([]wire.Header, 0, 8)
	set = append(set, wire.Header{Name: prefill.HeaderLeg, Value: token}, wire.Header{Name: "content-type", Value: "application/json"})
	if m.hdr.RequestID != "" {
		set = append(set, wire.Header{Name: "x-request-id", Value: m.hdr.RequestID})
	}
	if m.plan.traceparent != "" {
		set = append(set, wire.Header{Name: "traceparent", Value: m.plan.traceparent})
	}
	for _, name := range m.rules.names.PrefillID {
		set = append(set, wire.Header{Name: name, Value: m.plan.prefill.ID.String()})
	}
	if dpSize > 1 {
		set = append(set, wire.Header{Name: handoff.SGLangDPRankHeader, Value: strconv.FormatUint(uint64(dp), 10)})
	}
	return carried(set, m.hdr.All)
}

// onPrefilled takes prefill's answer, or what became of it.
func (m *mainLeg) onPrefilled(now time.Time, a *legAnswer) {
	h := &m.handover
	report, result := m.judgePrefill(a)
	if result.Held() {
		h.answer, h.result, h.held = a.body, result, true
	}
	if m.leg != legFailed && m.leg != legEnded {
		if report.state == legFailed {
			m.onLegFailed(now, report) // retries or answers where nothing has been said yet
		} else {
			m.onLeg(now, report)
		}
	}
	switch {
	case m.phase != mainPrefilling:
		m.collect() // nobody waits for it any more
	case m.instead == nil:
		m.afterPrefill(now, a, result)
	case h.held: // it was given up, and has left KV all the same
		m.reject(m.instead, false)
	default:
		m.serveAlone(now)
		return
	}
	h.asked = false
	if m.phase != mainRouted {
		m.forgetRequest()
	}
	m.onLegEnded(now, legReport{state: legEnded})
}

// readAnswer reads what a good answer of prefill says, once.
func (m *mainLeg) readAnswer(a *legAnswer) {
	if !a.read && a.good() {
		a.read = true
		a.result, a.malformed = handoff.ReadAnswer(m.plan.kind, a.body, m.handover.alone)
	}
}

// goesOn reports whether decode is to get the request after this answer of
// prefill's: nobody has given the attempt up, and it does not end with it.
func (m *mainLeg) goesOn(a *legAnswer) bool {
	if m.phase != mainPrefilling || m.instead != nil || !a.good() {
		return false
	}
	m.readAnswer(a)
	return a.result.Verdict == handoff.HandOff || a.result.Verdict == handoff.Missing
}

// judgePrefill turns an answer into the leg's end and what the hand-off says.
func (m *mainLeg) judgePrefill(a *legAnswer) (legReport, handoff.Result) {
	fail := func(r blame.Sight) (legReport, handoff.Result) {
		return legReport{state: legFailed, reason: r, status: a.status}, handoff.Result{}
	}
	switch {
	case a.canceled:
		return fail(blame.Aborted)
	case a.localReply != "":
		return fail(localSight(a.localReply))
	case a.status == 0 && errors.Is(a.err, context.DeadlineExceeded):
		return fail(blame.TimedOut)
	case a.status == 0:
		return fail(blame.NotSent)
	case errors.Is(a.err, errLongAnswer) && a.status < 300:
		return fail(blame.TooLong)
	case a.err != nil && !errors.Is(a.err, errLongAnswer):
		return fail(blame.BrokeOff)
	}
	if s := sightOfStatus(a.status); s != blame.Served {
		r, _ := fail(s)
		r.retryAfter, r.odd = a.retryAfter, a.odd
		if s == blame.Rejected {
			r.answer = a.body
		}
		return r, handoff.Result{}
	}
	if len(a.body) == 0 {
		return fail(blame.Empty)
	}
	m.readAnswer(a)
	switch {
	case a.malformed != nil:
		return fail(blame.Unreadable)
	case a.result.Verdict == handoff.Failed:
		r, _ := fail(blame.Failing)
		return r, a.result // it may hold KV all the same
	case a.result.Verdict == handoff.Missing && !m.handover.alone && !m.plan.decodeAlone:
		return fail(blame.NoHandoff)
	}
	return legReport{state: legWell, status: a.status}, a.result
}

// afterPrefill goes on with decode, or answers.
func (m *mainLeg) afterPrefill(now time.Time, a *legAnswer, result handoff.Result) {
	switch {
	case m.handover.alone, result.Verdict == handoff.Finished:
		m.answerWithPrefill(a.body)
	case result.Verdict == handoff.Missing:
		// Decode does the whole prompt itself: right, slow and counted.
		m.emit(effect{op: opMark, report: legReport{state: legFailed, reason: blame.NoHandoff}})
		body := m.body
		m.body = nil
		m.route(now, body, false)
		m.forgetRequest()
	default:
		body := handoff.AppendDecode(m.rules.buffers.Borrow(len(m.body)+len(a.body)+injectRoom),
			m.body, m.scan, m.plan.kind, a.body, result)
		m.handover.sent = true
		m.route(now, body, true)
	}
}

// answerWithPrefill is docs/behaviour.md#prefill-answers: what prefill answered is all
// there is to say.
func (m *mainLeg) answerWithPrefill(answer []byte) {
	body, contentType, err := handoff.AppendFinal(nil, answer, m.scan, m.body, m.plan.kind)
	if err != nil {
		m.reject(&failPrefill, true)
		return
	}
	m.phase = mainRejected
	m.finish(blame.OK, nil)
	im := &wire.Immediate{Status: 200, Detail: "baton_prefill_answer", Body: body}
	im.Headers = append(im.Headers, wire.Header{Name: "content-type", Value: contentType})
	if m.plan.explain != "" {
		im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderDecision, Value: m.plan.explain})
	}
	m.collect() // vLLM may hold what it has computed all the same
	m.releaseDecode()
	m.emit(effect{op: opImmediate, imm: im})
}

// mayServeAlone reports whether one worker is to serve the request, whole, where
// f would be its last word (docs/behaviour.md#first-prefill-fails): what failed is
// prefill and not the request, and nobody has named a worker. Prefill workers that are
// busy are back-pressure, and no reason to do without them.
func (m *mainLeg) mayServeAlone(f *failure, r legReport) bool {
	return m.rules.fallback && f.fresh && !r.busy() && r.reason != blame.Rejected && !m.mayRetry(f) && !m.plan.prefillNamed && !m.plan.decodeNamed
}

// serveAlone ends the part of the pair and has one worker picked.
func (m *mainLeg) serveAlone(now time.Time) {
	m.onLegEnded(now, legReport{state: legEnded})
	m.releaseDecode()
	m.emit(effect{op: opForget})
	m.plan, m.leg, m.handover = nil, legNone, handover{}
	m.phase = mainResolving
	m.emit(effect{op: opPick, fail: m.instead})
}

// collect sends a decode for one token whose answer nobody gets, so that KV
// which no decode has been told of is taken and freed (docs/behaviour.md#collected).
func (m *mainLeg) collect() {
	h := &m.handover
	if !h.held || h.sent {
		return
	}
	e := effect{op: opCollect, path: m.path}
	switch {
	case m.plan.kind == handoff.Mooncake && m.well:
		p := m.plan
		e.path = openai.Completions
		e.body = handoff.AppendMooncakeCollect(nil, p.model, p.bootstrap, p.prefill.DPRank, p.room)
	case m.plan.kind != handoff.Mooncake && m.scan != nil:
		e.body = handoff.AppendCollect(nil, m.body, m.scan, m.plan.kind, h.answer, h.result)
	default:
		return
	}
	h.held, h.taking = false, true
	m.emit(e)
}

// taken forgets the hand-off: decode has seen it, so the KV is its engine's
// business. It frees what it does not fetch; a second decode that came for the
// same KV would read blocks that are another request's by then.
func (m *mainLeg) taken() {
	m.handover.held, m.handover.answer = false, nil
	m.forgetRequest()
}

// unsure reports whether only Envoy's access log can tell if decode has seen
// the hand-off.
func (m *mainLeg) unsure() bool { return m.handover.held && m.handover.sent }

// owes reports whether KV may be held for this attempt that only we would have
// taken: prefill has not answered, or its hand-off is in our hand or on its way.
func (m *mainLeg) owes() bool {
	return m.phase != mainDone && (m.handover.asked || m.handover.held || m.handover.taking)
}

func (m *mainLeg) name() attemptName { return nameOf(m.hdr.RequestID, m.attempt) }

// forgetRequest gives back the request's body and what was read of it.
func (m *mainLeg) forgetRequest() {
	if m.scan != nil {
		requests.Put(m.scan)
		m.scan = nil
	}
	if m.body != nil {
		m.rules.buffers.Return(m.body)
		m.body = nil
	}
}

// onCollected ends a collecting leg; decode was booked until now.
func (m *mainLeg) onCollected() {
	m.handover.taking = false
	m.releaseDecode()
	if m.phase == mainLingering && !m.legRuns() {
		m.done()
	}
}

func (m *mainLeg) legRuns() bool { return m.leg != legNone && m.leg != legEnded }
