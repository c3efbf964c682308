//go:build e2e && long

package envoytest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/stack"
)

// flood is what a deployment with so much memory meets.
type flood struct {
	memory  int64 // of plugin and Envoy together
	heap    int64 // Envoy's fixed heap
	maxBody int   // of one request
	crowd
	small   int      // requests alone, four in a second, and at least so many beside them
	engines []string // whose hand-offs are tried
}

// cgroupOf makes a cgroup of so much memory and returns its folder, or "" where the
// machine lets nobody make one.
func cgroupOf(t *testing.T, memory int64) string {
	t.Helper()
	for _, c := range []struct{ root, limit, most string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"},
		{"/sys/fs/cgroup", "memory.max", "memory.peak"},
	} {
		dir := filepath.Join(c.root, "baton-"+strconv.Itoa(os.Getpid())+"-"+strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return '-'
		}, strings.ToLower(t.Name())))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if os.WriteFile(filepath.Join(dir, c.limit), []byte(strconv.FormatInt(memory, 10)), 0) == nil {
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				for os.Remove(dir) != nil && ctx.Err() == nil { // until those in it are gone
					<-time.After(20 * time.Millisecond)
				}
			})
			return dir
		}
		_ = os.Remove(dir)
	}
	return ""
}

// usedMost is the most that a cgroup has used, and how often it met its limit.
func usedMost(t *testing.T, dir string) (most, met int64) {
	t.Helper()
	read := func(names ...string) int64 {
		for _, name := range names {
			if b, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
				require.NoError(t, err)
				return n
			}
		}
		return -1
	}
	return read("memory.max_usage_in_bytes", "memory.peak"), read("memory.failcnt")
}

// meets runs the flood against a deployment of both body modes and both kinds of hand-off.
func (x *flood) meets(t *testing.T, judge func(t *testing.T, f *fleet, alone, beside []time.Duration, got map[string]int)) {
	for _, engine := range x.engines {
		t.Run(engine, func(t *testing.T) {
			l := layout{
				prefill: 1, decode: 1, simArgs: []string{"--engine", engine},
				config: fmt.Sprintf("request: {max_body_bytes: %d}\ntokens: {mode: estimate}\n", x.maxBody),
				envoy:  envoy.Params{MaxBodyBytes: x.maxBody, MaxHeapBytes: x.heap}, alone: true,
				threads:  2, // one for each of the processors, as Envoy has by itself
				describe: func(f *fleet) { smallWorkers(f, engine) },
			}
			bodyModes(t, l, func(t *testing.T, l layout) {
				cgroup := cgroupOf(t, x.memory)
				if cgroup == "" {
					t.Log("no cgroup can be made here: the plugin is told its budget, and what the two have resident is looked at four times a second")
					l.config = strings.Replace(l.config, "request: {", fmt.Sprintf("request: {max_bodies_bytes: %d, ", x.memory/8), 1)
				} else {
					l.cgroup = filepath.Join(cgroup, "cgroup.procs")
				}
				f := newFleet(t, l)
				// Workers have machines of their own in life. So those of large bodies give way to
				// all others, and no small request waits for one of them.
				for _, w := range slices.Concat(f.prefill, f.decode) {
					giveWay(t, w.PID())
				}
				limit, _ := f.gauge("baton_body_bytes_limit")
				require.EqualValues(t, x.memory/8, limit, "an eighth of the cgroup's memory")
				alone, _ := x.askSmall(t, f, nil)
				done := make(chan struct{})
				var beside []time.Duration
				var resident int64
				var wg sync.WaitGroup
				wg.Go(func() { beside, resident = x.askSmall(t, f, done) })
				got := x.sends(t, f)
				close(done)
				wg.Wait()
				require.True(t, f.plugin.Alive(), "the plugin was killed: %v", f.plugin.Err())
				require.True(t, f.envoy.Alive(), "Envoy was killed: %v", f.envoy.Err())
				if cgroup != "" {
					most, met := usedMost(t, cgroup)
					t.Logf("%d MiB of %d were used at most, the limit was met %d times", most>>20, x.memory>>20, met)
				} else {
					t.Logf("%d MiB of %d were resident at most", resident>>20, x.memory>>20)
					require.Less(t, resident, x.memory)
				}
				t.Logf("large requests: %v; small ones: alone p50 %v, p99 %v; beside them %d of %d served, p50 %v, p90 %v, p99 %v",
					got, quantile(alone, 50), quantile(alone, 99), servedOf(beside), len(beside), quantile(beside, 50), quantile(beside, 90), quantile(beside, 99))
				t.Logf("the slowest of these, with the second in which each was sent: %s", slowest(beside, 6))
				judge(t, f, alone, beside, got)
				f.await("no body to be in flight", func() bool { return f.metric("baton_body_bytes_in_flight") == 0 })
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("after it", 2, false)), "after it", 2)
			})
		})
	}
}

