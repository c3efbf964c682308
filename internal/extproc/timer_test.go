package extproc

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// TestClocksThatAreDueTogetherAllGoOff: an attempt has one timer for all of its clocks. On a
// busy machine the timer goes off late, when a second clock is due, too. Here two clocks are
// set to the same time. The second has to go off as well, and so do later ones.
func TestClocksThatAreDueTogetherAllGoOff(t *testing.T) {
	pair := []string{"1 prefill 10.0.0.1:80", "2 decode 10.0.0.2:80"}

	t.Run("who is late, and is to be probed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			// A worker that has answered at once gets a limit of a second, after which it is
			// probed.
			f := newFleet(t, &datadriven.TestData{}, pair, func(c *Config) { c.OverdueBase = time.Second })
			var out strings.Builder
			s := f.asked(&out)
			s.otherLeg(&out, false)
			s.end(&out, false)

			s = f.asked(&out)
			leg := s.hungLeg()
			<-time.After(3500 * time.Millisecond)
			synctest.Wait()
			shown := strings.Split(f.shown(), "\n")
			require.Contains(t, shown, `baton_blame_total{leg="mirrored_prefill",seen="stuck"} 3`)
			require.False(t, slices.ContainsFunc(shown, func(line string) bool { return strings.Contains(line, `charge="slow"`) }), "silence alone charges nobody")
			leg.cancel()
			<-leg.tap.done
			s.end(&out, true)
		})
	})

	t.Run("a leg that has not begun", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, &datadriven.TestData{}, pair, func(c *Config) {
				c.StartTimeout, c.OverdueBase, c.PrefillTimeout, c.MaxAttempts = 4*time.Second, time.Second, 10*time.Second, 1
			})
			var out strings.Builder
			s := f.asked(&out)
			<-time.After(15 * time.Second) // the leg is waited for again, for as long as a prefill may take
			synctest.Wait()
			last := s.due()
			require.Len(t, last, 1, "the request is answered, long before its deadline")
			require.IsType(t, (*extprocv3.ProcessingResponse_ImmediateResponse)(nil), last[0].GetResponse())
			s.end(&out, true)
		})
	})
}

// asked sends a whole request, and returns its stream once the request is routed.
func (f *fleet) asked(out *strings.Builder) *frameStream {
	s := f.open(mode{twoLeg: true}, "")
	for _, line := range [][2]string{{"request-headers", ""}, {"request-body", `: {"model":"m","prompt":"hello"}`}} {
		for _, raw := range s.frames(line[0], line[1], nil) {
			for _, m := range s.send(raw) {
				s.print(out, m)
			}
		}
	}
	require.NotEmpty(f.t, s.headers[prefill.HeaderLeg], out)
	return s
}

// hungLeg is the prefill leg of the request, at a worker that does not answer.
func (s *frameStream) hungLeg() *frameStream {
	leg := s.stream(mode{}, filterKey, filterPrefill)
	for _, raw := range leg.frames("request-headers", "", []string{prefill.HeaderLeg + ": " + s.headers[prefill.HeaderLeg]}) {
		leg.send(raw)
	}
	for _, raw := range leg.frames("request-body", ": "+string(s.request), nil) {
		leg.send(raw)
	}
	return leg
}
