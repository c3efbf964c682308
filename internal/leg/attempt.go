package leg

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// attempt is what one attempt's main leg knows, and how the attempt goes on and ends. The
// layers above, pairing and Main, take the events and call the methods here; nothing here
// calls them.
type attempt struct {
	rules *Rules
	way   Way
	phase mainPhase
	link  link

	req    Request
	answer Answer

	plan     *Plan // nil: nothing was picked
	pickedAt time.Time
	instead  *Failure // the failure of a pair in whose place one worker is to serve; nil: there was none
	far      farLeg
	handover handover
	timers   timers
	charges  charges

	booked   bookings
	finished bool // OpFinish was returned

	waitsSince time.Time // since when the request has waited for a worker; zero: it has not
	heldSince  time.Time // since when the head of decode's answer waits for prefill; zero: it has not

	met      string // what decode's answer has met, if more than its status is known
	logged   Event  // EventLogged, if it came before the stream's end; else Kind is 0
	loggedAt time.Time
	logBroke bool // a stream of the access log has broken off since the pick: the answer's end may have been lost with it

	out []Effect // reused between steps
}

// bookings are the reservations that the attempt still has to release.
type bookings uint8

const (
	ofDecode bookings = 1 << iota
	ofPrefill
)

// link is the state of the stream to Envoy.
type link uint8

const (
	linkUp       link = iota
	linkDraining      // the process is about to end
	linkOver          // the stream has ended: nothing can be sent
)

// farLeg is the prefill leg, as the attempt sees it.
type farLeg struct {
	state State
	well  bool // the leg was well; stays true after its end

	cached  int64 // of the prompt's tokens, those that prefill had cached
	counted bool  // cached is known
}

// awaited reports whether the leg was asked for, and it is not known yet whether it is
// well.
func (l farLeg) awaited() bool { return l.state == Dispatched || l.state == Started }

// runs reports whether something of the leg may still run.
func (l farLeg) runs() bool { return l.state != None && l.state != Ended }

func (a *attempt) emit(e Effect) {
	if a.out == nil {
		a.out = make([]Effect, 0, 4)
	}
	a.out = append(a.out, e)
}

// awaitsAnswer reports whether workers have the request, and nothing of the answer has
// gone to the client.
func (a *attempt) awaitsAnswer() bool {
	return a.phase == mainPrefilling || a.phase == mainRouted || a.phase == mainHolding
}

// prefillLeg returns which leg the prefill worker serves.
func (a *attempt) prefillLeg() blame.Leg {
	if a.plan.Kind.PrefillFirst() {
		return blame.First
	}
	return blame.Mirrored
}

// decodeLeg returns which leg the worker that answers serves.
func (a *attempt) decodeLeg() blame.Leg {
	if a.plan.Disaggregated {
		return blame.Decode
	}
	return blame.Alone
}

// unfetched returns the sight to charge for s. An error or an empty answer from decode of
// a pair may be the hand-off's fault: a decode that cannot reach prefill answers so,
// while prefill still waits for it.
func (a *attempt) unfetched(s blame.Sight) blame.Sight {
	if a.plan.Disaggregated && (s == blame.Errored || s == blame.Empty) {
		return blame.Unfetched
	}
	return s
}

// asksAgain reports whether another attempt may follow: the limit is not reached, and the
// data plane makes fresh attempts.
func (a *attempt) asksAgain() bool { return a.req.Attempt < a.rules.MaxAttempts && !a.way.Plain() }

// mayRetry reports whether a fresh attempt is allowed and makes sense. It makes none if
// the request names the failed worker: the attempt would meet that worker again.
func (a *attempt) mayRetry(f *Failure) bool {
	if !f.Fresh || !a.asksAgain() {
		return false
	}
	if a.plan == nil || a.way.Repick {
		return true
	}
	if f.OfPrefill {
		return !a.plan.PrefillNamed
	}
	return !a.plan.DecodeNamed
}

// decodeFailed charges decode with s, and asks for a fresh attempt if that may do better.
// It returns false if it has not asked: the caller then answers with f, which is another one
// if the request has lost as many workers as it may.
func (a *attempt) decodeFailed(now time.Time, s blame.Sight, odd bool, f *Failure) bool {
	row := blame.Of(a.decodeLeg(), s)
	f.Fresh = mayDoBetter(row, a.plan, a.plan.Spare.Decode, odd)
	if row.Loses() {
		a.plan.Lost++
		if a.plan.Lost >= blame.MostLost {
			said := f.Said
			*f = FailDecodesLost
			f.Said = said
		}
	}
	retry := a.mayRetry(f)
	a.charge(now, row, a.plan.Decode, retry)
	if retry {
		a.reject(f, true)
	}
	return retry
}

