//go:build real

package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// benchOf are the options of the bench's engines: small caches, which can be emptied
// between turns.
func benchOf(role worker.Role) spec {
	return spec{worker.VLLM, Options{
		Model: "tiny", Role: role, Args: []string{"--num-gpu-blocks-override", "1024"}, Env: []string{"VLLM_SERVER_DEV_MODE=1"},
	}}
}

var (
	benched  = flag.Bool("bench", false, "replay the conversation trace against real engines, by each way to pick")
	turns    = flag.Int("turns", 5, "of -bench: `times` that each way is tried, in turn")
	requests = flag.Int("requests", 300, "of -bench: `requests` of the trace")
	rate     = flag.Float64("rate", 6, "of -bench: `requests` a second")
)

const (
	traceBlock = 512  // tokens that a hash of the trace stands for; a block of the engine's here
	longest    = 3900 // tokens; a longer prompt is left out
	sampled    = 39   // conversations of the trace for each that is sent: these hit as often as all of it do (37 %)
)

// shot is one request of the trace: its prompt as token ids.
type shot struct{ ids []int }

// readShots reads whole conversations of the trace, with each 512 tokens scaled to a block:
// its first requests alone hold few second turns. All prompts of the trace begin with the
// same block; those of a conversation share the next.
func readShots(t *testing.T) (out []shot) {
	t.Helper()
	root, err := stack.Root()
	require.NoError(t, err)
	f, err := os.Open(filepath.Join(root, "..", "shared", "data", "mooncake_conversation_trace.jsonl"))
	if err != nil {
		t.Skip("the trace is not on this machine: ../shared/data/mooncake_conversation_trace.jsonl")
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && len(out) < *requests {
		var l struct {
			Tokens int      `json:"input_length"`
			Hashes []uint64 `json:"hash_ids"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &l))
		n := l.Tokens * BlockSize / traceBlock
		if n < 1 || n > longest || len(l.Hashes) < 2 || l.Hashes[1]%sampled != 0 {
			continue
		}
		s := shot{}
		for _, h := range l.Hashes {
			for i := range BlockSize {
				s.ids = append(s.ids, 10+int((h*2654435761+uint64(i)*40503)%4000))
			}
		}
		if n <= len(s.ids) {
			s.ids = s.ids[:n]
			out = append(out, s)
		}
	}
	require.Len(t, out, *requests)
	return out
}

// way is one way to serve the requests.
type way struct {
	name, config string
	engines      []string
	plain        bool // by an Envoy without a plugin
}

func ways() []way {
	two, apart := []string{"bench-1", "bench-2"}, []string{"bench-p", "bench-d"}
	mode := func(m string) string { return "routing: {aggregated: {mode: " + m + "}}\n" }
	return []way{
		{"Baton, kv, two workers", mode("kv"), two, false},
		{"Baton, least-loaded, two workers", mode("least-loaded"), two, false},
		{"Baton, round-robin, two workers", mode("round-robin"), two, false},
		{"Envoy alone, least-request, two workers", "", two, true},
		{"Baton, kv, 1 + 1 (NIXL)", "", apart, false},
	}
}

// outcome is what one turn of a way came to.
type outcome struct {
	hit      float64 // share of prompt tokens that were found in a prefilling engine's cache
	p50, p95 time.Duration
	failed   int
}

// TestBench is `make real-bench`.
func TestBench(t *testing.T) {
	if !*benched {
		t.Skip("make real-bench")
	}
	shots := readShots(t)
	total := 0
	for _, s := range shots {
		total += len(s.ids)
	}
	t.Logf("%d requests of %d tokens at %g a second, %d turns", len(shots), total, *rate, *turns)
	seen := map[string][]outcome{}
	for turn := range *turns {
		for i := range ways() { // each turn begins with another way
			w := ways()[(i+turn)%len(ways())]
			t.Run(fmt.Sprintf("turn %d, %s", turn+1, w.name), func(t *testing.T) {
				o := w.run(t, shots)
				t.Logf("%s: hit rate %.1f %%, first token p50 %s, p95 %s, %d failed", w.name, 100*o.hit, o.p50, o.p95, o.failed)
				require.Zero(t, o.failed)
				seen[w.name] = append(seen[w.name], o)
			})
		}
	}
	for _, w := range ways() {
		require.Len(t, seen[w.name], *turns)
		tellf(t, vllm, "bench: "+w.name, "%s", summary(seen[w.name], seen[ways()[3].name]))
	}
}

// summary is the middle of the turns, with the range, beside those of plain Envoy.
func summary(os, plain []outcome) string {
	middle := func(os []outcome, of func(outcome) float64) (mid, low, high float64) {
		var v []float64
		for _, o := range os {
			v = append(v, of(o))
		}
		slices.Sort(v)
		return v[len(v)/2], v[0], v[len(v)-1]
	}
	hit := func(o outcome) float64 { return 100 * o.hit }
	p50 := func(o outcome) float64 { return o.p50.Seconds() * 1000 }
	p95 := func(o outcome) float64 { return o.p95.Seconds() * 1000 }
	h, hl, hh := middle(os, hit)
	a, al, ah := middle(os, p50)
	b, bl, bh := middle(os, p95)
	pa, _, _ := middle(plain, p50)
	pb, _, _ := middle(plain, p95)
	return fmt.Sprintf("hit rate %.1f %% (%.1f–%.1f); first token, in times that of Envoy alone: p50 %.2f (%.2f–%.2f), p95 %.2f (%.2f–%.2f)",
		h, hl, hh, a/pa, al/pa, ah/pa, b/pb, bl/pb, bh/pb)
}

// run serves the requests once, from empty caches.
func (w way) run(t *testing.T, shots []shot) outcome {
	t.Helper()
	es := engines.use(t, w.engines...)
	http.DefaultClient.CloseIdleConnections() // an engine that was stopped ends them as it goes on
	for _, e := range es {
		resp, err := http.Post(e.URL+"/reset_prefix_cache", "", nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	url := ""
	if w.plain {
		url = plainEnvoy(t, es)
	} else {
		url = newSceneOf(t, w.config, es...).envoy.URL
	}
	s := &scene{t: t, engines: es}
	role := es[0].Role // of those that prefill
	before := s.sources(role)
	first := make([]time.Duration, len(shots))
	var failed sync.Map
	var wg sync.WaitGroup
	begin := time.Now()
	for i, shot := range shots {
		due := begin.Add(time.Duration(float64(i) / *rate * float64(time.Second)))
		require.NoError(t, pauseUntil(t.Context(), due))
		wg.Go(func() {
			var err error
			first[i], err = shot.send(t.Context(), url, due)
			if err != nil {
				failed.Store(i, err)
			}
		})
	}
	wg.Wait()
	o := outcome{}
	failed.Range(func(i, err any) bool {
		t.Logf("request %v: %v", i, err)
		o.failed++
		return true
	})
	d := s.sources(role).less(before)
	o.hit = d.cached / d.prompt
	slices.Sort(first)
	o.p50, o.p95 = first[len(first)/2], first[len(first)*95/100]
	return o
}

func pauseUntil(ctx context.Context, at time.Time) error {
	select {
	case <-time.After(time.Until(at)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send asks for two tokens as a stream and returns how long after it was due the first
// came.
func (s shot) send(ctx context.Context, url string, due time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	b, err := json.Marshal(fields{"model": "tiny", "prompt": s.ids, "max_tokens": 2, "ignore_eos": true, "stream": true})
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(b))
	if err != nil {
		return 0, err
	}
	req.Header.Set("content-type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", resp.StatusCode)
	}
	var first time.Duration
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.Contains(line, `"error":`): // not a text that is "error"
			return 0, fmt.Errorf("%.200s", line)
		case first == 0 && strings.HasPrefix(line, "data: {"):
			first = time.Since(due)
		}
	}
	if first == 0 {
		return 0, fmt.Errorf("no token came: %w", lines.Err())
	}
	return first, lines.Err()
}

// plainEnvoy runs an Envoy that sends requests to the engine that has fewest.
func plainEnvoy(t *testing.T, es []*Engine) string {
	t.Helper()
	ports, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	workers := make([]string, len(es))
	for i, e := range es {
		workers[i] = strings.TrimPrefix(e.URL, "http://")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	p, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{
		Path: envoyPath, Dir: dir, Config: stack.PlainConfig(filepath.Join(dir, "envoy.sock"), ports[0], workers...), Concurrency: runtime.NumCPU(),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = p.Kill()
		cancel()
	})
	return fmt.Sprintf("http://127.0.0.1:%d", ports[0])
}
