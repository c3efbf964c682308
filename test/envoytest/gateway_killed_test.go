//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/stack"
)

// This file is for our plugin's end under a gateway's requests: the rows for the
// gateway of the table "When the plugin or a worker dies" in ARCHITECTURE.md.

// stage is a worker of ours, and another one of the gateway's pool that we do not
// know, whose answers wait for what a test does meanwhile.
type stage struct {
	f            *fleet
	ours, theirs *backend
	canary       *canary

	mu  sync.Mutex
	act *act
}

// act is one request on a stage.
type act struct {
	at      string        // the moment of the plugin's end
	reached chan struct{} // the worker is there: it counts tokens, or has the request
	over    chan struct{} // the plugin has ended
	once    sync.Once
}

func (s *stage) now() *act {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.act
}

func (s *stage) serve(w http.ResponseWriter, r *http.Request) {
	a := s.now()
	there := func() { a.once.Do(func() { close(a.reached) }) }
	switch {
	case r.URL.Path == "/tokenize":
		if a.at == "counting" {
			there()
			<-a.over
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"tokens":[1,2,3],"count":3,"max_model_len":4096}`)
	case r.Header.Get("X-Who") != "": // a client's; the plugin asks, too, when it likes
		switch a.at {
		case "routed":
			there()
			<-a.over
		case "answering":
			_, _ = io.WriteString(w, "one ")
			_ = http.NewResponseController(w).Flush()
			<-a.over
		}
		_, _ = io.WriteString(w, "two")
	}
}

// set prepares the next request.
func (s *stage) set(at string) *act {
	a := &act{at: at, reached: make(chan struct{}), over: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.act = a
	return a
}

// newStage runs a gateway whose pool is both workers; the plugin knows one of them.
func newStage(t *testing.T, gp envoy.GatewayParams, twoLegs, fullDuplex bool) *stage {
	t.Helper()
	s := &stage{canary: newCanary(t)}
	s.set("")
	l := layout{gateway: &gp, twoLegs: twoLegs, fullDuplex: fullDuplex, config: pickerConfig + "tokens: {wait: 4s}\n"}
	l.beforeEnvoy = func(f *fleet) {
		w := fake(t, 900, func(w http.ResponseWriter, r *http.Request) { s.ours.Config.Handler.ServeHTTP(w, r) })
		s.ours, s.theirs = newBackend(t, s.serve), newBackend(t, s.serve)
		s.ours.addr = w.Info.Endpoint.String()
		f.gateway.Pool = []string{s.ours.addr, s.theirs.addr}
		f.publishAndWait(w)
	}
	s.f = newFleet(t, l)
	return s
}

// body is a request's body, of which a half goes out before the plugin's end at
// some moments.
func (a *act) body() io.Reader {
	const whole = `{"model":"m","prompt":"the plugin dies","max_tokens":2}`
	r, w := io.Pipe()
	go func() {
		rest := whole
		if a.at == "body" {
			_, _ = io.WriteString(w, whole[:20])
			rest = whole[20:]
		}
		if a.at == "headers" || a.at == "body" {
			<-a.over
		}
		_, _ = io.WriteString(w, rest)
		_ = w.Close()
	}()
	return r
}

// play ends the plugin at a moment of a request that names an address, and returns
// what became of it, in words.
func (s *stage) play(at, named string, end func()) string {
	f := s.f
	a := s.set(at)
	ours, theirs := s.generations(s.ours), s.generations(s.theirs)
	begun, done := make(chan struct{}), make(chan struct{})
	before := s.messages()
	go func() {
		defer close(a.over)
		moment := a.reached
		switch at {
		case "before":
			return
		case "headers":
			f.await("the plugin to have the headers", func() bool { return f.metric("baton_streams_in_flight", `leg="main"`) == 1 })
		case "body":
			f.await("the plugin to have some of the body", func() bool { return s.messages() >= before+2 })
		case "answering":
			moment = begun
		}
		if at != "headers" && at != "body" {
			select {
			case <-moment:
			case <-done:
				f.t.Errorf("%s: the answer was there before", at)
				return
			}
		}
		end()
		s.settle()
	}()
	if at == "before" {
		end()
		<-a.over
	}
	r := s.stream(a.body(), begun, named)
	close(done)
	<-a.over
	out := fmt.Sprint(r.status)
	switch {
	case r.err != nil:
		out += fmt.Sprintf(" %q, cut", r.body)
	case r.status == http.StatusOK:
		out += fmt.Sprintf(" %q", r.body)
	}
	out += strings.Repeat(" ours", s.generations(s.ours)-ours) + strings.Repeat(" theirs", s.generations(s.theirs)-theirs)
	if s.canary.contacts.Load() > 0 {
		out += " CANARY"
	}
	return out
}

// generations is how many requests of clients a worker has had.
func (s *stage) generations(b *backend) (n int) {
	for _, r := range b.requests() {
		if r.header.Get("X-Who") != "" {
			n++
		}
	}
	return n
}

func (s *stage) stream(body io.Reader, begun chan struct{}, named string) *reply {
	ctx, cancel := context.WithTimeout(s.f.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.f.envoy.URL+"/v1/completions", body)
	require.NoError(s.f.t, err)
	req.Header.Set("X-Who", "a client")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(destination, named)
	return readThrough(req, begun)
}

// messages is how many messages Envoy has sent to plugins since it began.
func (s *stage) messages() int64 {
	var sum int64
	for _, prefix := range []string{"client", "main_leg"} {
		n, err := s.f.envoy.Stat(s.f.t.Context(), "http."+prefix+".ext_proc.stream_msgs_sent")
		if err == nil {
			sum += n
		}
	}
	return sum
}

// settle waits until Envoy has no stream to the plugin, and knows it.
func (s *stage) settle() {
	_ = stack.Await(s.f.t.Context(), "Envoy to know", func() bool {
		n, err := s.f.envoy.Stat(s.f.t.Context(), "cluster.extproc.upstream_rq_active")
		return err == nil && n == 0
	})
}

// again starts a new plugin, in which nothing is booked once it has served.
func (s *stage) again() {
	s.set("")
	s.f.again()
	s.f.checkIdle()
}

// TestAGatewaysPluginIsKilled at each moment of a request. It is what the protocol
// means by FailClose and FailOpen; with two legs there is no such difference.
func TestAGatewaysPluginIsKilled(t *testing.T) {
	t.Parallel()
	const cut, whole = `200 "one ", cut ours`, `200 "one two" ours`
	// Envoy finds at once that nobody listens: before the body's first byte has come, or after.
	const either = `500 | 200 "two" theirs`
	for _, c := range []struct {
		form string // failure mode or two legs, bodies
		want map[string]string
	}{
		{"FailClose full-duplex", map[string]string{
			"before": "500", "headers": "500", "body": "500", "counting": "500", "routed": "500 ours", "answering": cut,
		}},
		{"FailClose buffered", map[string]string{
			"before": "500", "headers": "500", "counting": "500", "routed": "500 ours", "answering": cut,
		}},
		{"FailOpen full-duplex", map[string]string{
			"before": either, "headers": `200 "two" theirs`, "body": "500", "counting": "500", "routed": "500 ours", "answering": cut,
		}},
		{"FailOpen buffered", map[string]string{
			"before": `200 "two" theirs`, "headers": `200 "two" theirs`, "counting": `200 "two" theirs`, "routed": `200 "two" ours`, "answering": whole,
		}},
		{"two legs full-duplex", map[string]string{
			"before": "503", "headers": "503", "body": "503", "counting": "503", "routed": "503 ours", "answering": cut,
		}},
		{"two legs buffered", map[string]string{
			"before": "503", "headers": "503", "counting": "503", "routed": `200 "two" ours`, "answering": whole,
		}},
	} {
		t.Run(c.form, func(t *testing.T) {
			t.Parallel()
			two := strings.HasPrefix(c.form, "two legs")
			s := newStage(t, envoy.GatewayParams{FailOpen: strings.HasPrefix(c.form, "FailOpen")}, two, strings.HasSuffix(c.form, "full-duplex"))
			for _, at := range []string{"before", "headers", "body", "counting", "routed", "answering"} {
				want, ok := c.want[at]
				if !ok {
					continue
				}
				kill := func() { require.NoError(t, s.f.plugin.Kill()) }
				wants := strings.Split(want, " | ")
				require.Contains(t, wants, s.play(at, s.theirs.addr, kill), at)
				s.again()
				if !strings.Contains(want, "theirs") {
					continue
				}
				// Open means open to the pool, wherever the client points.
				require.Contains(t, append(wants, `200 "two" ours`), s.play(at, s.canary.addr, kill), at)
				s.again()
			}
		})
	}
}
