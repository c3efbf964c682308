//go:build e2e

package envoytest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
)

// refuse answers in place of a worker, and waits for the stream's end.
func (x *exchange) refuse() error {
	err := x.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable}, Body: []byte("no"),
			Headers: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{option("x-reason", "full")}},
		},
	}})
	for err == nil {
		_, err = x.Recv()
	}
	return nil
}

// TestAPickerMayAnswerItself at any moment before the answer has begun for the
// client: after that it is cut. A worker that has the request loses it.
func TestAPickerMayAnswerItself(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		for _, at := range []string{"headers", "all", "routed", "response", "answering"} {
			t.Run(at, func(t *testing.T) {
				asked, begun := make(chan struct{}), make(chan struct{})
				a := newBackend(t, func(w http.ResponseWriter, r *http.Request) {
					close(asked)
					if at == "routed" {
						<-r.Context().Done()
						return
					}
					_, _ = io.WriteString(w, "one ")
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
				})
				p.Pool = []string{a.addr}
				f := newFacts(t, p, func(x *exchange) error {
					if at == "headers" {
						if _, err := x.Recv(); err != nil {
							return err
						}
						return x.refuse()
					}
					body, trailers, err := x.takeRequest()
					if err != nil || at == "all" {
						return x.refuse()
					}
					if err := x.route(a.addr, body, trailers); err != nil {
						return err
					}
					<-asked
					if at == "routed" {
						return x.refuse()
					}
					r, err := x.Recv()
					if err != nil || at == "response" {
						return x.refuse()
					}
					if err := x.Send(passOn(r)); err != nil {
						return err
					}
					if !p.Buffered {
						if _, err := x.answer(); err != nil {
							return err
						}
					}
					<-begun
					return x.refuse()
				})
				r := f.stream(strings.NewReader("whole"), begun)
				if at == "answering" {
					require.Equal(t, http.StatusOK, r.status)
					require.Equal(t, "one ", r.body)
					require.Error(t, r.err, "cut")
					return
				}
				require.NoError(t, r.err)
				require.Equal(t, http.StatusServiceUnavailable, r.status)
				require.Equal(t, "no", r.body)
				require.Equal(t, "full", r.header.Get("x-reason"))
			})
		}
	})
}

// TestACutStreamEndsWithAnErrorEvent where the plugin stands in the answer: a client of
// a gateway with one leg, whose deadline is the plugin's to keep, reads why it ended.
func TestACutStreamEndsWithAnErrorEvent(t *testing.T) {
	t.Parallel()
	l := layout{aggregated: 1, fullDuplex: true, gateway: new(envoy.GatewayParams), config: pickerConfig, simArgs: []string{"--decode-us-per-token", "100000"}}
	f := newFleet(t, l)
	r := f.send(t.Context(), "/v1/chat/completions", chat("too long for its deadline", 200, true), "x-request-timeout-ms", "1500")
	require.NoError(t, r.err, "it ends in order")
	require.Equal(t, http.StatusOK, r.status)
	require.NotEmpty(t, r.text())
	events := strings.Split(strings.TrimSpace(r.body), "\n\n")
	require.JSONEq(t, `{"error":{"message":"The request did not finish before its deadline.","type":"timeout_error","param":null,"code":"deadline_exceeded"}}`,
		strings.TrimPrefix(events[len(events)-1], "data: "))
	f.awaitOutcomes(1, "cut", `code="deadline_exceeded"`)
	f.await("the worker to hear of it", func() bool { s, _ := f.state(f.workers[0]); return s.Running == 0 })
}
