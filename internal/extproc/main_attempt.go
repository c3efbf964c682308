package extproc

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// attempt is what one attempt's main leg knows, and how it goes on and ends. When it does
// so, pairing and mainLeg say, which take events; nothing here asks them.
type attempt struct {
	rules *rules
	way   way
	phase mainPhase
	link  link

	req    request
	answer answer

	plan     *plan // nil: nothing was picked
	pickedAt time.Time
	instead  *failure // prefill has failed for good: one worker is to serve, before this is answered
	far      farLeg
	handover handover
	timers   timers
	charges  charges

	decodeHeld  bool // a decode reservation is ours to release
	prefillHeld bool // a prefill reservation is ours to release
	finished    bool // opFinish was returned

	logged   event // evLogged, when it came before the stream's end
	loggedAt time.Time

	out []effect // reused between steps
}

// link is the stream to Envoy.
type link uint8

const (
	linkUp       link = iota
	linkDraining      // the process is about to end
	linkOver          // nothing can be sent
)

// farLeg is the prefill leg, as its owner sees it.
type farLeg struct {
	state legState
	well  bool // it was, before it ended
}

// awaited reports whether the leg is neither well nor over.
func (l farLeg) awaited() bool { return l.state == legDispatched || l.state == legStarted }

// runs reports whether something of the leg may remain.
func (l farLeg) runs() bool { return l.state != legNone && l.state != legEnded }

func (a *attempt) emit(e effect) {
	if a.out == nil {
		a.out = make([]effect, 0, 4)
	}
	a.out = append(a.out, e)
}

// awaitsAnswer reports whether the request still waits for its first byte.
func (a *attempt) awaitsAnswer() bool {
	return a.phase == mainPrefilling || a.phase == mainRouted || a.phase == mainHolding
}

// prefillLeg is which leg prefill serves.
func (a *attempt) prefillLeg() blame.Leg {
	if a.plan.kind.PrefillFirst() {
		return blame.First
	}
	return blame.Mirrored
}

// decodeLeg is which leg the worker that answers serves.
func (a *attempt) decodeLeg() blame.Leg {
	if a.plan.disaggregated {
		return blame.Decode
	}
	return blame.Alone
}

// unfetched is what an error, or nothing, says of a decode that needs prefill's KV: one
// that cannot reach prefill says so while prefill still waits for it.
func (a *attempt) unfetched(s blame.Sight) blame.Sight {
	if a.plan.disaggregated && (s == blame.Errored || s == blame.Empty) {
		return blame.Unfetched
	}
	return s
}

// asksAgain reports whether another attempt could follow this one.
func (a *attempt) asksAgain() bool { return a.req.attempt < a.rules.maxAttempts && !a.way.plain }

// mayRetry reports whether a fresh attempt is allowed and makes sense: one that
// would meet the same worker, since the request names it, does not.
func (a *attempt) mayRetry(f *failure) bool {
	if !f.fresh || !a.asksAgain() {
		return false
	}
	if a.plan == nil || a.way.repick {
		return true
	}
	if f.ofPrefill {
		return !a.plan.prefillNamed
	}
	return !a.plan.decodeNamed
}

// decodeFailed charges decode with what was seen of it, and asks for a fresh attempt
// where that may do better: it reports whether it has.
func (a *attempt) decodeFailed(now time.Time, s blame.Sight, odd bool, f *failure) bool {
	row := blame.Of(a.decodeLeg(), s)
	f.fresh = mayDoBetter(row, a.plan, a.plan.spare.Decode, odd)
	retry := a.mayRetry(f)
	a.charge(now, row, a.plan.decode, retry)
	if retry {
		a.reject(f, true)
	}
	return retry
}

// charge tells what was seen of a worker: at once, or, where a fresh attempt is to
// show whose fault it was, to that attempt.
func (a *attempt) charge(now time.Time, row blame.Row, at worker.Rank, retry bool) {
	a.charges.saw(row.Leg, row.Sight)
	a.charges.shun(row, at, a.plan)
	if row.Suspect {
		a.suspect(at, row.Leg == blame.Mirrored && row.Sight == blame.Overdue)
	}
	if retry {
		var c blame.Charge
		a.plan.suspects, c = a.plan.suspects.And(suspicionOf(row, at, a.plan, now.Sub(a.pickedAt)))
		a.chargeWith(at, c, row.Charge)
		return
	}
	v, _ := a.plan.suspects.Last(at, row.Charge)
	a.chargeWith(at, v.Charge, row.Charge)
}

