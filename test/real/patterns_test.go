//go:build real

package real

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

var long = flag.Bool("long", false, "patterns 1 and 2 ten and five times")

// moments are when one side of a pair is killed, one a round and then again from the
// first. A point is one of a request; without one nothing runs.
func moments(engine string, side worker.Role) []*point {
	atSide := points(engine)[1]
	if side == worker.Decode {
		atSide = points(engine)[3]
	}
	answers := &point{what: "ten tokens have come", stream: true, events: 10}
	if engine == vllm && side == worker.Prefill {
		// Decode is told where the KV is, and cannot fetch it any more.
		unfetched := points(engine)[3]
		return []*point{&atSide, &unfetched, answers, nil}
	}
	return []*point{&atSide, answers, nil}
}

// TestPatterns: all workers of one side are killed while the other lives, and come back.
// Until then requests are refused at once, and none is ever served by decode alone.
func TestPatterns(t *testing.T) {
	for engine, names := range pairs {
		for _, side := range []worker.Role{worker.Decode, worker.Prefill} {
			what := map[worker.Role]string{worker.Decode: "Pattern 1: decode", worker.Prefill: "Pattern 2: prefill"}[side]
			t.Run(engine+" "+what, func(t *testing.T) {
				rounds := 2
				if *long {
					rounds = map[worker.Role]int{worker.Decode: 10, worker.Prefill: 5}[side]
				}
				x := &pattern{scene: newScene(t, "enforce_disagg: true\n"+patient, names[0], names[1]), side: side}
				require.Equal(t, http.StatusOK, x.ask().status)
				when := moments(engine, side)
				for round := range rounds {
					x.round(when[round%len(when)])
				}
				require.Zero(t, x.metric("baton_served_alone_total"))
				slices.Sort(x.seen)
				tellf(t, engine, what+" is killed and back", "%d rounds: %s", rounds, strings.Join(slices.Compact(x.seen), "; "))
				tellf(t, engine, what+", other requests", "refused meanwhile (the slowest took %s), then served apart; none by one worker alone, nothing is left",
					x.slowest.Round(10*time.Millisecond))
			})
		}
	}
}

// pattern is one side that is killed and comes back.
type pattern struct {
	*scene
	side    worker.Role
	n       int
	slowest time.Duration // that was refused
	seen    []string      // what became of those that it was killed under
}

func (x *pattern) body(tokens int) fields {
	x.n++
	return fields{"model": "tiny", "prompt": fmt.Sprint(x.t.Name(), x.n, words(uint64(x.n), 100)), "max_tokens": tokens, "ignore_eos": true}
}

func (x *pattern) ask() *answer { return x.scene.ask("/v1/completions", x.body(4)) }

// round kills the side and starts it again.
func (x *pattern) round(when *point) {
	x.t.Helper()
	e := x.of(x.side)
	if when == nil {
		require.NoError(x.t, e.Kill())
	} else {
		x.under(e, when)
	}
	x.await("the plugin to know that it is gone", func() bool {
		began := time.Now()
		a := x.ask()
		if took := time.Since(began); a.status == http.StatusServiceUnavailable {
			x.slowest = max(x.slowest, took)
		}
		return a.status == http.StatusServiceUnavailable && !strings.Contains(a.body, "_failed") && !strings.Contains(a.body, "unreachable")
	})
	require.NoError(x.t, e.Restart(context.Background()))
	x.await("a pair to serve again", func() bool { return x.ask().status == http.StatusOK })
	require.NotNil(x.t, x.last().Prefill, "apart")
	x.settled()
}

// under kills the side while it has a request, whose client gets an error or, where only
// prefill is gone, all of the answer.
func (x *pattern) under(e *Engine, when *point) {
	x.t.Helper()
	const tokens = 300
	r := x.sendTo(when, x.body(tokens))
	defer r.leave()
	require.NoError(x.t, e.Kill())
	if when.stopped != 0 && when.stopped != x.side {
		require.NoError(x.t, x.of(when.stopped).Resume())
	}
	if r.head == nil {
		a := <-r.over
		require.GreaterOrEqual(x.t, a.status, 500, "%s: %s", when.what, a.body)
		x.seen = append(x.seen, strings.TrimSpace(fmt.Sprintf("when %s: %d %s", when.what, a.status, x.last().Detail)))
		return
	}
	rest, err := io.ReadAll(r.rest)
	whole := err == nil && strings.Contains(string(rest), "data: [DONE]") && !strings.Contains(string(rest), `"error"`)
	require.Equal(x.t, x.side == worker.Prefill, whole, "%s: %v: the end of the stream: %.500s", when.what, err, rest[max(0, len(rest)-500):])
	how := "the stream ends with an error"
	if whole {
		how = "the stream goes on to its end"
	}
	x.seen = append(x.seen, fmt.Sprintf("when %s: %s", when.what, how))
}
