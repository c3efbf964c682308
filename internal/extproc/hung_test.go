package extproc

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAHungWorkerIsTheOneThatIsSetAside: a worker that hangs answers probes and nothing else.
// At a rendezvous both legs of its pair are then silent. The other worker of the pair is not
// set aside for that. Where no mate of a hung worker serves, nobody is: each request would wait
// as long for another.
func TestAHungWorkerIsTheOneThatIsSetAside(t *testing.T) {
	for _, c := range []struct {
		name           string
		prefill, serve int
		hung           []worker.ID
		none           bool // nobody is set aside
	}{
		{"a lone decode, 1+1", 1, 1, []worker.ID{200}, true},
		{"a lone decode, 2+1", 2, 1, []worker.ID{200}, true},
		{"a lone decode, 4+1", 4, 1, []worker.ID{200}, true},
		{"both decodes, 2+2", 2, 2, []worker.ID{200, 201}, true},
		{"all decodes, 2+3", 2, 3, []worker.ID{200, 201, 202}, true},
		{"all decodes, 5+3", 5, 3, []worker.ID{200, 201, 202}, true},
		{"one decode, 2+2", 2, 2, []worker.ID{200}, false},
		{"one decode, 1+2", 1, 2, []worker.ID{201}, false},
		{"one prefill, 2+2", 2, 2, []worker.ID{100}, false},
		{"one prefill, 2+1", 2, 1, []worker.ID{101}, false},
		{"a lone prefill, 1+2", 1, 2, []worker.ID{100}, true},
		{"a lone prefill, 1+4", 1, 4, []worker.ID{100}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				g := newPlayground(t, seed, sglang.HandOff, c.prefill, c.serve)
				met := 0
				for range 60 {
					if len(g.aside) == 0 {
						met++
					}
					g.request(func(_ int, p, d worker.ID) act {
						if slices.Contains(c.hung, p) || slices.Contains(c.hung, d) {
							return actHang
						}
						return actServe
					})
				}
				if c.none {
					require.Empty(t, g.aside, "seed %d\n%s", seed, strings.Join(g.story, "\n"))
					continue
				}
				require.NotEmpty(t, g.aside, "seed %d: nobody was set aside\n%s", seed, strings.Join(g.story, "\n"))
				for id := range g.aside {
					require.Contains(t, c.hung, id, "seed %d\n%s", seed, strings.Join(g.story, "\n"))
				}
				require.LessOrEqual(t, met, 15, "seed %d: requests until it was", seed)
			}
		})
	}
}

// TestTheFirstRequestOfALifeFindsAStoppedPrefillInTime: nothing was learned of the pool yet,
// and a stopped prefill worker takes connections and answers nothing. With the plugin's
// defaults the request goes to another worker within three seconds.
func TestTheFirstRequestOfALifeFindsAStoppedPrefillInTime(t *testing.T) {
	for name, kind := range map[string]handoff.Kind{"mirrored": sglang.HandOff, "first": vllm.HandOff} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := Defaults
				gone := make(chan worker.ID, 1)
				tracker := health.New(health.Config{
					Client: &http.Client{Transport: stoppedWorker("10.0.1.1:80")},
					Hooks: health.Hooks{Transition: func(x health.Transition) {
						if x.Mute() {
							gone <- x.Rank.ID
						}
					}},
				})
				ws := routetest.Workers()[:2]
				ws[0].Role, ws[1].Role = worker.Prefill, worker.Prefill
				var err error
				ws[0].Endpoint, err = worker.ParseEndpoint("10.0.1.1:80")
				require.NoError(t, err)
				snap, err := worker.NewSnapshot(1, ws)
				require.NoError(t, err)
				tracker.Update(snap, time.Now())
				go func() { _ = tracker.Run(t.Context()) }()

				var nothing patience.Limits
				start := time.Now()
				p := &leg.Plan{
					Disaggregated: true, Kind: kind, Token: "sealed", DecodeAddr: "a", Prefill: worker.Rank{ID: ws[0].ID}, Decode: worker.Rank{ID: 9},
					StartWithin: cfg.StartTimeout, AnswerWithin: 30 * time.Second,
					OverdueAfter: nothing.Limit(patience.Subject{Worker: ws[0].ID}, cfg.overdueAfter(100)),
				}
				p.Spare.Prefill = true
				m := mainOf(testRules(), leg.Way{})
				send := func(ev *leg.Event) {
					for _, e := range m.Step(time.Now(), ev) {
						if e.Op == leg.OpSuspect {
							tracker.Suspect(e.Rank, time.Now())
						}
					}
				}
				send(&leg.Event{Kind: leg.EventRequestHeaders, Headers: &wire.Headers{Method: "POST", Path: "/v1/completions", AttemptCount: "1"}})
				send(&leg.Event{Kind: leg.EventRequestBody, Body: []byte(`{"model":"m","prompt":"hello","max_tokens":9}`), EndOfStream: true})
				send(&leg.Event{Kind: leg.EventPicked, Plan: p})
				send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}})
				for awaitsAnswer(m) {
					select {
					case id := <-gone:
						send(&leg.Event{Kind: leg.EventMute, Rank: worker.Rank{ID: id}, Whole: true, Repeat: true})
					case <-time.After(time.Until(m.WakeAt())):
						send(&leg.Event{Kind: leg.EventTimer, Repeat: true})
					}
				}
				require.LessOrEqual(t, time.Since(start), 3*time.Second, "half a second is left for the fresh pair")
				require.Equal(t, []worker.Rank{p.Prefill}, learnedBy(m).Avoid, "who is tried next is another")
			})
		})
	}
}

// stoppedWorker is the address of a worker that takes connections and answers nothing.
type stoppedWorker string

func (s stoppedWorker) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != string(s) {
		return nil, fmt.Errorf("a probe of %s: expected one of %s", r.URL.Host, string(s))
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestAPairThatFailsOnlyWithEachOtherBlamesNeither: the network between the two workers is
// broken, and each serves with other partners.
func TestAPairThatFailsOnlyWithEachOtherBlamesNeither(t *testing.T) {
	for _, kind := range []handoff.Kind{sglang.HandOff, vllm.HandOff} {
		for _, way := range []act{actError, actEmpty, actHang} {
			t.Run(fmt.Sprintf("%s/%d", kind, way), func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(fewer(20)) {
					g := newPlayground(t, seed, kind, 2, 2)
					for i := range 600 {
						ok := g.request(func(_ int, p, d worker.ID) act {
							if p == g.prefill[0] && d == g.serve[0] {
								return way
							}
							return actServe
						})
						require.True(t, ok, "seed %d, request %d\n%s", seed, i, strings.Join(g.story, "\n"))
					}
					require.Empty(t, g.aside, "seed %d\n%s", seed, strings.Join(g.story, "\n"))
				}
			})
		}
	}
}
