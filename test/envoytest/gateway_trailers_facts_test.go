//go:build e2e

package envoytest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
)

// clientWithTrailers speaks HTTP/2 without TLS, whose requests may end with trailers.
func clientWithTrailers(t *testing.T) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: protocols}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// withTrailers is a request whose body ends with trailers.
func withTrailers(t *testing.T, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.MultiReader(strings.NewReader(body)))
	require.NoError(t, err)
	req.Trailer = http.Header{"X-Sum": {"of the body"}}
	return req
}

// TestABodyThatTrailersEnd comes without an end of its own: in full duplex the trailers
// are a frame, buffered nothing follows the body, which is whole.
func TestABodyThatTrailersEnd(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		a := newBackend(t, nil)
		p.Pool = []string{a.addr}
		f := newFacts(t, p, func(x *exchange) error {
			if !p.Buffered {
				return x.serve(a.addr)
			}
			for range 2 { // headers, body
				r, err := x.Recv()
				if err != nil {
					return err
				}
				if r.GetRequestHeaders() != nil {
					err = x.Send(passOnHeaders())
				} else {
					err = x.route(a.addr, nil, false)
				}
				if err != nil {
					return err
				}
			}
			_, err := x.answer()
			return err
		})
		r := roundTrip(clientWithTrailers(t), withTrailers(t, f.envoy.URL+"/v1/completions", strings.Repeat("x", 1000)))
		require.NoError(t, r.err)
		require.Equal(t, a.addr, r.body)
		seen := f.picker.last().seen()
		require.Equal(t, "RequestHeaders", seen[0])
		require.Equal(t, "RequestBody 1000", seen[1])
		// Envoy's own fault: the worker gets it twice, though the picker has sent it once.
		require.Equal(t, map[bool]int{true: 1000, false: 2000}[p.Buffered], a.requests()[0].body)
	})
}
