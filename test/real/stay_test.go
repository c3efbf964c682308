//go:build real

package real

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// crews are the engines of TestHealthyWorkersStay: two of each role, with the engines' own
// limits.
var crews = map[string][]string{
	vllm:   {"vllm-own-p1", "vllm-own-p2", "vllm-own-d1", "vllm-own-d2"},
	sglang: {"sglang-own-p1", "sglang-own-p2", "sglang-own-d1", "sglang-own-d2"},
}

const (
	// longestPrompt is how long a prompt for the tiny model may be: its context, less an answer.
	longestPrompt = 8192 - 12
	// idleFor stands for an hour in which nobody asks: six times what uvicorn keeps an idle
	// connection open.
	idleFor = 40 * time.Second
	// uvicorn closes a connection that has been idle for so long.
	keptAlive = 5 * time.Second
	// stopFor is how long an engine does nothing.
	stopFor = 10 * time.Second
)

// TestHealthyWorkersStay: engines with their own defaults compute long prompts, have nothing
// to do, load adapters, stand beside one that is stopped and one that is killed. All requests
// are served, and no healthy worker is set aside.
func TestHealthyWorkersStay(t *testing.T) {
	for _, engine := range []string{sglang, vllm} {
		t.Run(engine, func(t *testing.T) {
			s := newScene(t, "", crews[engine]...)
			w := watchScene(s, engine)
			w.phase("long prompts, eight at once", w.longPrompts)
			w.phase("nothing to do for "+idleFor.String()+", then requests as idle connections are closed", w.nothing)
			w.phase("an adapter is loaded", w.adapter)
			for _, role := range []worker.Role{worker.Prefill, worker.Decode} {
				w.phase(fmt.Sprintf("%s: one of two is stopped for %s", role, stopFor), func() string { return w.stopped(role) })
			}
			for _, role := range []worker.Role{worker.Prefill, worker.Decode} {
				w.phase(fmt.Sprintf("%s: one of two is killed", role), func() string { return w.killed(role) })
			}
			w.end()
		})
	}
}

// move is one change of a worker's health, as the plugin tells it.
type move struct {
	at                    time.Time
	endpoint, to, because string
}

// watch reads what the plugin says of its workers, and how long the engines' pages take.
type watch struct {
	*scene
	engine string
	sick   *Engine // that something is done to, or nil
	quiet  atomic.Bool
	asked  atomic.Int64 // requests of the phase
	n      atomic.Int64 // requests in all

	mu    sync.Mutex
	moves []move
	told  map[string]bool // the moves that have been read
	began time.Time       // of the phase
	took  map[string][]time.Duration
}

// standing is what /debug/state says.
type standing struct {
	Workers []struct {
		ID       string `json:"worker_id"`
		Endpoint string
		State    string
		Reason   string
	}
	Transitions []struct {
		At              time.Time
		What, To, Cause string
	}
}

func watchScene(s *scene, engine string) *watch {
	w := &watch{scene: s, engine: engine, told: map[string]bool{}, took: map[string][]time.Duration{}}
	ctx, cancel := context.WithCancel(s.t.Context())
	var looks sync.WaitGroup
	looks.Go(func() {
		every(ctx, 100*time.Millisecond, func() { w.look() })
	})
	for _, e := range s.engines {
		looks.Go(func() {
			every(ctx, time.Second, func() { w.pages(ctx, e) })
		})
	}
	s.t.Cleanup(func() {
		cancel()
		looks.Wait()
		for _, e := range w.engines {
			if s.t.Failed() {
				s.t.Logf("%s lives: %t, its log:\n%s", e.Name, e.Alive(), e.Log())
			}
		}
	})
	return w
}

