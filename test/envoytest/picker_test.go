//go:build e2e

package envoytest

import (
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// refusingPicker is another picker that lets nobody through, with the status that
// it is told.
type refusingPicker struct {
	extprocv3.UnimplementedExternalProcessorServer
	status, asked atomic.Int64
}

func (p *refusingPicker) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	p.asked.Add(1)
	if _, err := s.Recv(); err != nil {
		return nil //nolint:nilerr // the stream's end is no fault
	}
	return s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode(p.status.Load())}, Body: []byte("the picker says no"), Details: "picker",
	}}})
}

// TestWhatAnotherPickerRefusesReachesTheClientAsItSaidIt, whatever the status: those
// of which Envoy's configuration has words of its own, too.
func TestWhatAnotherPickerRefusesReachesTheClientAsItSaidIt(t *testing.T) {
	t.Parallel()
	bodyModes(t, layout{prefill: 1, decode: 1, noCheck: true}, func(t *testing.T, l layout) {
		p, port, end := newRefusingPicker(t)
		l.envoy.PickerPort = port
		f := newFleet(t, l)
		for _, status := range []int64{400, 403, 408, 413, 429, 500, 502, 503, 504, 511} {
			p.status.Store(status)
			p.asked.Store(0)
			r := f.send(t.Context(), "/v1/completions", completion("hi", 2, false))
			require.Equal(t, strconv.FormatInt(status, 10)+" the picker says no", strconv.Itoa(r.status)+" "+r.body)
			require.EqualValues(t, 1, p.asked.Load(), status)
		}
		require.Empty(t, f.gotAll(f.workers))
		end()
		requireError(t, f.send(t.Context(), "/v1/completions", completion("hi", 2, false)), http.StatusServiceUnavailable, "router_unavailable")
	})
}

// newRefusingPicker serves one, at a port of its own, until end is called or the test
// has ended.
func newRefusingPicker(t *testing.T) (p *refusingPicker, port int, end func()) {
	t.Helper()
	l := listen(t)
	p = &refusingPicker{}
	g := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(g, p)
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(l) }()
	end = func() { g.Stop(); <-served }
	t.Cleanup(end)
	return p, l.Addr().(*net.TCPAddr).Port, end
}