// smallWorkers adds a worker of each role for small requests: what these take is not what the
// workers take for large bodies.
func smallWorkers(f *fleet, engine string) {
	for i, role := range []string{"prefill", "decode"} {
		w, err := stack.StartWorker(f.ctx, binDir, "--engine", engine, "--role", role, "--id", strconv.Itoa(400+i), "--model", "small")
		require.NoError(f.t, err)
		f.workers = append(f.workers, w)
	}
}

// askSmall sends small requests, four in a second, until done closes, at least x.small of
// them. It returns how long each took, of one that was not served -1, and the most that
// plugin and Envoy had resident meanwhile.
func (x *flood) askSmall(t *testing.T, f *fleet, done <-chan struct{}) (took []time.Duration, resident int64) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		if i >= x.small {
			select {
			case <-done:
				return took, resident
			default:
				if done == nil {
					return took, resident
				}
			}
		}
		r := f.send(t.Context(), "/v1/completions", fmt.Sprintf(`{"model":"small","prompt":"small %d","max_tokens":2}`, i))
		if r.err != nil || r.status != 200 {
			t.Logf("a small request was not served: %v %d %.200s", r.err, r.status, r.body)
			r.took = -1
		}
		took, resident = append(took, r.took), max(resident, f.plugin.RSS()+f.envoy.RSS())
		select {
		case <-tick.C:
		case <-t.Context().Done():
			return took, resident
		}
	}
}

// quantile is that of the ones that were served.
func quantile(took []time.Duration, percent int) time.Duration {
	took = slices.DeleteFunc(slices.Clone(took), func(d time.Duration) bool { return d < 0 })
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, len(took)*percent/100)]
}

// slowest lists the n slowest requests, of which four were sent in a second.
func slowest(took []time.Duration, n int) string {
	at := make([]int, len(took))
	for i := range at {
		at[i] = i
	}
	slices.SortFunc(at, func(a, b int) int { return cmp.Compare(took[b], took[a]) })
	var out strings.Builder
	for _, i := range at[:min(n, len(at))] {
		fmt.Fprintf(&out, "%v (%d s) ", took[i].Round(100*time.Microsecond), i/4)
	}
	return out.String()
}

func servedOf(took []time.Duration) (n int) {
	for _, d := range took {
		if d >= 0 {
			n++
		}
	}
	return n
}

// requireOnly checks that each request was served, or refused with 503.
func requireOnly(t *testing.T, got map[string]int) {
	t.Helper()
	require.Positive(t, got["200"], "%v", got)
	require.Positive(t, got["503"], "%v", got)
	require.Subset(t, []string{"200", "503", "broken off", "time over"}, slices.Collect(maps.Keys(got)))
	require.Less(t, 10*got["broken off"], got["503"], "%v: who is refused while it writes reads why", got)
}

// TestBodiesBeyondTheBudgetAreRefused sends more than plugin and Envoy have memory for: in
// a cgroup with little memory, tens of clients.
func TestBodiesBeyondTheBudgetAreRefused(t *testing.T) {
	x := flood{
		memory: 384 << 20, heap: 224 << 20, maxBody: 8 << 20, small: 4,
		crowd:   crowd{Clients: 32, Size: 3 << 20, Rate: 125 << 20, Slow: 12 << 20, Lasts: 8 * time.Second},
		engines: []string{"sglang"},
	}
	x.meets(t, func(t *testing.T, f *fleet, _, beside []time.Duration, got map[string]int) {
		requireOnly(t, got)
		require.Equal(t, len(beside), servedOf(beside), "small requests find room")
		require.Positive(t, f.metric("baton_failures_total", `code="bodies_full"`))
	})
}

// TestFiveHundredLargeBodiesInOneGibibyte has as many clients as a link of 1 Gbit/s feeds,
// which ask again when they may.
func TestFiveHundredLargeBodiesInOneGibibyte(t *testing.T) {
	x := flood{
		memory: 1 << 30, heap: 576 << 20, maxBody: 64 << 20, small: 240,
		crowd:   crowd{Clients: 500, Size: 10 << 20, Rate: 125 << 20, Slow: 1 << 20, Lasts: 60 * time.Second, Within: 2 * time.Second},
		engines: []string{"sglang", "vllm"},
	}
	x.meets(t, func(t *testing.T, _ *fleet, _, beside []time.Duration, got map[string]int) {
		requireOnly(t, got)
		require.LessOrEqual(t, 100*(len(beside)-servedOf(beside)), len(beside), "small requests find room")
	})
}