// every calls f, again and again, until ctx ends.
func every(ctx context.Context, pause time.Duration, f func()) {
	for ctx.Err() == nil {
		f()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// look reads the changes that are new.
func (w *watch) look() (s standing, ok bool) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	page, err := w.plugin.Page(ctx, "/debug/state")
	if err != nil || json.Unmarshal([]byte(page), &s) != nil {
		return s, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.moves = append(w.moves, s.moves(w.told)...)
	return s, true
}

// moves returns the workers' changes that have not been told, oldest first, and has them told.
func (s *standing) moves(told map[string]bool) (out []move) {
	for _, x := range slices.Backward(s.Transitions) {
		_, at, is := strings.Cut(strings.TrimSuffix(x.What, ")"), " (") // worker ID (role endpoint)
		_, at, placed := strings.Cut(at, " ")
		key := x.What + x.To + x.At.String()
		if !is || !placed || !strings.HasPrefix(x.What, "worker ") || told[key] {
			continue
		}
		told[key] = true
		out = append(out, move{x.At, at, x.To, x.Cause})
	}
	return out
}

// pages asks an engine for two pages, unless nothing is to be asked or it does nothing.
func (w *watch) pages(ctx context.Context, e *Engine) {
	for _, path := range []string{"/health", "/v1/models"} {
		if w.quiet.Load() || w.ill(e) {
			return
		}
		began := time.Now()
		ok := get(ctx, e.URL+path)
		took := time.Since(began)
		if !ok || w.ill(e) {
			continue
		}
		w.mu.Lock()
		if began.After(w.began) {
			w.took[path] = append(w.took[path], took)
		}
		w.mu.Unlock()
	}
}

// get asks for a page, and reports whether it has come.
func get(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil
}

// ill reports whether something is done to the engine.
func (w *watch) ill(e *Engine) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sick == e || !e.Alive()
}

func (w *watch) setSick(e *Engine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sick = e
}

// phase does something, and holds that meanwhile no healthy worker was set aside and that all
// are in service after it.
func (w *watch) phase(what string, do func() (seen string)) {
	w.t.Helper()
	w.mu.Lock()
	from := len(w.moves)
	w.took, w.began = map[string][]time.Duration{}, time.Now()
	began := w.began
	w.mu.Unlock()
	w.asked.Store(0)
	seen := do()
	w.awaitService(func(string) bool { return true })
	took := time.Since(began)

	w.mu.Lock()
	healthy, sick := w.sum(w.moves[from:], false), w.sum(w.moves[from:], true)
	of := w.sick
	if of != nil && !of.Alive() {
		w.engines = slices.DeleteFunc(slices.Clone(w.engines), func(e *Engine) bool { return e == of })
	}
	w.sick = nil
	pages := w.tookText()
	w.mu.Unlock()
	text := fmt.Sprintf("%s; the healthy: %s", seen, healthy.text())
	if of != nil {
		text += "; this one: " + sick.text()
	}
	row := "healthy workers stay: " + what
	if pages != "" {
		tellf(w.t, w.engine, row+", their pages", "%s", pages)
	}
	tellf(w.t, w.engine, row, "%s", text)
	w.t.Logf("%s: %s in all", what, took.Round(time.Second))
	require.Zero(w.t, healthy.aside, "a healthy worker is set aside")
}

// awaitService waits until all engines, but those that have ended, are in service and not
// doubted.
func (w *watch) awaitService(of func(endpoint string) bool) {
	w.t.Helper()
	var last standing
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the workers: %+v", last.Workers)
		}
	}()
	w.await("the workers to be in service", func() bool {
		s, ok := w.look()
		if !ok {
			return false
		}
		last = s
		in := map[string]bool{}
		for _, x := range s.Workers {
			in[x.Endpoint] = x.State == "healthy" && !strings.HasPrefix(x.Reason, "doubted")
		}
		for _, e := range w.engines {
			if at := endpointOf(e); e.Alive() && of(at) && !in[at] {
				return false
			}
		}
		return true
	})
}

func endpointOf(e *Engine) string { return strings.TrimPrefix(e.URL, "http://") }

// moved is what has become of workers.
type moved struct {
	doubts, aside int
	longest       time.Duration // of a doubt
	why           map[string]int
}

// sum adds up the moves of the healthy workers, or of the one that something is done to.
func (w *watch) sum(moves []move, sick bool) (m moved) {
	m.why = map[string]int{}
	since := map[string]time.Time{}
	for i := range moves {
		x := &moves[i]
		if (w.sick != nil && x.endpoint == endpointOf(w.sick)) != sick {
			continue
		}
		w.t.Logf("%s: %s is %s: %s", x.at.Format("15:04:05.000"), x.endpoint, x.to, x.because)
		if at, was := since[x.endpoint]; was {
			m.longest = max(m.longest, x.at.Sub(at))
			delete(since, x.endpoint)
		}
		switch x.to {
		case "doubted":
			m.doubts++
			m.why[x.because]++
			since[x.endpoint] = x.at
		case "aside":
			m.aside++
			m.why["aside "+x.because]++
		}
	}
	return m
}