func (a *attempt) chargeWith(at worker.Rank, c, seen blame.Charge) {
	c = chargeOf(c, seen)
	if c != blame.None {
		a.emit(effect{op: opCharge, rank: at, charge: c})
	}
}

// suspect has a worker probed. Of a mirrored pair each waits for the other, so a
// silence may be of both.
func (a *attempt) suspect(at worker.Rank, both bool) {
	a.emit(effect{op: opSuspect, rank: at})
	if both {
		a.emit(effect{op: opSuspect, rank: a.plan.decode})
	}
}

// chargeStuck tells of a leg that has taken too long, where nobody else can be tried.
// It is charged only when it has taken so long several times over: the request may be
// one that takes long, and its attempt would end with the worker that is set aside.
func (a *attempt) chargeStuck(row blame.Row, at worker.Rank) {
	a.charges.saw(row.Leg, row.Sight)
	a.suspect(at, row.Leg == blame.Mirrored)
	if !a.charges.lapsed() {
		return
	}
	if row.Pair && !a.plan.kind.Holds() { // else prefill's answer waits for nobody
		at = a.plan.suspects.Stalled(a.plan.prefill, a.plan.decode, sameWorker)
	}
	a.chargeWith(at, blame.Slow, blame.Slow)
}

// served charges the suspects of earlier attempts: this one has served the request. Its
// head alone would be no proof: who answers with nothing, or breaks off, sends one, too.
func (a *attempt) served() {
	by := []worker.Rank{a.plan.decode}
	if a.plan.disaggregated {
		by = append(by, a.plan.prefill)
		a.emit(effect{op: opPairServed, rank: a.plan.prefill, other: a.plan.decode})
	}
	for _, v := range a.plan.suspects.Served(a.answer.relayed.Sub(a.pickedAt), by...) {
		if v.Pair != nil {
			a.emit(effect{op: opPairFailed, rank: v.Pair[0], other: v.Pair[1]})
		} else {
			a.emit(effect{op: opCharge, rank: v.Worker, charge: v.Charge, proven: true})
		}
	}
	a.plan.suspects = nil
}

// awaitAnswer starts decode's clock: it has all that it needs.
func (a *attempt) awaitAnswer(now time.Time) {
	a.charges.lapses = 0
	if a.plan.answerWithin > 0 {
		a.timers.set(timerAnswer, now.Add(a.plan.answerWithin))
		a.timers.set(timerProbe, now.Add(suspectAfter(a.plan.answerWithin, suspectEvery)))
	}
}

// route sends the request on to decode with a body, which is the stream's from
// here on; changed says that it is not as it came.
func (a *attempt) route(now time.Time, body []byte, changed bool) {
	a.phase = mainRouted
	if !a.far.awaited() {
		a.awaitAnswer(now)
	}
	e := effect{op: opRoute, of: wire.RequestBody, trailers: a.req.trailers, set: a.routeHeaders(now), token: a.plan.answerToken, newRoute: a.plan.looks}
	e.remove = a.req.leftover(e.set, a.way)
	switch {
	case changed:
		e.body = body
		e.set = append(e.set, wire.Header{Name: "content-length", Value: strconv.Itoa(len(body))})
	case a.req.fullDuplex:
		e.body = body
	default:
		a.rules.buffers.Return(body)
	}
	a.emit(e)
}

// pass routes a request by its headers.
func (a *attempt) pass(now time.Time) {
	a.phase = mainRouted
	e := effect{op: opRouteHeaders, set: a.routeHeaders(now)}
	e.remove = a.req.leftover(e.set, a.way)
	a.emit(e)
}

