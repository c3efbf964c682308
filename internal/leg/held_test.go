package leg

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// holding returns a main leg that holds its answer until prefill is well.
func holding() *Main {
	m := mainOf(testRules(), Way{})
	m.phase, m.plan, m.far.state, m.booked = mainHolding, &Plan{}, Started, ofDecode
	m.answer.carriage = inPieces
	return m
}

func opsOf(effects []Effect) (out []Op) {
	for i := range effects {
		out = append(out, effects[i].Op)
	}
	return out
}

// The bound counts the memory that held pieces take, which for small pieces is more than
// their bytes. A decode that writes more has got what it needs from prefill, so all of
// the answer goes to the client.
func TestAnAnswerThatWaitsTakesSoMuchMemoryAndNoMore(t *testing.T) {
	for _, size := range []int{1, 100 << 10} {
		m := holding()
		held, pieces := 0, 0
		for m.phase == mainHolding {
			require.Less(t, held, maxHeldAnswer+size+injectRoom+4096, "of %d bytes", pieces*size)
			b := m.rules.Buffers.Borrow(size + injectRoom)[:size]
			m.Step(testStart, &Event{Kind: EventResponseBody, Body: b})
			held += cap(b) + pieceCost
			pieces++
		}
		require.Greater(t, held, maxHeldAnswer, "not before it has to")
		require.Equal(t, mainStreaming, m.phase)
		ops := opsOf(m.out)
		require.Equal(t, OpRelay, ops[0])
		require.Len(t, ops, 1+pieces, "the pieces follow the headers, each once")
		require.Empty(t, m.answer.held)
		require.Zero(t, m.answer.heldBytes)

		m.Step(testStart, &Event{Kind: EventResponseBody, Body: m.rules.Buffers.Borrow(1)[:1]})
		require.Equal(t, []Op{OpContinue}, opsOf(m.out), "from now on nothing waits")
	}
}

// An answer's end counts once it has gone to the client, also if it was held before: in a
// body's last piece, or in trailers.
func TestAnAnswersEndThatHadToWaitIsSeen(t *testing.T) {
	for _, c := range []struct {
		last  []Event
		whole bool
	}{
		{[]Event{{Kind: EventResponseBody, Body: []byte("a")}}, false},
		{[]Event{{Kind: EventResponseBody, Body: []byte("a"), EndOfStream: true}}, true},
		{[]Event{{Kind: EventResponseBody, Body: []byte("a")}, {Kind: EventResponseTrailers}}, true},
	} {
		m := holding()
		for i := range c.last {
			m.Step(testStart, &c.last[i])
			require.False(t, m.answer.whole(), "it is not with the client yet")
		}
		m.Step(testStart, &Event{Kind: EventLeg, Leg: Report{State: Well}})
		require.Equal(t, mainStreaming, m.phase)
		require.Equal(t, c.whole, m.answer.whole())
		want := blame.Unfinished
		if c.whole {
			want = blame.Served
		}
		require.Equal(t, want, m.answer.end())
	}
}

// If Envoy is late to end an answer at its deadline, the machine ends it, and what was seen of
// the leg is the same.
func TestAnAnswerThatOutlastsItsDeadlineIsSeenToExpire(t *testing.T) {
	t.Parallel()
	m := holding()
	m.req.Deadline = testStart.Add(time.Second)
	m.Step(testStart, &Event{Kind: EventLeg, Leg: Report{State: Well}})
	require.Equal(t, mainStreaming, m.phase)
	at := m.WakeAt()
	require.True(t, at.After(m.req.Deadline), "Envoy comes first")
	m.Step(at, &Event{Kind: EventTimer})
	require.Equal(t, mainRejected, m.phase)
	require.Equal(t, []Sighting{{blame.Alone, blame.Expired}}, m.Sightings())
}
