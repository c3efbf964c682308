//go:build e2e

package envoytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
)

// The ways in which a picker's stream ends before its time.
const (
	killed   = "killed"   // its process
	failing  = "failing"  // an error of gRPC
	quitting = "quitting" // OK
)

// ending is when a stream ends, and what a worker waits for.
type ending struct {
	at      string
	once    sync.Once
	reached chan struct{} // the picker is there
	over    chan struct{} // Envoy knows that the stream has ended
	asked   chan struct{} // a worker has the request
}

// run ends the stream in its way at its moment.
func (m *ending) run(x *exchange, how, dest string) error {
	end := func() error {
		m.once.Do(func() { close(m.reached) }) // two legs have fresh attempts
		switch how {
		case killed:
			<-m.over
			return nil
		case failing:
			return errors.New("the picker fails")
		default:
			return nil
		}
	}
	if _, err := x.Recv(); err != nil || m.at == "headers" {
		return end()
	}
	if m.at == "body" {
		if _, err := x.Recv(); err != nil {
			return err
		}
		return end()
	}
	if x.buffered {
		if err := x.Send(passOnHeaders()); err != nil {
			return err
		}
	}
	body, trailers, err := x.takeRequest()
	if err != nil {
		return err
	}
	if m.at == "all" {
		return end()
	}
	if err := x.route(dest, body, trailers); err != nil {
		return err
	}
	<-m.asked
	if m.at == "routed" {
		return end()
	}
	if _, err := x.answer(); err != nil {
		return err
	}
	if !x.buffered {
		if _, err := x.answer(); err != nil {
			return err
		}
	}
	return end()
}

// outcome runs one request whose stream ends early, and says what became of it. The
// client names a worker of its own choosing, b.
func outcome(t *testing.T, p envoy.GatewayParams, twoLegs bool, how, at string) string {
	m := &ending{at: at, reached: make(chan struct{}), over: make(chan struct{}), asked: make(chan struct{}, 9)}
	begun := make(chan struct{}) // the client has the answer's first part
	worker := func(w http.ResponseWriter, _ *http.Request) {
		m.asked <- struct{}{}
		switch at {
		case "routed":
			<-m.over
		case "answering":
			_, _ = io.WriteString(w, "one ")
			_ = http.NewResponseController(w).Flush()
			<-m.over
		}
		_, _ = io.WriteString(w, "two")
	}
	a, b := newBackend(t, worker), newBackend(t, worker)
	p.Pool = []string{a.addr, b.addr}
	f := newFactsWith(t, p, twoLegs, func(x *exchange) error { return m.run(x, how, a.addr) })
	pr, pw := io.Pipe()
	go func() {
		if at == "headers" || at == "body" {
			if at == "body" {
				_, _ = io.WriteString(pw, "half ")
			}
			<-m.over
		}
		_, _ = io.WriteString(pw, "whole")
		_ = pw.Close()
	}()
	go func() {
		defer close(m.over)
		if at == "before" {
			f.picker.kill()
			return
		}
		<-m.reached
		if at == "answering" {
			<-begun
		}
		if how == killed {
			go f.picker.kill() // it waits for its streams
		}
		f.settle()
	}()
	if at == "before" {
		<-m.over
	}
	r := f.stream(pr, begun, destination, b.addr)
	s := fmt.Sprint(r.status)
	switch {
	case r.err != nil:
		s += fmt.Sprintf(" %q, cut", r.body)
	case r.status == http.StatusOK:
		s += fmt.Sprintf(" %q", r.body)
	}
	if n := len(a.requests()); n > 0 {
		s += strings.Repeat(" picked", n)
	}
	if n := len(b.requests()); n > 0 {
		s += strings.Repeat(" CLIENT'S", n)
	}
	return s
}

// TestAPickersEndEndsARequest is what FailClose and FailOpen mean on a real Envoy.
// Nobody's is a worker that the fallback has chosen.
func TestAPickersEndEndsARequest(t *testing.T) {
	t.Parallel()
	cut := `200 "one ", cut picked`
	whole := `200 "one two" picked`
	for _, c := range []struct {
		mode string // bodies, failure mode
		how  string
		want map[string]string // by moment
	}{
		{"full-duplex FailClose", killed, map[string]string{
			"before": "500", "headers": "500", "body": "500", "all": "500", "routed": "500 picked", "answering": cut,
		}},
		{"full-duplex FailClose", failing, map[string]string{
			"headers": "500", "body": "500", "all": "500", "routed": "500 picked", "answering": cut,
		}},
		// A stream that ends with OK is no failure: what the client named holds.
		{"full-duplex FailClose", quitting, map[string]string{
			"headers": `200 "two" CLIENT'S`, "body": `200 "two" CLIENT'S`, "all": `200 "two" CLIENT'S`,
			"routed": `200 "two" picked`, "answering": whole,
		}},
		// Once a part of the body has gone to the picker, there is nothing to go on with.
		{"full-duplex FailOpen", killed, map[string]string{
			"headers": `200 "two" CLIENT'S`, "body": "500", "all": "500", "routed": "500 picked", "answering": cut,
		}},
		{"full-duplex FailOpen", failing, map[string]string{
			"headers": `200 "two" CLIENT'S`, "body": "500", "all": "500", "routed": "500 picked", "answering": cut,
		}},
		{"buffered FailClose", killed, map[string]string{
			"before": "500", "headers": "500", "all": "500", "routed": "500 picked", "answering": cut,
		}},
		{"buffered FailClose", quitting, map[string]string{
			"headers": `200 "two" CLIENT'S`, "all": `200 "two" CLIENT'S`, "routed": `200 "two" picked`, "answering": whole,
		}},
		{"buffered FailOpen", killed, map[string]string{
			"before": `200 "two" CLIENT'S`, "headers": `200 "two" CLIENT'S`, "all": `200 "two" CLIENT'S`,
			"routed": `200 "two" picked`, "answering": whole,
		}},
	} {
		for at, want := range c.want {
			t.Run(strings.Join([]string{c.mode, c.how, at}, " "), func(t *testing.T) {
				t.Parallel()
				p := envoy.GatewayParams{Buffered: strings.HasPrefix(c.mode, "buffered"), FailOpen: strings.HasSuffix(c.mode, "FailOpen")}
				require.Equal(t, want, outcome(t, p, false, c.how, at))
			})
		}
	}
}