// charge charges a worker with what was seen of its leg. If a fresh attempt follows, a
// charge that needs a mate's proof waits in Plan.Suspects; any other charge is made at
// once.
func (a *attempt) charge(now time.Time, row blame.Row, at worker.Rank, retry bool) {
	a.charges.saw(row.Leg, row.Sight)
	a.charges.shun(row, at, a.plan)
	if row.Pair && a.plan.bySidecar() { // the sidecar's error may be decode's or prefill's: only a probe can tell
		a.suspect(a.plan.Prefill, true)
		a.chargeWith(at, blame.None, row.Charge)
		return
	}
	if row.Suspect {
		a.suspect(at, row.Leg == blame.Mirrored && row.Sight == blame.Overdue)
	}
	if retry {
		var c blame.Charge
		a.plan.Suspects, c = a.plan.Suspects.And(suspicionOf(row, at, a.plan, now.Sub(a.pickedAt)))
		a.chargeWith(at, c, row.Charge)
		return
	}
	v, _ := a.plan.Suspects.Last(at, row.Charge)
	a.chargeWith(at, v.Charge, row.Charge)
}

func (a *attempt) chargeWith(at worker.Rank, c, seen blame.Charge) {
	c = chargeOf(c, seen)
	if c != blame.None {
		a.emit(Effect{Op: OpCharge, Rank: at, Charge: c})
	}
}

// suspect asks for a probe of a worker. With the flag both it asks for a probe of decode,
// too: the two workers of a mirrored pair wait for each other, so either may be the
// silent one.
func (a *attempt) suspect(at worker.Rank, both bool) {
	a.emit(Effect{Op: OpSuspect, Rank: at})
	if both {
		a.emit(Effect{Op: OpSuspect, Rank: a.plan.Decode})
	}
}

// waitOn notes that a leg is over its limit, and that the request waits for it on. Silence
// charges nobody: the request itself may take long, the worker may be busy, and no attempt
// would end sooner for it. A worker whose page is silent, too, is doubted (internal/health).
func (a *attempt) waitOn(row blame.Row, at worker.Rank) {
	a.charges.saw(row.Leg, row.Sight)
	a.suspect(at, row.Leg == blame.Mirrored)
	if a.plan.bySidecar() { // either worker may be the silent one
		a.suspect(a.plan.Prefill, false)
	}
}

// served charges the suspects of earlier attempts, since this attempt has served the
// request to its end. A head alone proves nothing: a worker that sends no body, or breaks
// off, also sends a head.
func (a *attempt) served() {
	by := []worker.Rank{a.plan.Decode}
	if a.plan.Disaggregated {
		by = append(by, a.plan.Prefill)
		a.emit(Effect{Op: OpPairServed, Rank: a.plan.Prefill, Other: a.plan.Decode})
		if a.plan.bySidecar() { // nothing else tells that prefill is well
			a.emit(Effect{Op: OpCharge, Rank: a.plan.Prefill, Charge: blame.Credit})
		}
	}
	for _, v := range a.plan.Suspects.Served(a.answer.Relayed.Sub(a.pickedAt), by...) {
		if v.Pair != nil {
			a.emit(Effect{Op: OpPairFailed, Rank: v.Pair[0], Other: v.Pair[1]})
		} else {
			a.emit(Effect{Op: OpCharge, Rank: v.Worker, Charge: v.Charge, Proven: true})
		}
	}
	a.plan.Suspects = nil
}

// awaitAnswer starts the time in which decode has to answer: decode has all that it
// needs.
func (a *attempt) awaitAnswer(now time.Time) {
	if a.plan.AnswerWithin > 0 {
		a.timers.set(timerAnswer, now.Add(a.plan.AnswerWithin))
		a.timers.set(timerProbe, now.Add(suspectAfter(a.plan.AnswerWithin)))
	}
}