func (m *moved) text() string {
	text := fmt.Sprintf("%d times aside, %d times doubted", m.aside, m.doubts)
	if m.doubts > 0 {
		text += fmt.Sprintf(", the longest for %s", m.longest.Round(10*time.Millisecond))
	}
	var whys []string
	for _, why := range slices.Sorted(maps.Keys(m.why)) {
		whys = append(whys, fmt.Sprintf("%s: %d", why, m.why[why]))
	}
	if len(whys) > 0 {
		text += " (" + strings.Join(whys, ", ") + ")"
	}
	return text
}

// tookText says how long the pages of the healthy workers have taken.
func (w *watch) tookText() string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(w.took)) {
		d := w.took[path]
		slices.Sort(d)
		out = append(out, fmt.Sprintf("`%s`: half of %d within %s, the slowest %s", path, len(d), d[len(d)/2].Round(time.Millisecond), d[len(d)-1].Round(time.Millisecond)))
	}
	return strings.Join(out, "; ")
}

// post sends one request, whose answer has to be whole and 200.
func (w *watch) post(body fields) {
	w.asked.Add(1)
	b, err := json.Marshal(body)
	if err != nil {
		w.t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.envoy.URL+"/v1/completions", bytes.NewReader(b))
	if err != nil {
		w.t.Error(err)
		return
	}
	req.Header.Set("content-type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Errorf("after %s: %v", time.Since(began), err)
		return
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	whole := err == nil && resp.StatusCode == http.StatusOK && !bytes.Contains(all, []byte(`"error"`))
	if body["stream"] == true {
		whole = whole && bytes.Contains(all, []byte("data: [DONE]"))
	}
	if !whole {
		w.t.Errorf("at %s, after %s: %d, %v: %.500s", began.Format("15:04:05.000"), time.Since(began), resp.StatusCode, err, all)
	}
}

// short is a request that costs little, with a prompt of its own.
func (w *watch) short(stream bool) fields {
	n := w.n.Add(1)
	return fields{"model": "tiny", "prompt": fmt.Sprint(w.t.Name(), n, words(uint64(n), 150)), "max_tokens": 8, "ignore_eos": true, "stream": stream}
}

// traffic has three clients ask until do returns.
func (w *watch) traffic(body func(client int) fields, do func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var clients sync.WaitGroup
	for client := range 3 {
		clients.Go(func() {
			every(ctx, 100*time.Millisecond, func() { w.post(body(client)) })
		})
	}
	defer clients.Wait()
	defer cancel()
	do()
}

func (w *watch) served() string { return fmt.Sprintf("%d requests served", w.asked.Load()) }

// longPrompts: as long as the model takes them, so that batches and tokenizing keep the
// engines' loops late. Half of them are text and half are tokens.
func (w *watch) longPrompts() string {
	const tokens, rounds, atOnce = 4, 2, 8
	var clients sync.WaitGroup
	var slowest atomic.Int64
	for client := range atOnce {
		clients.Go(func() {
			for range rounds {
				n := w.n.Add(1)
				ids := make([]int, longestPrompt)
				for i := range ids {
					ids[i] = 300 + (i*int(n)+i*i)%3500
				}
				body := fields{"model": "tiny", "prompt": ids, "max_tokens": tokens, "ignore_eos": true, "stream": client%4 < 2}
				if client%2 == 0 {
					body["prompt"] = fmt.Sprint("long ", n, " ") + words(uint64(n), longestPrompt*3/4)
				}
				began := time.Now()
				w.post(body)
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
			}
		})
	}
	clients.Wait()
	return fmt.Sprintf("%s (up to %d tokens, the slowest in %s)", w.served(), longestPrompt, time.Duration(slowest.Load()).Round(100*time.Millisecond))
}

// nothing: only Baton and its registers ask the engines anything. Then requests come, first
// some at once and then each when uvicorn closes the connection of the one before.
func (w *watch) nothing() string {
	w.quiet.Store(true)
	<-time.After(idleFor)
	w.quiet.Store(false)
	var clients sync.WaitGroup
	for client := range 6 {
		clients.Go(func() { w.post(w.short(client%2 == 0)) })
	}
	clients.Wait()
	for i := range 6 {
		<-time.After(keptAlive + time.Duration(i-3)*5*time.Millisecond)
		w.post(w.short(i%2 == 0))
	}
	return w.served()
}

// adapter: each engine loads it while requests come; then it is asked for.
func (w *watch) adapter() string {
	const name = "late"
	model := name
	path := "/v1/load_lora_adapter"
	if w.engine == sglang {
		path, model = "/load_lora_adapter", "tiny:"+name
	}
	load := func(e *Engine) (time.Duration, error) {
		b, err := json.Marshal(fields{"lora_name": name, "lora_path": filepath.Join(home, "models", "adapter")})
		if err != nil {
			return 0, err
		}
		began := time.Now()
		resp, err := http.Post(e.URL+path, "application/json", bytes.NewReader(b))
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if all, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("%d %s", resp.StatusCode, all)
		}
		return time.Since(began), nil
	}
	var slowest time.Duration
	w.traffic(func(client int) fields { return w.short(client == 0) }, func() {
		for _, e := range w.engines {
			took, err := load(e)
			require.NoError(w.t, err, "%s loads an adapter", e.Name)
			slowest = max(slowest, took)
		}
		w.await("requests for the adapter to be served", func() bool {
			return w.ask("/v1/completions", fields{"model": model, "prompt": words(9, 50), "max_tokens": 2}).status == http.StatusOK
		})
	})
	w.traffic(func(client int) fields {
		body := w.short(client == 0)
		if client > 0 {
			body["model"] = model
		}
		return body
	}, func() { <-time.After(5 * time.Second) })
	return fmt.Sprintf("%s, for the adapter too; the slowest load took %s", w.served(), slowest.Round(10*time.Millisecond))
}