// routeHeaders lists what the request carries from here on
// (docs/behaviour.md#injected).
func (a *attempt) routeHeaders(now time.Time) []wire.Header {
	p, names := a.plan, &a.rules.names
	set := make([]wire.Header, 0, 20)
	all := func(keys []string, v string) {
		for _, k := range keys {
			set = append(set, wire.Header{Name: k, Value: v})
		}
	}
	set = append(set, wire.Header{Name: prefill.HeaderDestination, Value: p.decodeAddr})
	if !a.way.plain { // else Envoy lets nobody set its own headers, and the time-out is ours to keep
		left := a.req.deadline.Sub(now)
		if a.answer.carriage >= inDuplex { // an answer that comes through us is ours to end, with an error event
			left += 2 * deadlineSlack
		}
		set = append(set, wire.Header{Name: "x-envoy-upstream-rq-timeout-ms", Value: strconv.FormatInt(max(left.Milliseconds(), 1), 10)})
	}
	set = append(set, wire.Header{Name: prefill.HeaderAttempt, Value: strconv.FormatUint(p.nonce, 10)})
	if a.req.unnamed {
		set = append(set, wire.Header{Name: "x-request-id", Value: a.req.headers.RequestID})
	}
	if !p.several { // else who gets it is the proxy's to find
		all(names.WorkerID, p.decode.ID.String())
		all(names.DPRank, strconv.FormatUint(uint64(p.decode.DPRank), 10))
	}
	if p.decodeDPSize > 1 {
		all([]string{handoff.SGLangDPRankHeader}, strconv.FormatUint(uint64(p.decode.DPRank), 10))
	}
	if p.traceparent != "" {
		set = append(set, wire.Header{Name: "traceparent", Value: p.traceparent})
	}
	if p.looks {
		set = append(set, wire.Header{Name: prefill.HeaderFirstToken, Value: "1"})
	}
	if !p.disaggregated {
		return set
	}
	if !p.kind.PrefillFirst() {
		set = append(set, wire.Header{Name: prefill.HeaderPrefillCluster, Value: a.rules.prefillCluster}, wire.Header{Name: prefill.HeaderLeg, Value: p.token},
			wire.Header{Name: prefill.HeaderPrefillEndpoint, Value: p.prefillAddr})
	}
	all(names.PrefillID, p.prefill.ID.String())
	all(names.PrefillDPRank, strconv.FormatUint(uint64(p.prefill.DPRank), 10))
	if p.kind.PrefillFirst() {
		return set
	}
	port, room := strconv.Itoa(int(p.bootstrapPort)), strconv.FormatUint(uint64(p.room), 10)
	all(names.BootstrapHost, p.bootstrapHost)
	all(names.BootstrapPort, port)
	all(names.BootstrapRoom, room)
	if p.inHeaders {
		set = append(set, wire.Header{Name: handoff.SGLangOverrideHost, Value: p.bootstrapHost},
			wire.Header{Name: handoff.SGLangOverridePort, Value: port}, wire.Header{Name: handoff.SGLangOverrideRoom, Value: room})
	}
	return set
}

// holds reports whether decode's head waits: for prefill to be well, or for the first
// token.
func (a *attempt) holds() bool {
	if a.answer.unserved != "" {
		return false // no other answer will come
	}
	return a.rules.hold && a.far.awaited() || a.answer.reading && a.rules.holdFirst && !a.way.plain
}

// relay lets the head of decode's answer go to the client, and what was held behind it.
func (a *attempt) relay(now time.Time) {
	a.phase = mainStreaming
	a.answer.relayed = now
	e := effect{op: opRelay, of: wire.ResponseHeaders}
	if a.plan.explain != "" {
		e.set = append(e.set, wire.Header{Name: prefill.HeaderDecision, Value: a.plan.explain})
	}
	a.emit(e)
	for _, p := range a.answer.release() {
		a.emit(a.answer.pass(p))
	}
	a.maybeLeave()
}

// maybeLeave ends our part in a full-duplex stream once nothing more can
// depend on it: from then on neither our crash nor our restart can harm the
// answer. A buffered stream stays: it survives us anyway, and its end is the
// exact moment to release decode. So does one of several replicas: Envoy sends its
// access log to one of them, and not to the one that has left (seen on 1.40).
func (a *attempt) maybeLeave() {
	draining := a.link == linkDraining
	if a.phase != mainStreaming || !a.req.fullDuplex && !draining || a.far.awaited() || a.far.state == legFailed {
		return
	}
	if a.answer.throughUs() || a.way.plain || a.rules.replicas && !draining {
		return // pieces on their way to us would be lost; or nobody else tells us how it ends
	}
	a.phase = mainLeft
	a.emit(effect{op: opLeave})
	if a.logged.kind != 0 { // it broke off before we had let its headers pass
		a.conclude(a.loggedAt, a.logged.seen)
	}
}

// cut ends an answer whose first bytes have gone to the client: with an error event
// where one can be written, else by a reset.
func (a *attempt) cut(f *failure) {
	a.finish(blame.Cut, f)
	a.phase = mainRejected
	a.releaseDecode()
	if a.answer.carriage != asEvents {
		a.emit(effect{op: opImmediate, imm: a.immediate(f, false)})
		return
	}
	a.emit(effect{op: opContinue, of: wire.ResponseBody, body: a.answer.cutWith(f), endOfStream: true})
	a.emit(effect{op: opLeave})
}

// reject answers the client, or asks Envoy for a fresh attempt when retry is
// wished and one is left.
func (a *attempt) reject(f *failure, retry bool) {
	retry = retry && a.mayRetry(f)
	a.giveUp()
	if retry {
		a.finish(blame.Retried, f)
	} else {
		a.finish(f.outcome(), f)
	}
	a.releaseDecode() // before the answer, which may bring the client back at once
	if a.link != linkOver {
		a.emit(effect{op: opImmediate, imm: a.immediate(f, retry)})
	}
}

