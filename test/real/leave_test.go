//go:build real

package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// pairs are the engines that serve apart.
var pairs = map[string][2]string{vllm: {"vllm-p1", "vllm-d1"}, sglang: {"sglang-p1", "sglang-d1"}}

// point is a moment of a request that is served apart, told by what has happened and not
// by a time.
type point struct {
	what    string
	stream  bool
	half    bool        // of the body has been sent, and no more comes
	stopped worker.Role // of the engine that does nothing from before the request on
	at      worker.Role // of the engine that has the request in hand
	started bool        // the prefill leg, as the plugin counts it
	served  worker.Role // of the engine that has answered its part
	events  int         // that have been read of the stream
}

const (
	asked     = "prefill has it and does nothing"
	forDecode = "decode has it and does nothing"
	computes  = "decode computes"
)

// points are ten moments. Where prefill goes first it has answered before decode is asked;
// else it waits for decode.
func points(engine string) []point {
	atDecode := point{what: forDecode, stopped: worker.Decode, served: worker.Prefill}
	if engine == sglang {
		atDecode = point{what: forDecode, stopped: worker.Decode, at: worker.Prefill}
	}
	atPrefill := point{what: asked, stopped: worker.Prefill, started: true}
	streamed := func(p point) point {
		p.what, p.stream = p.what+", streamed", true
		return p
	}
	return []point{
		{what: "half of its body is sent", half: true},
		atPrefill, streamed(atPrefill), atDecode, streamed(atDecode),
		{what: computes, at: worker.Decode},
		{what: "its head has come", stream: true},
		{what: "its first token has come", stream: true, events: 1},
		{what: "ten tokens have come", stream: true, events: 10},
		{what: "a hundred tokens have come", stream: true, events: 100},
	}
}

// of returns the scene's engine of a role.
func (s *scene) of(role worker.Role) *Engine {
	for _, e := range s.engines {
		if e.Role == role {
			return e
		}
	}
	s.t.Fatalf("no engine is %s", role)
	return nil
}

// busy reports whether an engine has a request in hand.
func (s *scene) busy(e *Engine) bool {
	if e.Kind == worker.SGLang {
		return inHand(e) > 0
	}
	return s.counted(e, "vllm:num_requests_running") > 0
}

// progress is what grows when a request comes to the point.
func (s *scene) progress(p *point) float64 {
	switch {
	case p.started:
		return s.metric("baton_prefill_legs_total", `outcome="started"`)
	case p.served != 0:
		return s.counted(s.of(p.served), "vllm:request_success_total")
	}
	return 0
}

// sent is a request that has come to a point.
type sent struct {
	leave func()
	head  *http.Response // of a stream that has been read from
	rest  *bufio.Reader  // of that stream
	over  chan *answer   // of any other, when it is over
}

// sendTo sends a request and returns once it has come to the point.
func (s *scene) sendTo(p *point, body fields) *sent {
	s.t.Helper()
	before := s.progress(p)
	if p.stopped != 0 {
		require.NoError(s.t, s.of(p.stopped).Pause())
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	in, out := io.Pipe()
	r, heads := &sent{over: make(chan *answer, 1)}, make(chan *http.Response, 1)
	r.leave = func() {
		cancel()
		_ = out.CloseWithError(context.Canceled) // Go's client waits for the body
	}
	body["stream"] = p.stream
	b, err := json.Marshal(body)
	require.NoError(s.t, err)
	go s.begin(ctx, in, p.stream && p.stopped == 0, heads, r.over)
	if p.half {
		b = append(b[:len(b)/2], bytes.Repeat([]byte(" "), 16<<10)...) // Go's client keeps back the last 4 KiB
	}
	_, err = out.Write(b)
	require.NoError(s.t, err)
	if !p.half {
		require.NoError(s.t, out.Close())
	}
	switch {
	case p.half:
		s.await(p.what, func() bool { return s.metric("baton_streams_in_flight") > 0 })
	case p.started, p.served != 0:
		s.await(p.what, func() bool { return s.progress(p) > before })
	case p.at != 0:
		s.await(p.what, func() bool { return s.busy(s.of(p.at)) })
	default:
		r.head = <-heads
		require.NotNil(s.t, r.head, "the head of a stream")
		r.rest = bufio.NewReader(r.head.Body)
		readEvents(s.t, r.rest, p.events)
	}
	return r
}

// begin sends a request. It hands over the head of the answer where that is asked for, or
// reads all of it; status 0 is none.
func (s *scene) begin(ctx context.Context, body io.Reader, headOnly bool, heads chan<- *http.Response, over chan<- *answer) {
	a := &answer{}
	defer func() { over <- a }()
	defer close(heads)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.envoy.URL+"/v1/completions", body)
	if err != nil {
		return
	}
	req.Header.Set("content-type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	if headOnly && resp.StatusCode == http.StatusOK {
		heads <- resp
		return
	}
	defer resp.Body.Close()
	if all, err := io.ReadAll(resp.Body); err == nil {
		a.status, a.header, a.body = resp.StatusCode, resp.Header, string(all)
	}
}

// readEvents reads so many events of a stream.
func readEvents(t *testing.T, lines *bufio.Reader, events int) {
	t.Helper()
	for events > 0 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err, "%d events are to come", events)
		if strings.HasPrefix(line, "data: {") {
			events--
		}
	}
}

// patient is Baton's configuration where an engine is stopped for as long as a test takes to
// see that a request has come to it, and no client is to be answered meanwhile.
const patient = "prefill: {orphan_grace: 2s, overdue_base: 1m}\n"

// settled waits until nothing of any request is left, in the engines and in the plugin.
func (s *scene) settled() {
	s.t.Helper()
	if s.engines[0].Kind == worker.SGLang {
		s.quiet(s.engines...)
	} else {
		s.idle()
	}
	s.await("nothing to be booked", func() bool {
		m, err := s.plugin.Metrics(s.t.Context())
		return err == nil && m.Booked() == ""
	})
}

// TestApartWhenClientsLeave: at ten points of a request. Nothing is left after any of them.
func TestApartWhenClientsLeave(t *testing.T) {
	for engine, names := range pairs {
		t.Run(engine, func(t *testing.T) {
			s := newScene(t, patient, names[0], names[1])
			before := s.sums(worker.Prefill, "vllm:nixl_num_kv_expired_reqs_total")
			for i, p := range points(engine) {
				t.Log(p.what)
				r := s.sendTo(&p, fields{"model": "tiny", "prompt": words(uint64(500+i), 400), "max_tokens": 3000, "ignore_eos": true})
				r.leave()
				if r.head != nil {
					require.NoError(t, r.head.Body.Close())
				}
				require.Zero(t, (<-r.over).status, "it is answered before its client leaves")
				s.await("the plugin to count that the client has left", func() bool {
					return s.metric("baton_requests_total", `outcome="client_left"`) == float64(i+1)
				})
				if p.stopped != 0 {
					require.NoError(t, s.of(p.stopped).Resume())
				}
				s.settled()
				require.Zero(t, s.metric("baton_aside_transitions_total", `to="aside"`), "a client has a worker set aside")
			}
			held := "neither half has anything left"
			if engine == vllm {
				require.Equal(t, before, s.sums(worker.Prefill, "vllm:nixl_num_kv_expired_reqs_total"), "a decode takes what prefill holds")
				held = "no KV is held, none had to expire"
			}
			tellf(t, engine, "apart: clients that leave at ten points", "after each no request runs, %s, nothing is booked, no worker is set aside", held)
		})
	}
}