// of returns the last of the scene's engines of a role that lives.
func (w *watch) lastOf(role worker.Role) *Engine {
	for _, e := range slices.Backward(w.engines) {
		if e.Role == role && e.Alive() {
			return e
		}
	}
	w.t.Fatalf("no engine is %s", role)
	return nil
}

// stopped: a worker does nothing for a while, beside a healthy one. It comes back, and
// serves.
func (w *watch) stopped(role worker.Role) string {
	e := w.lastOf(role)
	w.traffic(func(client int) fields { return w.short(client == 0) }, func() {
		<-time.After(2 * time.Second)
		w.setSick(e)
		require.NoError(w.t, e.Pause())
		<-time.After(stopFor)
		require.NoError(w.t, e.Resume())
		at := endpointOf(e)
		w.awaitService(func(endpoint string) bool { return endpoint == at })
		w.await("it to serve", func() bool { return w.chosen(role, at) })
	})
	return w.served()
}

// chosen reports whether the latest decisions have one for the worker.
func (w *watch) chosen(role worker.Role, endpoint string) bool {
	s, ok := w.look()
	if !ok {
		return false
	}
	page, err := w.plugin.Page(w.t.Context(), "/debug/decisions?n=3")
	var list struct{ Decisions []decision }
	if err != nil || json.Unmarshal([]byte(page), &list) != nil {
		return false
	}
	for _, x := range s.Workers {
		for i := range list.Decisions {
			c := list.Decisions[i].Decode
			if role == worker.Prefill {
				c = list.Decisions[i].Prefill
			}
			if x.Endpoint == endpoint && c != nil && c.Worker == x.ID && list.Decisions[i].Outcome == "ok" {
				return true
			}
		}
	}
	return false
}

// killed: a worker ends with all that it has. What it had not begun to answer is served by
// the other. An answer that had begun is lost with it, so nothing is streamed.
func (w *watch) killed(role worker.Role) string {
	e := w.lastOf(role)
	w.traffic(func(int) fields { return w.short(false) }, func() {
		<-time.After(2 * time.Second)
		w.setSick(e)
		require.NoError(w.t, e.Kill())
		<-time.After(stopFor)
	})
	return w.served()
}

// end holds that no move was missed.
func (w *watch) end() {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	aside := 0
	for i := range w.moves {
		if w.moves[i].to == "aside" {
			aside++
		}
	}
	require.EqualValues(w.t, w.metric("baton_aside_transitions_total", `to="aside"`), aside, "each move to aside was seen")
}
