package extproc

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
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
	e := effect{op: opRoute, of: wire.RequestBody, trailers: m.trailers, set: m.routeHeaders(now), token: m.plan.answerToken, newRoute: m.plan.looks}
	e.remove = m.leftover(e.set)
	switch {
	case changed:
		e.body = body
		e.set = append(e.set, wire.Header{Name: "content-length", Value: strconv.Itoa(len(body))})
	case m.fullDuplex:
		e.body = body
	default:
		m.rules.buffers.Return(body)
	}
	m.emit(e)
}

// leftover lists the headers of others that name workers and that set does not
// replace: behind us only what was decided is told.
func (m *mainLeg) leftover(set []wire.Header) []string {
	if len(m.hdr.Named) == 0 && (!m.way.plain || len(m.hdr.Strange) == 0) {
		return nil
	}
	var out []string
	known := make(map[string]bool, len(set)) // of thousands of headers, too
	for i := range set {
		known[set[i].Name] = true
	}
	drop := func(name string) {
		// A name that is no UTF-8 cannot be said in a message, and nobody reads it.
		if !known[name] && utf8.ValidString(name) {
			known[name] = true
			out = append(out, name)
		}
	}
	for _, h := range m.hdr.Named {
		drop(h.Name)
	}
	if m.way.plain { // nobody has stripped what clients may not set
		for _, name := range m.hdr.Strange {
			drop(name)
		}
	}
	return out
}

// routeHeaders lists what the request carries from here on
// (docs/behaviour.md#injected).
func (m *mainLeg) routeHeaders(now time.Time) []wire.Header {
	p, names := m.plan, &m.rules.names
	set := make([]wire.Header, 0, 20)
	all := func(keys []string, v string) {
		for _, k := range keys {
			set = append(set, wire.Header{Name: k, Value: v})
		}
	}
	set = append(set, wire.Header{Name: prefill.HeaderDestination, Value: p.decodeAddr})
	if !m.way.plain { // else Envoy lets nobody set its own headers, and the time-out is ours to keep
		left := m.deadline.Sub(now)
		if m.answer.duplex { // an answer that comes through us is ours to end, with an error event
			left += 2 * deadlineSlack
		}
		set = append(set, wire.Header{Name: "x-envoy-upstream-rq-timeout-ms", Value: strconv.FormatInt(max(left.Milliseconds(), 1), 10)})
	}
	set = append(set, wire.Header{Name: prefill.HeaderAttempt, Value: strconv.FormatUint(p.nonce, 10)})
	if m.named {
		set = append(set, wire.Header{Name: "x-request-id", Value: m.hdr.RequestID})
	}
	if len(p.others) == 0 { // else who gets it is the proxy's to find
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
		set = append(set, wire.Header{Name: prefill.HeaderPrefillCluster, Value: m.rules.prefillCluster}, wire.Header{Name: prefill.HeaderLeg, Value: p.token},
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

func (m *mainLeg) onRefused(f *failure) {
	switch {
	case m.closed:
		m.done()
	case m.phase == mainResolving:
		m.reject(f, m.way.repick && m.plan == nil || f.code == failNotReady.code)
	}
}

// onAnswered answers a question: nothing was booked and nothing runs.
func (m *mainLeg) onAnswered(im *wire.Immediate) {
	switch {
	case m.closed:
		m.done()
	case m.phase == mainResolving:
		m.phase, m.body = mainRejected, nil
		m.finish(outcomeAnswered, nil)
		m.emit(effect{op: opImmediate, imm: im})
	}
}