// route sends the request on to decode, and gives body away. The flag changed says that
// body is not what the client sent.
func (a *attempt) route(now time.Time, body []byte, changed bool) {
	a.phase = mainRouted
	a.timers.stop(timerExtend)
	if !a.far.awaited() {
		a.awaitAnswer(now)
	}
	e := Effect{Op: OpRoute, Of: wire.RequestBody, Trailers: a.req.trailers, Set: a.routeHeaders(now), Token: a.plan.AnswerToken, NewRoute: a.plan.Looks}
	e.Remove = a.req.leftover(e.Set, a.way)
	body, named := nameResponse(body, a.plan, &a.req)
	if a.plan.Kind.PrefillFirst() && a.handover.unsure() {
		e.Until = a.rules.lastMoment(a.plan)
	}
	switch {
	case changed || named:
		e.Body = body
		e.Set = append(e.Set, wire.Header{Name: "content-length", Value: strconv.Itoa(len(body))})
	case a.req.fullDuplex:
		e.Body = body
	default:
		a.rules.Buffers.Return(body)
	}
	a.emit(e)
}

// pass sends on a request that has no body.
func (a *attempt) pass(now time.Time) {
	a.phase = mainRouted
	e := Effect{Op: OpRouteHeaders, Set: a.routeHeaders(now)}
	e.Remove = a.req.leftover(e.Set, a.way)
	a.emit(e)
}

// routeHeaders returns the headers that the request gets for its worker
// (docs/behaviour.md#injected).
func (a *attempt) routeHeaders(now time.Time) []wire.Header {
	p, names := a.plan, &a.rules.Names
	set := make([]wire.Header, 0, 20)
	all := func(keys []string, v string) { set = appendAll(set, keys, v) }
	set = append(set, wire.Header{Name: prefill.HeaderDestination, Value: p.DecodeAddr})
	if !a.way.Plain() { // a plain gateway's Envoy lets nobody set its headers; there the plugin keeps the time-out
		left := a.req.Deadline.Sub(now)
		if a.answer.carriage >= inDuplex { // the plugin itself ends such an answer, with an error event
			left += 2 * deadlineSlack
		}
		set = append(set, wire.Header{Name: "x-envoy-upstream-rq-timeout-ms", Value: strconv.FormatInt(max(left.Milliseconds(), 1), 10)})
	}
	set = append(set, wire.Header{Name: prefill.HeaderAttempt, Value: strconv.FormatUint(p.Nonce, 10)})
	if a.req.unnamed {
		set = append(set, wire.Header{Name: "x-request-id", Value: a.req.Headers.RequestID})
	}
	if !p.Several { // of several endpoints the proxy chooses the one
		all(names.WorkerID, p.Decode.ID.String())
		all(names.DPRank, strconv.FormatUint(uint64(p.Decode.DPRank), 10))
	}
	if p.DecodeDPSize > 1 {
		all([]string{handoff.RankHeader}, strconv.FormatUint(uint64(p.Decode.DPRank), 10))
	}
	if p.Traceparent != "" {
		set = append(set, wire.Header{Name: "traceparent", Value: p.Traceparent})
	}
	if p.Looks {
		set = append(set, wire.Header{Name: prefill.HeaderFirstToken, Value: "1"})
	}
	switch {
	case !p.Disaggregated:
		return set
	case p.bySidecar():
		set = append(set, wire.Header{Name: prefill.HeaderPrefiller, Value: p.PrefillAddr})
	case !p.sent():
		set = append(set, wire.Header{Name: prefill.HeaderPrefillCluster, Value: prefillCluster}, wire.Header{Name: prefill.HeaderLeg, Value: p.Token},
			wire.Header{Name: prefill.HeaderPrefillEndpoint, Value: p.PrefillAddr})
	}
	all(names.PrefillID, p.Prefill.ID.String())
	all(names.PrefillDPRank, strconv.FormatUint(uint64(p.Prefill.DPRank), 10))
	if p.bySidecar() || p.Kind.PrefillFirst() {
		return set
	}
	return p.appendMeeting(set, names)
}

// holds reports whether the head of decode's answer has to wait: until prefill is well,
// or until the first token.
func (a *attempt) holds() bool {
	if a.answer.unserved != "" {
		return false // the answer goes on, though it does not serve the request
	}
	return a.rules.Hold && a.far.awaited() || a.answer.reading && a.rules.HoldFirst && !a.way.Plain()
}

