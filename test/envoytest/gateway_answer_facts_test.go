//go:build e2e

package envoytest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
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
// a gateway reads why it ended, be it with one leg or two, by its deadline or by a prefill
// that fails once the answer has begun.
func TestACutStreamEndsWithAnErrorEvent(t *testing.T) {
	t.Parallel()
	slow := []string{"--decode-us-per-token", "100000"}
	one := layout{aggregated: 1, config: pickerConfig, simArgs: slow}
	two := layout{prefill: 1, decode: 1, twoLegs: true, decodeArgs: slow}
	early := two
	early.config = "prefill: {hold_response: false}\nanswer: {first_token: off}\n"
	const late = `{"message":"The request did not finish before its deadline.","type":"timeout_error","param":null,"code":"deadline_exceeded"}`
	for _, c := range []struct {
		name, code, is string
		l              layout
		fault          func(*fleet)
	}{
		{"one leg, its deadline", "deadline_exceeded", late, one, nil},
		{"two legs that meet, its deadline", "deadline_exceeded", late, layoutOf(two, worker.SGLang), nil},
		{"prefill first, its deadline", "deadline_exceeded", late, layoutOf(two, worker.VLLM), nil},
		{
			"prefill fails", "prefill_failed", `{"message":"The prefill worker failed; try again.","type":"service_unavailable_error","param":null,"code":"prefill_failed"}`,
			layoutOf(early, worker.SGLang), func(f *fleet) {
				f.fault(f.decode[0], enginesim.Fault{Mode: enginesim.FaultHang, When: enginesim.Begun}) // its head, and an event with a role
				f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, DelayMS: 500})
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.l.fullDuplex, c.l.gateway = true, new(envoy.GatewayParams)
			f := newFleet(t, c.l)
			if c.fault != nil {
				c.fault(f)
			}
			r := f.send(t.Context(), "/v1/chat/completions", chat("too long for its deadline", 200, true), "x-request-timeout-ms", "1500")
			require.NoError(t, r.err, "it ends in order")
			require.Equal(t, http.StatusOK, r.status)
			require.Equal(t, c.fault == nil, r.text() != "")
			events := strings.Split(strings.TrimSpace(r.body), "\n\n")
			require.JSONEq(t, `{"error":`+c.is+`}`, strings.TrimPrefix(events[len(events)-1], "data: "))
			require.Equal(t, 1, strings.Count(r.body, `"error"`))
			f.awaitOutcomes(1, "cut", fmt.Sprintf("code=%q", c.code))
			f.await("the workers to hear of it", func() bool { return f.running(f.workers) == 0 })
		})
	}
}
