package extproc

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
)

// route sends the request on to decode with a body, which is the stream's from
// here on; changed says that it is not as it came.
func (m *mainLeg) route(now time.Time, body []byte, changed bool) {
	m.phase = mainRouted
	if !m.waitsForPrefill() {
		m.awaitAnswer(now)
	}
	e := effect{op: opRoute, of: ofRequestBody, trailers: m.trailers, set: m.routeHeaders(now), token: m.plan.answerToken, newRoute: m.plan.looks}
	e.remove = m.leftover(e.set)
	switch {
	case changed:
		e.body = body
		e.set = append(e.set, kv{"content-length", strconv.Itoa(len(body))})
	case m.fullDuplex:
		e.body = body
	default:
		m.rules.buffers.put(body)
	}
	m.emit(e)
}

// leftover lists the headers of others that name workers and that set does not
// replace: behind us only what was decided is told.
func (m *mainLeg) leftover(set []kv) []string {
	if len(m.hdr.named) == 0 && (!m.way.plain || len(m.hdr.strange) == 0) {
		return nil
	}
	var out []string
	known := make(map[string]bool, len(set)) // of thousands of headers, too
	for i := range set {
		known[set[i].name] = true
	}
	drop := func(name string) {
		// A name that is no UTF-8 cannot be said in a message, and nobody reads it.
		if !known[name] && utf8.ValidString(name) {
			known[name] = true
			out = append(out, name)
		}
	}
	for _, h := range m.hdr.named {
		drop(h.Name)
	}
	if m.way.plain { // nobody has stripped what clients may not set
		for _, name := range m.hdr.strange {
			drop(name)
		}
	}
	return out
}

// routeHeaders lists what the request carries from here on
// (docs/behaviour.md#injected).
func (m *mainLeg) routeHeaders(now time.Time) []kv {
	p, names := m.plan, &m.rules.names
	set := make([]kv, 0, 20)
	all := func(keys []string, v string) {
		for _, k := range keys {
			set = append(set, kv{k, v})
		}
	}
	set = append(set, kv{prefill.HeaderDestination, p.decodeAddr})
	if !m.way.plain { // else Envoy lets nobody set its own headers, and the time-out is ours to keep
		left := m.deadline.Sub(now)
		if m.answer.duplex { // an answer that comes through us is ours to end, with an error event
			left += 2 * deadlineSlack
		}
		set = append(set, kv{"x-envoy-upstream-rq-timeout-ms", strconv.FormatInt(max(left.Milliseconds(), 1), 10)})
	}
	set = append(set, kv{prefill.HeaderAttempt, strconv.FormatUint(p.nonce, 10)})
	if m.named {
		set = append(set, kv{"x-request-id", m.hdr.requestID})
	}
	if len(p.others) == 0 { // else who gets it is the proxy's to find
		all(names.WorkerID, p.decode.ID.String())
		all(names.DPRank, strconv.FormatUint(uint64(p.decode.DPRank), 10))
	}
	if p.decodeDPSize > 1 {
		all([]string{handoff.SGLangDPRankHeader}, strconv.FormatUint(uint64(p.decode.DPRank), 10))
	}
	if p.traceparent != "" {
		set = append(set, kv{"traceparent", p.traceparent})
	}
	if p.looks {
		set = append(set, kv{prefill.HeaderFirstToken, "1"})
	}
	if !p.disaggregated {
		return set
	}
	if !p.kind.PrefillFirst() {
		set = append(set, kv{prefill.HeaderPrefillCluster, m.rules.prefillCluster}, kv{prefill.HeaderLeg, p.token},
			kv{prefill.HeaderPrefillEndpoint, p.prefillAddr})
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
		set = append(set, kv{handoff.SGLangOverrideHost, p.bootstrapHost},
			kv{handoff.SGLangOverridePort, port}, kv{handoff.SGLangOverrideRoom, room})
	}
	return set
}

func (m *mainLeg) onRefused(f *failure) {
	switch {
	case m.closed:
		m.done()
	case m.phase == mainResolving:
		m.reject(f, m.way.repick && m.plan == nil || f.code == failNotReady.code)
	}
}

// onAnswered answers a question: nothing was booked and nothing runs.
func (m *mainLeg) onAnswered(im *immediate) {
	switch {
	case m.closed:
		m.done()
	case m.phase == mainResolving:
		m.phase, m.body = mainRejected, nil
		m.finish(outcomeAnswered, nil)
		m.emit(effect{op: opImmediate, imm: im})
	}
}
