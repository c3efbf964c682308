package extproc

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
)

// TestAShapeIsHeldBackUntilOneIsServed: for a while nobody passes, then one at a time, and all once
// one was served.
func TestAShapeIsHeldBackUntilOneIsServed(t *testing.T) {
	l, now := newShapes(), time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	s, other := shapeOf("m", []string{"a", "b"}), shapeOf("n", []string{"a", "b"})
	passes := func(s shape) (passes, tries bool) {
		why, tries := l.ask(s, now)
		return why == nil, tries
	}
	require.True(t, l.lost(s, now))
	ok, _ := passes(other)
	require.True(t, ok, "another model")
	ok, _ = passes(shape{})
	require.True(t, ok, "a request without such members")

	why, tries := l.ask(s, now)
	require.False(t, tries)
	require.Equal(t, leg.FailHeldBack.Code, why.Code)
	require.Contains(t, why.Message, "the members a, b. Such requests are held back until 12:01:00 UTC, or")
	require.Equal(t, []string{"Two workers were lost under a request for model m with the members a, b, in no list of what its engine takes. " +
		"Such requests get held_back until 12:01:00 UTC, or until one is served: see the engines' logs"}, l.list(now))

	now = now.Add(shapeHeld)
	ok, tries = passes(s)
	require.True(t, ok && tries, "the first is tried")
	why, _ = l.ask(s, now)
	require.Contains(t, why.Message, "while one of them is tried", "and no second beside it")
	l.ended(s, now) // its client left
	ok, tries = passes(s)
	require.True(t, ok && tries)
	require.False(t, l.lost(s, now), "it has lost two more: not news for the log")
	ok, _ = passes(s)
	require.False(t, ok, "all wait once more")

	now = now.Add(shapeHeld)
	ok, tries = passes(s)
	require.True(t, ok && tries)
	require.True(t, l.served(s, now, now))
	for range 2 {
		ok, tries = passes(s)
		require.True(t, ok && !tries)
	}
	require.Empty(t, l.list(now))

	l.lost(s, now)
	require.False(t, l.served(s, now.Add(-time.Second), now), "its answer began before, and its end is known late")
	require.True(t, l.served(s, now.Add(time.Second), now), "one that was on its way is served")
	ok, tries = passes(s)
	require.True(t, ok && !tries)
	require.False(t, l.served(s, now, now))
}

// TestClientsDoNotDecideHowManyShapesAreKept.
func TestClientsDoNotDecideHowManyShapesAreKept(t *testing.T) {
	l, now := newShapes(), time.Now()
	require.False(t, l.lost(shape{}, now), "no shape is never held back")
	for i := range 2 * shapesMost {
		l.lost(shapeOf("m", []string{strconv.Itoa(i)}), now)
	}
	require.Equal(t, shapesMost, l.held.Len())
	why, _ := l.ask(shapeOf("m", []string{strconv.Itoa(2*shapesMost - 1)}), now)
	require.NotNil(t, why, "the oldest have gone")
	require.Empty(t, l.list(now.Add(shapeKept+1)))
}

// TestNoTextOfAClientIsShownAsAMember: a name may be anything.
func TestNoTextOfAClientIsShownAsAMember(t *testing.T) {
	require.Equal(t, "the members (no word), top_k.2", shapeOf("m", []string{"my secret is", "top_k.2"}).words())
}

// TestAnAnswerOfPrefillAloneIsNoTrialOfAShape: decode has not had the request, and another one may be tried.
func TestAnAnswerOfPrefillAloneIsNoTrialOfAShape(t *testing.T) {
	srv := &Server{shapes: newShapes()}
	now, held := time.Now(), shape{"m", "a"}
	srv.shapes.lost(held, now.Add(-shapeHeld))
	why, tries := srv.shapes.ask(held, now)
	require.True(t, why == nil && tries)
	s := &mainStream{stream: stream{srv: srv}}
	s.asked.shape, s.asked.tries = held, true
	shaped(s, now, &leg.Effect{Outcome: blame.OK})
	why, tries = srv.shapes.ask(held, now)
	require.True(t, why == nil && tries)
}