// relay lets the head of decode's answer go to the client, and after it the held pieces.
func (a *attempt) relay(now time.Time) {
	a.phase = mainStreaming
	a.timers.stop(timerExtend)
	a.answer.Relayed = now
	e := Effect{Op: OpRelay, Of: wire.ResponseHeaders}
	if !a.heldSince.IsZero() {
		e.Holds, e.Wait = true, now.Sub(a.heldSince)
	}
	if a.plan.Explain != "" {
		e.Set = append(e.Set, wire.Header{Name: prefill.HeaderDecision, Value: a.plan.Explain})
	}
	if a.rules.CachedHeader && a.far.counted {
		e.Set = append(e.Set, wire.Header{Name: prefill.HeaderCachedTokens, Value: strconv.FormatInt(a.far.cached, 10)})
	}
	if a.answer.streams && a.ServesSoFar() && !a.answer.throughUs() {
		e.Gap = a.plan.GapWithin
	}
	a.emit(e)
	for _, p := range a.answer.release() {
		a.emit(a.answer.pass(p))
	}
	awaitPiece(a, now)
	if a.ServesSoFar() && !a.answer.reading {
		a.req.kept = nil
	}
	a.maybeLeave(now)
}

// maybeLeave ends the plugin's part in the stream once nothing more depends on it. From
// then on neither a crash nor a restart of the plugin can harm the answer. A buffered
// stream of a filter that fails open is left only for a drain: Envoy continues it without
// the plugin in any case, and its end is the exact moment to release decode. With several replicas, too, a stream is
// left only for a drain: Envoy sends its access log to one of them, and not to the one
// that has left (seen on Envoy 1.40).
func (a *attempt) maybeLeave(now time.Time) {
	draining := a.link == linkDraining
	if a.phase != mainStreaming || !a.req.fullDuplex && !a.way.Sends && !draining || a.far.awaited() || a.far.state == Failed {
		return
	}
	if a.answer.throughUs() || a.way.Plain() || a.rules.Replicas && !draining {
		return // pieces on their way here would be lost, or no access log would tell how the answer ends
	}
	a.phase = mainLeft
	if a.logBroke { // before the answer's head was read here, as by a process that stood still
		a.timers.logBroken(now)
	}
	a.emit(Effect{Op: OpLeave})
	if a.logged.Kind != 0 { // the answer broke off before its headers were relayed
		a.conclude(a.loggedAt, a.logged.Seen)
	}
}

// cut ends an answer whose first bytes have gone to the client: with an error event if
// the answer is an event stream that comes through the plugin, else by a reset.
func (a *attempt) cut(f *Failure) {
	a.finish(blame.Cut, f)
	a.phase = mainRejected
	a.releaseDecode()
	if a.answer.carriage != asEvents {
		a.emit(Effect{Op: OpImmediate, Imm: a.immediate(f, false)})
		return
	}
	a.emit(Effect{Op: OpContinue, Of: wire.ResponseBody, Body: a.answer.cutWith(f, a.req.Headers.Path), EndOfStream: true})
	a.emit(Effect{Op: OpLeave})
}

// reject answers the client with f. With the flag retry, the answer asks Envoy for a
// fresh attempt if mayRetry allows it.
func (a *attempt) reject(f *Failure, retry bool) {
	retry = retry && a.mayRetry(f)
	a.giveUp()
	if retry {
		a.finish(blame.Retried, f)
	} else {
		a.finish(f.outcome(), f)
	}
	a.releaseDecode() // before the answer: the client may come back at once
	if a.link != linkOver {
		a.emit(Effect{Op: OpImmediate, Imm: a.immediate(f, retry)})
	}
}

// immediate returns the answer that tells f. A gateway also gets a header with the reason
// ([Rules]).
func (a *attempt) immediate(f *Failure, retry bool) *wire.Immediate {
	im := ImmediateOf(f, a.req.Headers.Path, retry)
	if a.plan != nil && a.plan.Looks { // else the stream of the first events takes this for a worker's error
		im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderLocalReply, Value: "plugin"})
	}
	if a.way.Gateway() && a.rules.ReasonHeader != "" && !retry {
		reason := dropReason(f)
		if reason != "" {
			im.Headers = append(im.Headers, wire.Header{Name: a.rules.ReasonHeader, Value: reason})
		}
	}
	return im
}

// giveUp drops what is kept of the request and of decode's answer, since decode will not
// answer the request.
func (a *attempt) giveUp() {
	a.phase = mainRejected
	a.timers.stop(timerAnswer, timerProbe) // the request waits for decode no longer
	for _, p := range a.answer.release() {
		a.rules.Buffers.Return(p.body)
	}
	a.req.pieces.drop(a.rules.Buffers)
	a.collect()
	if a.handover.asked == askedNothing && !a.handover.unsure() {
		a.req.Body = nil
	}
}

