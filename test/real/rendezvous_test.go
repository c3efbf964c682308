//go:build real

package real

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// half is what one side of a rendezvous has answered.
type half struct {
	status int
	body   string
	err    error
	took   time.Duration
}

// meet sends one half of a request to an engine, as Baton does it.
func meet(ctx context.Context, e, prefill *Engine, room uint64, more fields) <-chan half {
	body := fields{
		"model": "tiny", "prompt": fmt.Sprint("room ", room, " ", words(room, 150)), "max_tokens": 6,
		"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.Bootstrap, "bootstrap_room": room,
	}
	maps.Copy(body, more)
	done := make(chan half, 1)
	go func() {
		began := time.Now()
		b, err := json.Marshal(body)
		if err != nil {
			done <- half{err: err}
			return
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+"/v1/completions", bytes.NewReader(b))
		if err != nil {
			done <- half{err: err}
			return
		}
		req.Header.Set("content-type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			done <- half{err: err, took: time.Since(began)}
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		done <- half{resp.StatusCode, string(text), err, time.Since(began)}
	}()
	return done
}

// inHand returns how many requests SGLang's scheduler has in its queues and running, -1
// while it does not say. Its metrics are written now and then only.
func inHand(e *Engine) int {
	resp, err := http.Get(e.URL + "/v1/loads?include=core,disagg")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	var in struct {
		Loads []struct {
			Running int            `json:"num_running_reqs"`
			Waiting int            `json:"num_waiting_reqs"`
			Disagg  map[string]any `json:"disaggregation"`
		}
	}
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&in) != nil || len(in.Loads) == 0 {
		return -1
	}
	n := in.Loads[0].Running + in.Loads[0].Waiting
	for name, v := range in.Loads[0].Disagg {
		if f, ok := v.(float64); ok && strings.HasSuffix(name, "_queue_reqs") {
			n += int(f)
		}
	}
	return n
}

// quiet waits until SGLang runs nothing and waits for nobody.
func (s *scene) quiet(es ...*Engine) {
	s.t.Helper()
	for _, e := range es {
		s.await(e.Name+" to have nothing left", func() bool { return inHand(e) == 0 })
	}
}

// TestSGLangsRendezvous: what its halves say and when, without Baton.
func TestSGLangsRendezvous(t *testing.T) {
	s := newScene(t, "", "sglang-p1", "sglang-d1")
	p, d := s.engines[0], s.engines[1]
	later := func() { <-time.After(500 * time.Millisecond) }

	room := rand.Uint64N(1 << 40)
	first := meet(t.Context(), p, p, room, fields{"max_tokens": 1})
	later()
	second := meet(t.Context(), d, p, room, nil)
	a, b := <-first, <-second
	require.Equal(t, []int{200, 200}, []int{a.status, b.status}, "%s %s", a.body, b.body)
	tellf(t, sglang, "rendezvous: prefill's half comes first", "both 200; prefill after %s, decode %s after it came", a.took.Round(10*time.Millisecond), b.took.Round(10*time.Millisecond))

	room++
	first = meet(t.Context(), d, p, room, nil)
	later()
	second = meet(t.Context(), p, p, room, fields{"max_tokens": 1})
	b, a = <-first, <-second
	require.Equal(t, []int{200, 200}, []int{a.status, b.status}, "%s %s", a.body, b.body)
	tellf(t, sglang, "rendezvous: decode's half comes first", "both 200; decode after %s, prefill %s after it came", b.took.Round(10*time.Millisecond), a.took.Round(10*time.Millisecond))

	room++
	first = meet(t.Context(), d, p, room, nil)
	later()
	ctx, leave := context.WithCancel(t.Context())
	second = meet(ctx, p, p, room, fields{"max_tokens": 1})
	<-time.After(20 * time.Millisecond)
	leave()
	a, b = <-second, <-first
	require.Equal(t, http.StatusOK, b.status, b.body)
	gone := "had its answer already"
	if a.err != nil {
		gone = "had none yet"
	}
	tellf(t, sglang, "rendezvous: prefill's client leaves while its half is computed", "decode's 200; the client that left %s", gone)

	for name, e := range map[string]*Engine{"decode's": d, "prefill's": p} {
		room++
		ctx, leave := context.WithTimeout(t.Context(), 3*time.Second)
		x := <-meet(ctx, e, p, room, nil)
		leave()
		require.ErrorIs(t, x.err, context.DeadlineExceeded, "%d %s", x.status, x.body)
		s.quiet(p, d)
		tellf(t, sglang, "rendezvous: "+name+" half alone", "no answer in 3 s; nothing of it is left once its client has gone")
	}
}

// TestSGLangApartWhenOneSideFails: what Baton's clients get, and what is left.
func TestSGLangApartWhenOneSideFails(t *testing.T) {
	s := newScene(t, "", "sglang-p1", "sglang-d1")
	p, d := s.engines[0], s.engines[1]
	good := fields{"model": "tiny", "prompt": words(77, 150), "max_tokens": 6}
	require.Equal(t, http.StatusOK, s.ask("/v1/completions", good).status)

	a := s.ask("/v1/completions", fields{"model": "tiny", "prompt": words(78, 150), "max_tokens": 6, "temperature": -3})
	require.Equal(t, http.StatusBadRequest, a.status, a.body)
	s.quiet(p, d)
	tellf(t, sglang, "apart: both halves refuse", "400 in the engine's words, nothing is left")

	// A room that is never met.
	require.NoError(t, p.Pause())
	began := time.Now()
	a = s.ask("/v1/completions", fields{"model": "tiny", "prompt": words(80, 150), "max_tokens": 6})
	never := time.Since(began).Round(100 * time.Millisecond)
	require.Equal(t, http.StatusInternalServerError, a.status, a.body) // decode's own word: the only prefill worker is waited for
	detail := s.last().Detail
	require.NoError(t, p.Resume())
	s.await("the pair to serve again", func() bool { return s.ask("/v1/completions", good).status == http.StatusOK })
	s.quiet(p, d)
	tellf(t, sglang, "apart: prefill does nothing, a room is never met", "decode's 500 (%s) after %s; once prefill goes on it serves again, and nothing is left", detail, never)

	// In the meeting: decode waits for a prefill that computes nothing.
	require.NoError(t, p.Pause())
	began = time.Now()
	waiting := make(chan *answer, 1)
	go func() {
		waiting <- s.ask("/v1/completions", fields{"model": "tiny", "prompt": words(79, 150), "max_tokens": 6})
	}()
	s.await("decode to wait", func() bool { return inHand(d) > 0 })
	require.NoError(t, p.Kill())
	a = <-waiting
	took := time.Since(began).Round(100 * time.Millisecond)
	require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
	s.quiet(d)
	tellf(t, sglang, "apart: prefill is killed in the meeting", "503 %s after %s; nothing is left at decode", s.last().Detail, took)

	// Before it.
	began = time.Now()
	a = s.ask("/v1/completions", good)
	require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
	tellf(t, sglang, "apart: prefill is dead", "503 after %s", time.Since(began).Round(time.Millisecond))
	require.NoError(t, p.Restart(context.Background()))
	s.await("the pair to serve again", func() bool { return s.ask("/v1/completions", good).status == http.StatusOK })
	require.NotNil(t, s.last().Prefill)
	tellf(t, sglang, "apart: prefill is back under a new life", "served apart")
}
