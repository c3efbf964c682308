package extproc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// holding is a main leg whose answer waits for prefill to be well.
func holding() *mainLeg {
	m := mainOf(testRules(), way{})
	m.phase, m.plan, m.far.state, m.decodeHeld = mainHolding, &plan{}, legStarted, true
	m.answer.carriage = inPieces
	return m
}

func opsOf(effects []effect) (out []op) {
	for i := range effects {
		out = append(out, effects[i].op)
	}
	return out
}

// What waits is bounded by the memory it takes, which for small pieces is more than
// they say. A decode that writes more has what it needs of prefill: all of it goes
// to the client.
func TestAnAnswerThatWaitsTakesSoMuchMemoryAndNoMore(t *testing.T) {
	for _, size := range []int{1, 100 << 10} {
		m := holding()
		held, pieces := 0, 0
		for m.phase == mainHolding {
			require.Less(t, held, maxHeldAnswer+size+injectRoom+4096, "of %d bytes", pieces*size)
			b := m.rules.buffers.Borrow(size + injectRoom)[:size]
			m.step(testStart, &event{kind: evResponseBody, body: b})
			held += cap(b) + pieceCost
			pieces++
		}
		require.Greater(t, held, maxHeldAnswer, "not before it has to")
		require.Equal(t, mainStreaming, m.phase)
		ops := opsOf(m.out)
		require.Equal(t, opRelay, ops[0])
		require.Len(t, ops, 1+pieces, "the pieces follow the headers, each once")
		require.Empty(t, m.answer.held)
		require.Zero(t, m.answer.heldBytes)

		m.step(testStart, &event{kind: evResponseBody, body: m.rules.buffers.Borrow(1)[:1]})
		require.Equal(t, []op{opContinue}, opsOf(m.out), "from now on nothing waits")
	}
}

// The end of an answer is its end where it had to wait, too: in a body's last piece,
// or in trailers.
func TestAnAnswersEndThatHadToWaitIsSeen(t *testing.T) {
	for _, c := range []struct {
		last  []event
		whole bool
	}{
		{[]event{{kind: evResponseBody, body: []byte("a")}}, false},
		{[]event{{kind: evResponseBody, body: []byte("a"), endOfStream: true}}, true},
		{[]event{{kind: evResponseBody, body: []byte("a")}, {kind: evResponseTrailers}}, true},
	} {
		m := holding()
		for i := range c.last {
			m.step(testStart, &c.last[i])
			require.False(t, m.answer.whole(), "it is not with the client yet")
		}
		m.step(testStart, &event{kind: evLeg, leg: legReport{state: legWell}})
		require.Equal(t, mainStreaming, m.phase)
		require.Equal(t, c.whole, m.answer.whole())
		want := blame.Unfinished
		if c.whole {
			want = blame.Served
		}
		require.Equal(t, want, m.answer.end())
	}
}