// collect asks for a collecting leg if prefill holds KV of which no decode knows, so that
// the KV is freed.
func (a *attempt) collect() {
	e, ok := a.handover.collect(a.rules, &a.req, a.plan, a.far.well)
	if ok {
		a.emit(e)
	}
}

// taken forgets the hand-off, since decode has seen it: decode's engine sees to the KV,
// and frees what it does not fetch. A second decode that came for the same KV would read
// blocks that belong to another request by then.
func (a *attempt) taken() {
	a.handover.giveUp()
	a.handover.answer = nil
	a.req.forget(a.rules)
}

// finish tells how the attempt has ended. Only the first call counts.
func (a *attempt) finish(o Outcome, f *Failure) {
	if a.finished {
		return
	}
	a.finished = true
	a.emit(Effect{Op: OpFinish, Outcome: o, Fail: f})
}

// conclude ends an attempt whose answer had begun; s says how the answer ended. A head
// that does not serve the request was charged when it came.
func (a *attempt) conclude(now time.Time, s blame.Sight) {
	a.timers.stop(timerLog)
	if s == blame.Empty && a.req.Passes() {
		s = blame.Served // an answer on a path that is not read here need not have a body
	}
	head := a.answer.sightOfStart(a.req.Passes())
	if s == blame.Served && a.answer.failed {
		s = blame.Failing
	}
	switch {
	case head == blame.Served:
		a.charge(now, blame.Of(a.decodeLeg(), s), a.plan.Decode, false)
		if s == blame.Served {
			a.served()
		}
	case s == blame.Served || s == blame.Empty:
		s = head
	}
	row := blame.Of(a.decodeLeg(), s)
	if row.Loses() {
		a.plan.Lost++
	}
	out := row.Outcome
	if out == blame.Retried && a.req.Attempt >= a.rules.MaxAttempts {
		out = blame.Failed
	}
	f := failureOfEnd(s, a.answer.Code())
	if f != nil {
		f.Said = a.answer.said(&a.req, a.met)
	}
	a.finish(out, f)
	a.endMain(now)
}

// endMain releases decode, and waits for the prefill leg if that still runs. If prefill
// goes first and its leg still runs, decode stays booked: it may have to collect the KV.
func (a *attempt) endMain(now time.Time) {
	a.collect()
	if !a.far.runs() || !a.plan.Kind.PrefillFirst() {
		a.releaseDecode()
	}
	if !a.far.runs() && a.handover.kv != kvTaking {
		a.done()
		return
	}
	a.phase = mainLingering
	if a.far.runs() {
		a.timers.set(timerOrphan, now.Add(a.rules.OrphanGrace))
	}
}

func (a *attempt) done() {
	a.releaseDecode()
	a.phase = mainDone
	if a.handover.asked == askedNothing {
		a.req.Body = nil
	}
	a.emit(Effect{Op: OpForget})
}

// releaseDecode releases decode's reservation, except while a collecting leg needs it. A
// prefill leg that decode's sidecar sends ends with decode's at the latest.
func (a *attempt) releaseDecode() {
	if a.plan.bySidecar() {
		a.releasePrefill()
	}
	if a.booked&ofDecode != 0 && a.handover.kv != kvTaking {
		a.booked &^= ofDecode
		a.emit(Effect{Op: OpReleaseDecode})
	}
}

func (a *attempt) releasePrefill() {
	if a.booked&ofPrefill != 0 {
		a.booked &^= ofPrefill
		a.emit(Effect{Op: OpReleasePrefill})
	}
}

// Extension returns how long Envoy is to wait for a reply that is due at a deadline; left
// is the time until then. A filter that fails open lets the answer pass when the wait is
// over, so a plugin that is late gets MessageTimeout more, as for any other message.
func Extension(left time.Duration) time.Duration {
	return min(left+MessageTimeout, maxExtension)
}

// How long Envoy waits for a reply.
const (
	MessageTimeout = 5 * time.Second // message_timeout of the shipped configurations
	maxExtension   = time.Hour       // the longest wait that Envoy accepts (max_message_timeout)
)

// deadlineSlack is how long after the deadline the machine itself ends a request. Envoy's
// timer, which is set to the deadline, goes off before that; the machine's is for the
// phases in which Envoy has none.
const deadlineSlack = 250 * time.Millisecond