// immediate is a refusal in the words of whoever asks.
func (a *attempt) immediate(f *failure, retry bool) *wire.Immediate {
	im := immediateOf(f, retry)
	if a.way.gateway && a.rules.reasonHeader != "" && !retry {
		reason := dropReason(f)
		if reason != "" {
			im.Headers = append(im.Headers, wire.Header{Name: a.rules.reasonHeader, Value: reason})
		}
	}
	return im
}

// giveUp lets go of the request: decode will not answer it.
func (a *attempt) giveUp() {
	a.phase = mainRejected
	a.timers.stop(timerAnswer, timerProbe) // nobody waits any more
	for _, p := range a.answer.release() {
		a.rules.buffers.Return(p.body)
	}
	a.req.pieces.drop(a.rules.buffers)
	a.collect()
	if !a.handover.asked && !a.handover.unsure() {
		a.req.body = nil
	}
}

// collect has KV taken that no decode has been told of, so that it is freed.
func (a *attempt) collect() {
	e, ok := a.handover.collect(&a.req, a.plan, a.far.well)
	if ok {
		a.emit(e)
	}
}

// taken forgets the hand-off: decode has seen it, so the KV is its engine's
// business. It frees what it does not fetch; a second decode that came for the
// same KV would read blocks that are another request's by then.
func (a *attempt) taken() {
	a.handover.giveUp()
	a.handover.answer = nil
	a.req.forget(a.rules)
}

// finish tells how the attempt has ended, once.
func (a *attempt) finish(o outcome, f *failure) {
	if a.finished {
		return
	}
	a.finished = true
	a.emit(effect{op: opFinish, outcome: o, fail: f})
}

// conclude ends an attempt whose answer had begun. What its head said was charged
// then.
func (a *attempt) conclude(now time.Time, s blame.Sight) {
	a.timers.stop(timerLog)
	if s == blame.Empty && a.req.passes() {
		s = blame.Served // not everything that passes has a body
	}
	head := a.answer.sightOfStart(a.req.passes())
	switch {
	case head == blame.Served:
		a.charge(now, blame.Of(a.decodeLeg(), s), a.plan.decode, false)
		if s == blame.Served {
			a.served()
		}
	case s == blame.Served || s == blame.Empty:
		s = head
	}
	out := blame.Of(a.decodeLeg(), s).Outcome
	if out == blame.Retried && a.req.attempt >= a.rules.maxAttempts {
		out = blame.Failed
	}
	a.finish(out, failureOfEnd(s, a.answer.code()))
	a.endMain(now)
}

// endMain releases decode and either waits for the prefill leg or is done. A
// prefill whose KV a decode must take keeps decode booked.
func (a *attempt) endMain(now time.Time) {
	a.collect()
	if !a.far.runs() || !a.plan.kind.PrefillFirst() {
		a.releaseDecode()
	}
	if !a.far.runs() && a.handover.kv != kvTaking {
		a.done()
		return
	}
	a.phase = mainLingering
	if a.far.runs() {
		a.timers.set(timerOrphan, now.Add(a.rules.orphanGrace))
	}
}

func (a *attempt) done() {
	a.releaseDecode()
	a.phase = mainDone
	if !a.handover.asked {
		a.req.body = nil
	}
	a.emit(effect{op: opForget})
}

// releaseDecode gives decode's booking back, unless a collecting leg needs it.
func (a *attempt) releaseDecode() {
	if a.decodeHeld && a.handover.kv != kvTaking {
		a.decodeHeld = false
		a.emit(effect{op: opReleaseDecode})
	}
}

func (a *attempt) releasePrefill() {
	if a.prefillHeld {
		a.prefillHeld = false
		a.emit(effect{op: opReleasePrefill})
	}
}

// extension is how long Envoy is to wait for a reply that comes at a deadline, left
// from now. A filter that fails open lets the answer pass when its time is over, so a
// plugin that is late at the deadline has as long as it has for any message.
func extension(left time.Duration) time.Duration {
	return min(left+messageTimeout, maxExtension)
}

const (
	messageTimeout = 5 * time.Second // message_timeout of the shipped configurations
	maxExtension   = time.Hour       // the most that Envoy accepts (max_message_timeout)
)

// deadlineSlack lets Envoy's own timer, set to the deadline, go first: ours is
// for the phases in which Envoy has none.
const deadlineSlack = 250 * time.Millisecond