// TestWithTwoLegsNobodyGoesWhereTheClientSays: the destination is stripped at the
// edge and exact, so no end of a stream and no failure mode opens anything.
func TestWithTwoLegsNobodyGoesWhereTheClientSays(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		for _, open := range []bool{false, true} {
			for _, how := range []string{killed, quitting} {
				for _, at := range []string{"before", "headers", "all"} {
					t.Run(fmt.Sprintf("fail open %v, %s, %s", open, how, at), func(t *testing.T) {
						t.Parallel()
						p := p
						p.FailOpen = open
						require.Equal(t, "503", outcome(t, p, true, how, at))
					})
				}
			}
		}
	})
}

// TestAFailOpenPoolServesWithoutAPickerWhatHasNoBody, in full duplex: a body that
// comes with its headers is on its way to the picker before anybody knows.
func TestAFailOpenPoolServesWithoutAPickerWhatHasNoBody(t *testing.T) {
	t.Parallel()
	a := newBackend(t, nil)
	f := newFacts(t, envoy.GatewayParams{FailOpen: true, Pool: []string{a.addr}}, func(x *exchange) error { return x.serve(a.addr) })
	f.picker.kill()
	require.Equal(t, a.addr, f.sendBody(http.MethodGet, nil).body)
	require.Equal(t, a.addr, f.sendBody(http.MethodPost, http.NoBody).body)
	require.Equal(t, http.StatusInternalServerError, f.send(1).status)
}

// TestALeftAnswerLosesWhatIsOnItsWay: a picker that ends its stream with OK while a
// part of the answer is with it has dropped that part, and nobody is told. With the
// answer's end the client waits for ever. So in full duplex no stream is left once
// the answer has begun, and it may have begun before the picker knows.
func TestALeftAnswerLosesWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unanswered string // the frame that came and got no answer
		want       string
	}{
		{"headers", "one two "},
		{"first", "two "},
		{"whole", ""},
	} {
		t.Run(c.unanswered, func(t *testing.T) {
			t.Parallel()
			over, answered := make(chan struct{}), make(chan struct{})
			a := newBackend(t, func(w http.ResponseWriter, _ *http.Request) {
				flush := func(when string) {
					if c.unanswered == when {
						_ = http.NewResponseController(w).Flush()
						<-over
					}
				}
				if c.unanswered != "whole" {
					_ = http.NewResponseController(w).Flush()
				}
				flush("headers")
				_, _ = io.WriteString(w, "one ")
				flush("first")
				_, _ = io.WriteString(w, "two ")
			})
			f := newFacts(t, envoy.GatewayParams{Pool: []string{a.addr}}, func(x *exchange) error {
				body, trailers, err := x.takeRequest()
				if err == nil {
					err = x.route(a.addr, body, trailers)
				}
				if err == nil && c.unanswered != "headers" {
					_, err = x.answer()
				}
				if err == nil {
					_, err = x.Recv()
				}
				close(answered)
				return err
			})
			go func() {
				defer close(over)
				<-answered
				f.settle()
			}()
			r := f.send(1)
			require.NoError(t, r.err, "nobody is told")
			require.Equal(t, http.StatusOK, r.status)
			require.Equal(t, c.want, r.body)
		})
	}
}

// TestALeftAnswersEndNeverComes, where the picker had it and did not answer: the
// request stays open in Envoy, though it has no stream any more. Envoy ended it
// before 1.38.
func TestALeftAnswersEndNeverComes(t *testing.T) {
	t.Parallel()
	a := newBackend(t, nil)
	var leave sync.Once
	f := newFacts(t, envoy.GatewayParams{Pool: []string{a.addr}}, func(x *exchange) error {
		left := false
		leave.Do(func() { left = true })
		if !left {
			return x.serve(a.addr)
		}
		body, trailers, err := x.takeRequest()
		if err == nil {
			err = x.route(a.addr, body, trailers)
		}
		for err == nil {
			var r *extprocv3.ProcessingRequest
			if r, err = x.Recv(); err == nil && r.GetResponseBody().GetEndOfStream() {
				return nil
			}
			if err == nil {
				err = x.Send(passOn(r))
			}
		}
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.envoy.URL, strings.NewReader("x"))
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	got := make([]byte, len(a.addr))
	_, err = io.ReadFull(resp.Body, got)
	require.NoError(t, err)
	require.Equal(t, a.addr, string(got))
	f.settle()
	require.Equal(t, a.addr, f.send(1).body, "another, in the same worker thread, comes and goes")
	n, err := f.envoy.Stat(t.Context(), "http.client.downstream_rq_active")
	require.NoError(t, err)
	if envoyMinor() < 38 {
		require.Zero(t, n)
		cancel()
		return
	}
	require.EqualValues(t, 1, n)
	cancel()
	_, err = resp.Body.Read(got)
	require.ErrorIs(t, err, context.Canceled)
}
