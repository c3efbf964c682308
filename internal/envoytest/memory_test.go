//go:build e2e && long

package envoytest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	rate    int64         // bytes in a second that reach Envoy, of all of them together
	slow    int64         // and of each slow one
	lasts   time.Duration // refused clients ask again until then
	small   int           // requests alone, four in a second, and at least so many beside them
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

// link is a line on which so many bytes a second pass.
type link struct {
	rate int64

	mu   sync.Mutex
	free time.Time // guarded by mu: when what was given to it has passed
}

func (l *link) pass(ctx context.Context, n int) error {
	l.mu.Lock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(n) * time.Second / time.Duration(l.rate))
	at := l.free
	l.mu.Unlock()
	select {
	case <-time.After(time.Until(at)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// linked is a body that comes over lines. Its bytes take no memory until they do.
type linked struct {
	r     io.Reader
	links []*link
	ctx   context.Context //nolint:containedctx // the test's
}

func (b *linked) Read(p []byte) (int, error) {
	n, err := b.r.Read(p[:min(len(p), 64<<10)])
	for _, l := range b.links {
		if err := l.pass(b.ctx, n); err != nil {
			return 0, err
		}
	}
	return n, err
}

// exes is a text of so many letters.
type exes struct{ left int }

var someExes = []byte(strings.Repeat("x", 64<<10))

func (x *exes) Read(p []byte) (int, error) {
	if x.left == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), x.left)], someExes)
	x.left -= n
	return n, nil
}

// outcomes are what the clients of a flood got.
type outcomes struct {
	mu    sync.Mutex
	count map[string]int // guarded by mu
}

// add counts what a client got, and says in how long it may ask again, 0 for never.
func (o *outcomes) add(ctx context.Context, r *reply) (again time.Duration) {
	what := fmt.Sprintf("%d %.200s", r.status, r.body)
	switch {
	case ctx.Err() != nil:
		what = "time over"
	case r.err != nil:
		what, again = "broken off", 5*time.Second // refused while it wrote
	case r.status == 200:
		what = "200"
	case r.status == 503:
		if s, err := strconv.Atoi(r.header.Get("Retry-After")); err == nil {
			what, again = "503", time.Duration(s)*time.Second
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count == nil {
		o.count = map[string]int{}
	}
	o.count[what]++
	return again
}

// sendAll has the clients send, half of them slowly, half of them without saying how
// much, again when they are refused, as soon as they may. It returns what they got.
func (x *flood) sendAll(t *testing.T, f *fleet) map[string]int {
	ctx, cancel := context.WithTimeout(t.Context(), x.lasts)
	defer cancel()
	shared := &link{rate: x.rate}
	var got outcomes
	var wg sync.WaitGroup
	for i := range x.clients {
		links, sized := []*link{shared}, i/2%2 == 0
		if i%2 == 1 {
			links = append(links, &link{rate: x.slow})
		}
		wg.Go(func() {
			for again := time.Duration(0); ; {
				select {
				case <-time.After(again):
				case <-ctx.Done():
					return
				}
				if again = got.add(ctx, x.ask(ctx, f, i, links, sized)); again == 0 {
					return
				}
				again += time.Duration(i) * time.Millisecond
			}
		})
	}
	wg.Wait()
	return got.count
}

// ask sends one large body. No long prompt: simulated workers take their time over its tokens.
func (x *flood) ask(ctx context.Context, f *fleet, i int, links []*link, sized bool) *reply {
	const tail = `"}`
	head := fmt.Sprintf(`{"model":"m","prompt":"large %d","max_tokens":2,"user":"`, i)
	body := &linked{io.MultiReader(strings.NewReader(head), &exes{x.size}, strings.NewReader(tail)), links, ctx}
	return f.sendSized(ctx, body, len(head)+x.size+len(tail), sized)
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
					t.Log("no cgroup can be made here: the plugin is told its budget, and what the two have resident is looked at four times a second")
					l.config = strings.Replace(l.config, "request: {", fmt.Sprintf("request: {max_bodies_bytes: %d, ", x.memory/8), 1)
				} else {
					l.cgroup = filepath.Join(cgroup, "cgroup.procs")
				}
				f := newFleet(t, l)
				for _, w := range f.workers { // they have machines of their own in life
					require.NoError(t, syscall.Setpriority(syscall.PRIO_PROCESS, w.PID(), 15))
				}
				limit, _ := f.gauge("baton_body_bytes_limit")
				require.EqualValues(t, x.memory/8, limit, "an eighth of the cgroup's memory")
				alone, _ := x.askSmall(t, f, nil)
				done := make(chan struct{})
				var beside []time.Duration
				var resident int64
				var wg sync.WaitGroup
				wg.Go(func() { beside, resident = x.askSmall(t, f, done) })
				got := x.sendAll(t, f)
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
				judge(t, f, alone, beside, got)
				f.await("no body to be in flight", func() bool { return f.metric("baton_body_bytes_in_flight") == 0 })
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("after it", 2, false)), "after it", 2)
			})
		})
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
		r := f.send(t.Context(), "/v1/completions", completion(fmt.Sprintf("small %d", i), 2, false))
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
	x := flood{
		memory: 384 << 20, heap: 224 << 20, maxBody: 8 << 20, clients: 32, size: 4 << 20,
		rate: 125 << 20, slow: 12 << 20, lasts: 8 * time.Second, small: 4, engines: []string{"sglang"},
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
		memory: 1 << 30, heap: 576 << 20, maxBody: 64 << 20, clients: 500, size: 10 << 20,
		rate: 125 << 20, slow: 1 << 20, lasts: 25 * time.Second, small: 40, engines: []string{"sglang", "vllm"},
	}
	x.meets(t, func(t *testing.T, _ *fleet, _, beside []time.Duration, got map[string]int) {
		requireOnly(t, got)
		require.LessOrEqual(t, 100*(len(beside)-servedOf(beside)), len(beside), "small requests find room")
	})
}
