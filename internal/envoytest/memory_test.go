//go:build e2e && long

package envoytest

import (
	"context"
	"fmt"
	"io"
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
)

// flood is what a deployment with so much memory meets.
type flood struct {
	memory  int64 // of plugin and Envoy together
	heap    int64 // Envoy's fixed heap
	maxBody int   // of one request
	clients int
	size    int           // of each one's body
	pause   time.Duration // of slow clients, between pieces
	small   int           // requests beside them, four in a second
	engines []string      // whose hand-offs are tried
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

// dripping is a body that comes in pieces, with a pause before each.
type dripping struct {
	r     io.Reader
	pause time.Duration
	ctx   context.Context //nolint:containedctx // the test's
}

func (d *dripping) Read(p []byte) (int, error) {
	if d.pause > 0 {
		select {
		case <-time.After(d.pause):
		case <-d.ctx.Done():
			return 0, d.ctx.Err()
		}
	}
	return d.r.Read(p[:min(len(p), 64<<10)])
}

// outcomes are what the clients of a flood got.
type outcomes struct {
	mu    sync.Mutex
	count map[string]int // guarded by mu
}

func (o *outcomes) add(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count == nil {
		o.count = map[string]int{}
	}
	o.count[what]++
}

// sendAll has the clients send, half of them slowly, half of them without saying how
// much, and returns what they got.
func (x *flood) sendAll(t *testing.T, f *fleet) map[string]int {
	var got outcomes
	var wg sync.WaitGroup
	for i := range x.clients {
		wg.Go(func() {
			// No long prompt: simulated workers take their time over its tokens.
			body := fmt.Sprintf(`{"model":"m","prompt":"large %d","max_tokens":2,"user":%q}`, i, strings.Repeat("x", x.size))
			var r io.Reader = strings.NewReader(body)
			slow, unsized := i%2 == 1, i/2%2 == 1
			if slow {
				r = &dripping{r: r, pause: x.pause, ctx: t.Context()}
			}
			if unsized {
				r = io.MultiReader(r) // of which nobody knows how long it is
			}
			req := f.sendSized(t.Context(), r, len(body), !unsized)
			switch {
			case req.err != nil:
				got.add("broken off") // refused while it wrote
			case req.status == 200:
				got.add("200")
			case req.status == 503 && req.header.Get("Retry-After") != "":
				got.add("503")
			default:
				got.add(fmt.Sprintf("%d %.200s", req.status, req.body))
			}
		})
	}
	wg.Wait()
	return got.count
}

// meets runs the flood against a deployment of both body modes and both kinds of hand-off.
func (x *flood) meets(t *testing.T, judge func(t *testing.T, f *fleet, alone, beside []time.Duration, got map[string]int)) {
	for _, engine := range x.engines {
		t.Run(engine, func(t *testing.T) {
			l := layout{
				prefill: 1, decode: 1, simArgs: []string{"--engine", engine},
				config: fmt.Sprintf("request: {max_body_bytes: %d}\ntokens: {mode: estimate}\n", x.maxBody),
				envoy:  envoy.Params{MaxBodyBytes: x.maxBody, MaxHeapBytes: x.heap}, alone: true,
			}
			bodyModes(t, l, func(t *testing.T, l layout) {
				cgroup := cgroupOf(t, x.memory)
				if cgroup == "" {
					t.Log("no cgroup can be made here: the plugin is told its budget, and only its own memory is looked at")
					l.config = strings.Replace(l.config, "request: {", fmt.Sprintf("request: {max_bodies_bytes: %d, ", x.memory/8), 1)
				} else {
					l.cgroup = filepath.Join(cgroup, "cgroup.procs")
				}
				f := newFleet(t, l)
				limit, _ := f.gauge("baton_body_bytes_limit")
				require.EqualValues(t, x.memory/8, limit, "an eighth of the cgroup's memory")
				alone := x.askSmall(t, f, nil)
				done := make(chan struct{})
				var beside []time.Duration
				var wg sync.WaitGroup
				wg.Go(func() { beside = x.askSmall(t, f, done) })
				got := x.sendAll(t, f)
				close(done)
				wg.Wait()
				require.True(t, f.plugin.Alive(), "the plugin was killed: %v", f.plugin.Err())
				require.True(t, f.envoy.Alive(), "Envoy was killed: %v", f.envoy.Err())
				if cgroup != "" {
					most, met := usedMost(t, cgroup)
					t.Logf("%d MiB of %d were used at most, the limit was met %d times", most>>20, x.memory>>20, met)
				} else {
					require.Less(t, f.plugin.RSS(), x.memory/2)
				}
				judge(t, f, alone, beside, got)
				f.await("no body to be in flight", func() bool { return f.metric("baton_body_bytes_in_flight") == 0 })
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("after it", 2, false)), "after it", 2)
			})
		})
	}
}

// askSmall sends small requests, four in a second, until done closes, at least x.small of
// them, and returns how long each took; of one that was not served, -1.
func (x *flood) askSmall(t *testing.T, f *fleet, done <-chan struct{}) (took []time.Duration) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		if i >= x.small {
			select {
			case <-done:
				return took
			default:
				if done == nil {
					return took
				}
			}
		}
		r := f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("small %d", i), 2, false))
		if r.err != nil || r.status != 200 {
			t.Logf("a small request was not served: %v %d %.200s", r.err, r.status, r.body)
			r.took = -1
		}
		took = append(took, r.took)
		select {
		case <-tick.C:
		case <-t.Context().Done():
			return took
		}
	}
}

// p99 is that of the ones that were served.
func p99(took []time.Duration) time.Duration {
	took = slices.DeleteFunc(slices.Clone(took), func(d time.Duration) bool { return d < 0 })
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, len(took)*99/100)]
}

func servedOf(took []time.Duration) (n int) {
	for _, d := range took {
		if d >= 0 {
			n++
		}
	}
	return n
}

// requireOnly checks that each client was served, or refused with 503.
func requireOnly(t *testing.T, got map[string]int, clients int) {
	t.Helper()
	require.Equal(t, clients, got["200"]+got["503"]+got["broken off"], "%v", got)
	require.Positive(t, got["200"], "%v", got)
}

// sendSized is send, with a content-length or without one.
func (f *fleet) sendSized(ctx context.Context, body io.Reader, size int, sized bool) *reply {
	if !sized {
		return f.sendFrom(ctx, "/v1/completions", body)
	}
	return f.sendFrom(ctx, "/v1/completions", &sizedBody{body, size})
}

// TestBodiesBeyondTheBudgetAreRefused sends more than plugin and Envoy have memory for: in
// a cgroup with little memory, tens of clients.
func TestBodiesBeyondTheBudgetAreRefused(t *testing.T) {
	x := flood{memory: 384 << 20, heap: 224 << 20, maxBody: 8 << 20, clients: 32, size: 4 << 20, pause: 5 * time.Millisecond, small: 4, engines: []string{"sglang"}}
	x.meets(t, func(t *testing.T, f *fleet, alone, beside []time.Duration, got map[string]int) {
		t.Logf("%v; small requests: p99 %v alone, %v beside them", got, p99(alone), p99(beside))
		requireOnly(t, got, x.clients)
		require.Equal(t, len(beside), servedOf(beside), "small requests find room")
		require.Positive(t, got["503"]+got["broken off"])
		require.Positive(t, f.metric("baton_failures_total", `code="bodies_full"`))
	})
}
