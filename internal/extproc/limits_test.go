package extproc

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// startLimit returns how long a plan of the replica allows the prefill leg to take until it
// starts.
func (r *replica) startLimit(body string) time.Duration {
	rules := testRules()
	rules.MaxBodyBytes = 1 << 30
	s := &mainStream{m: *withBody(rules, []byte(body))}
	p := &leg.Plan{Disaggregated: true, Kind: sglang.HandOff, Prefill: worker.Rank{ID: 1}, Decode: worker.Rank{ID: 2}}
	s.srv = r.srv
	(&asking{mainStream: s}).limit(p, worker.Key{Model: "m"}, []byte(body), time.Now())
	return p.StartWithin
}

// TestTheTimeToBeginGrowsWithTheBodyAndWithWhatIsInFlight: the body and the other attempts
// take time in Envoy before a leg can start.
func TestTheTimeToBeginGrowsWithTheBodyAndWithWhatIsInFlight(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(routetest.Many(1)), func(c *Config) { c.StartTimeout = time.Second })
	body := func(n int) string { return `{"model":"m","prompt":"` + strings.Repeat("x", n) + `"}` }
	small := r.startLimit(body(10))
	require.InDelta(t, 3*time.Second, small, float64(time.Millisecond), "nothing weighs, and nothing was learned")
	require.InDelta(t, 9*time.Second, r.startLimit(body(40<<20)), float64(time.Millisecond), "20 MiB pass in a second at least")

	for nonce := range uint64(500) {
		r.srv.attempts.add(nonce+1, &mainStream{})
	}
	require.Equal(t, small+1500*time.Millisecond, r.startLimit(body(10)))
	for nonce := range uint64(500) {
		r.srv.attempts.remove(nonce + 1)
	}
	require.Equal(t, small, r.startLimit(body(10)), "and shrinks again")

	begun := limited{subject: patience.Subject{Worker: 1, Pool: worker.Key{Model: "m"}, Leg: patience.Start}, allowance: time.Second, from: time.Now().Add(-5 * time.Second)}
	begun.learn(&r.srv.patience, time.Now())
	require.InDelta(t, 10*time.Second, r.startLimit(body(10)), float64(100*time.Millisecond), "twice what Envoy has lately taken")
}

// TestALegThatDoesNotBeginBlamesNobodyAndNeverEndsTheLastAttempt: such a leg has reached no
// worker.
func TestALegThatDoesNotBeginBlamesNobodyAndNeverEndsTheLastAttempt(t *testing.T) {
	for _, kind := range []handoff.Kind{sglang.HandOff, vllm.HandOff} {
		for attempt := 1; attempt <= 3; attempt++ {
			// A leg that the plugin sends waits for the same Envoy as a fresh one would.
			waits := attempt == 3 || kind.PrefillFirst()
			g := newPlayground(t, 1, kind, 2, 2)
			p := &leg.Plan{
				Disaggregated: true, Kind: kind, Token: "sealed", DecodeAddr: "a", Prefill: worker.Rank{ID: 100}, Decode: worker.Rank{ID: 200},
				StartWithin: 3 * time.Second, OverdueAfter: 6 * time.Second, AnswerWithin: 30 * time.Second,
			}
			p.Spare.Prefill, p.Spare.Decode = true, true
			x := &attemptPlay{g: g, m: mainOf(testRules(), leg.Way{}), plan: p, number: attempt}
			x.begin()
			x.wait(3*time.Second - 1)
			require.True(t, awaitsAnswer(x.m), "%s, attempt %d: it has its time", kind, attempt)
			x.wait(testRules().PrefillTimeout - 4*time.Second)
			require.Equal(t, waits, awaitsAnswer(x.m), "%s, attempt %d: the last one waits on", kind, attempt)
			require.Empty(t, learnedBy(x.m).Avoid, "nobody has failed")
			require.Zero(t, g.told, "nobody is charged or probed")
		}
	}
}

// TestALegThatDoesNotBeginBlamesWhomEnvoyNames: the worker is charged with a connection that
// it has refused, whether or not its leg had started.
func TestALegThatDoesNotBeginBlamesWhomEnvoyNames(t *testing.T) {
	for attempt := 1; attempt <= 3; attempt++ {
		g := newPlayground(t, 1, sglang.HandOff, 2, 2)
		p := &leg.Plan{
			Disaggregated: true, Kind: sglang.HandOff, Token: "sealed", DecodeAddr: "a", Prefill: worker.Rank{ID: 100}, Decode: worker.Rank{ID: 200},
			StartWithin: time.Second, OverdueAfter: 6 * time.Second, AnswerWithin: 30 * time.Second,
		}
		x := &attemptPlay{g: g, m: mainOf(testRules(), leg.Way{}), plan: p, number: attempt}
		x.begin()
		x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Failed, Reason: blame.Unconnected}})
		h, _ := g.tracker.Lookup(worker.Rank{ID: 100})
		require.True(t, h.State == health.Doubted && h.Suspected, "its probe condemns it: %+v", h)
		require.Equal(t, []worker.Rank{p.Prefill}, learnedBy(x.m).Avoid)
	}
}

func TestTheKindOfARequestIsReadFromItsMembers(t *testing.T) {
	for body, want := range map[string]patience.Kind{
		``:                                   patience.Plain,
		`"`:                                  patience.Plain,
		`{"prompt":"image_url","r":""}`:      patience.Media, // the quotes are those of the prompt: its limits are longer, and no more
		`{"prompt":"an \"image_url\"","r"}`:  patience.Plain,
		`{"prompt":"x image_url","json":1}`:  patience.Plain,
		`{"messages":[{"type":"image_url"}]`: patience.Media,
		`{"a":{"input_audio":1}}`:            patience.Media,
		`{"video_url":1}`:                    patience.Media,
		`{"audio_url":1}`:                    patience.Media,
		`{"image_data":1}`:                   patience.Media,
		`{"response_format":1}`:              patience.Guided,
		`{"guided_regex":1}`:                 patience.Guided,
		`{"structured_outputs":1}`:           patience.Guided,
		`{"a":{"json_schema":1}}`:            patience.Guided,
		`{"json_schema":1,"image_data":2}`:   patience.Media,
		`{"image_dat`:                        patience.Plain,
	} {
		require.Equal(t, want, kindOf([]byte(body)), body)
	}
}

// TestOneReadingFindsWhatOneForEachNameFinds plays random pieces of the names.
func TestOneReadingFindsWhatOneForEachNameFinds(t *testing.T) {
	contains := func(body []byte, names []string) bool {
		for _, name := range names {
			if bytes.Contains(body, []byte(`"`+name)) {
				return true
			}
		}
		return false
	}
	pieces := append(append([]string{`"`, `"`, `"`, `image_`, `x`, `"image_url"`, `\`}, mediaNames...), guidedNames...)
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[patience.Kind]int{}
	for range 20_000 {
		var body []byte
		for range rng.IntN(5) {
			body = append(body, pieces[rng.IntN(len(pieces))]...)
		}
		want := patience.Plain
		if contains(body, mediaNames) {
			want = patience.Media
		} else if contains(body, guidedNames) {
			want = patience.Guided
		}
		require.Equal(t, want, kindOf(body), "%s", body)
		seen[want]++
	}
	require.Len(t, seen, 3)
}
