//go:build real

package real

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSGLangsHalvesThatFail: what one half does when the other is refused, leaves or dies,
// without Baton.
func TestSGLangsHalvesThatFail(t *testing.T) {
	s := newScene(t, "", "sglang-p1", "sglang-d1")
	p, d := s.engines[0], s.engines[1]
	room := rand.Uint64N(1 << 40)
	next := func() uint64 { room += 16; return room }
	within := func(d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), d)
	}

	r := next()
	ctx, leave := within(5 * time.Second)
	first := meet(ctx, p, p, r, fields{"max_tokens": 1})
	refused := <-meet(t.Context(), d, p, r, fields{"temperature": -3})
	require.Equal(t, http.StatusBadRequest, refused.status, refused.body)
	waits := <-first
	leave()
	require.ErrorIs(t, waits.err, context.DeadlineExceeded, "%d %s", waits.status, waits.body)
	s.quiet(p, d)
	tellf(t, sglang, "rendezvous: decode refuses", "400 at once; prefill's half waits on until its client goes, and nothing is left")

	r = next()
	ctx, leave = within(2 * time.Second)
	first = meet(t.Context(), p, p, r, fields{"max_tokens": 1})
	gone := <-meet(ctx, d, p, r, fields{"max_tokens": 3000, "ignore_eos": true})
	leave()
	require.ErrorIs(t, gone.err, context.DeadlineExceeded, "%d %s", gone.status, gone.body)
	served := <-first
	require.Equal(t, http.StatusOK, served.status, served.body)
	s.quiet(p, d)
	tellf(t, sglang, "rendezvous: decode's client leaves after the meeting", "prefill 200 after %s; decode ends, and nothing is left", served.took.Round(10*time.Millisecond))

	r = next()
	ctx, leave = within(5 * time.Second)
	both := []<-chan half{meet(ctx, p, p, r, fields{"max_tokens": 1, "n": 2}), meet(ctx, d, p, r, fields{"n": 2})}
	x, y := <-both[0], <-both[1]
	leave()
	s.quiet(p, d)
	tellf(t, sglang, "rendezvous: n = 2, a room", "prefill: %s; decode: %s", x.what(), y.what())
	r = next()
	ctx, leave = within(5 * time.Second)
	list := []string{words(r, 100), words(r+1, 120)}
	both = []<-chan half{meet(ctx, p, p, r, fields{"max_tokens": 1, "prompt": list}), meet(ctx, d, p, r, fields{"prompt": list})}
	x, y = <-both[0], <-both[1]
	leave()
	s.quiet(p, d)
	tellf(t, sglang, "rendezvous: a list of two prompts, a room", "prefill: %s; decode: %s", x.what(), y.what())

	r = next()
	ctx, leave = within(2 * time.Second)
	gone = <-meet(ctx, p, p, r, fields{"max_tokens": 1})
	leave()
	require.ErrorIs(t, gone.err, context.DeadlineExceeded, "%d %s", gone.status, gone.body)
	s.quiet(p)
	ctx, leave = within(5 * time.Second)
	x = <-meet(ctx, d, p, r, nil)
	leave()
	s.quiet(p, d)
	tellf(t, sglang, "rendezvous: prefill's client leaves, then decode's half comes", "decode: %s; nothing is left once its client has gone", x.what())

	// Two rooms at once: one that has met, and one of which prefill has not seen its half.
	met := next()
	first = meet(t.Context(), p, p, met, fields{"max_tokens": 1})
	goesOn := meet(t.Context(), d, p, met, fields{"max_tokens": 400, "ignore_eos": true})
	require.Equal(t, http.StatusOK, (<-first).status)
	s.await("decode to compute", func() bool { return inHand(d) > 0 })
	require.NoError(t, p.Pause())
	ctx, leave = within(30 * time.Second)
	waiting := meet(ctx, d, p, next(), nil)
	s.await("decode to wait", func() bool { return inHand(d) > 1 || len(goesOn) > 0 && inHand(d) > 0 })
	require.NoError(t, p.Kill())
	after := <-goesOn
	require.Equal(t, http.StatusOK, after.status, after.body)
	tellf(t, sglang, "rendezvous: prefill is killed after the meeting", "decode goes on to its end: 200 after %s", after.took.Round(10*time.Millisecond))
	x = <-waiting
	leave()
	s.quiet(d)
	tellf(t, sglang, "rendezvous: prefill is killed in the meeting", "decode: %s; nothing is left once its client has gone", x.what())
	ctx, leave = within(30 * time.Second)
	x = <-meet(ctx, d, p, next(), nil)
	leave()
	s.quiet(d)
	tellf(t, sglang, "rendezvous: prefill is dead before the meeting", "decode: %s; nothing is left once its client has gone", x.what())
	require.NoError(t, p.Restart(context.Background()))
}

// what says how a half ended.
func (h half) what() string {
	if h.err != nil {
		return "no answer in " + h.took.Round(time.Second).String()
	}
	return fmt.Sprint(h.status) + " after " + h.took.Round(10*time.Millisecond).String()
}
