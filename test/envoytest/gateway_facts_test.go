//go:build e2e

package envoytest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/stack"
)

// What Envoy does in a Gateway API's data plane, whoever picks: what the plugin
// relies on there, and what it must not rely on.

// bothBodies runs a test for both ways in which bodies reach a picker.
func bothBodies(t *testing.T, f func(t *testing.T, p envoy.GatewayParams)) {
	t.Helper()
	for _, buffered := range []bool{false, true} {
		name := "full-duplex"
		if buffered {
			name = "buffered"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, envoy.GatewayParams{Buffered: buffered})
		})
	}
}

// unused returns an address that refuses connections.
func unused(t *testing.T) string {
	t.Helper()
	p, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", p[0])
}

// TestOverwrittenDestinationsAreTheClientsNoMore: the plugin sees each of them,
// and one OVERWRITE_IF_EXISTS_OR_ADD replaces all.
func TestOverwrittenDestinationsAreTheClientsNoMore(t *testing.T) {
	t.Parallel()
	for _, original := range []bool{false, true} {
		bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
			a, b := newBackend(t, nil), newBackend(t, nil)
			p.OriginalDst, p.Pool = original, []string{a.addr, b.addr}
			f := newFacts(t, p, func(x *exchange) error { return x.serve(a.addr) })
			r := f.send(10, destination, b.addr, destination, "192.0.2.1:80", strings.ToUpper(destination), b.addr+","+b.addr)
			require.NoError(t, r.err)
			require.Equal(t, a.addr, r.body)
			require.Empty(t, b.requests())
			require.Equal(t, []string{a.addr}, a.requests()[0].header.Values(destination))
			asked := f.picker.last().taken()[0].GetRequestHeaders().Headers
			require.Equal(t, []string{b.addr, "192.0.2.1:80", b.addr + "," + b.addr}, headerValues(asked, destination))
		})
	}
}

// told is what the response headers say of who served.
func (f *facts) told() (metadata, attribute string) {
	f.t.Helper()
	f.await("the response headers", func() bool { return f.picker.last().frame(isResponseHeaders) != nil })
	r := f.picker.last().frame(isResponseHeaders)
	return r.GetMetadataContext().GetFilterMetadata()["envoy.lb"].GetFields()[served].GetStringValue(),
		r.GetAttributes()["envoy.filters.http.ext_proc"].GetFields()["upstream.address"].GetStringValue()
}

// TestTheResponseSaysWhoServed: after a retry or a fallback it is the last who
// was tried. An answer of Envoy's own names one who was tried, not one who served.
func TestTheResponseSaysWhoServed(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		a, b, dead := newBackend(t, nil), newBackend(t, nil), unused(t)
		p.Pool = []string{a.addr, b.addr, dead}
		var dest atomic.Pointer[string]
		f := newFacts(t, p, func(x *exchange) error { return x.serve(*dest.Load()) })
		for _, c := range []struct{ name, dest, by string }{
			{"one", a.addr, a.addr},
			{"the first of a list", a.addr + "," + b.addr, a.addr},
			{"the second, where the first refuses", dead + "," + b.addr, b.addr},
			{"spaces are no part of it", dead + ", " + b.addr, b.addr},
			{"one who is not of the pool is left out", "192.0.2.1:80," + b.addr, b.addr},
			{"nobody of the list: the fallback", "192.0.2.1:80", ""},
			{"no more of the list: the fallback", dead, ""},
			{"no address at all: the fallback", "nonsense", ""},
		} {
			dest.Store(&c.dest)
			r := f.send(10)
			require.NoError(t, r.err, c.name)
			metadata, attribute := f.told()
			if c.by != "" {
				require.Equal(t, c.by, r.body, c.name)
			} else {
				require.Contains(t, []string{a.addr, b.addr}, r.body, c.name)
			}
			require.Equal(t, r.body, attribute, c.name)
			if saysServed() {
				require.Equal(t, r.body, metadata, c.name)
			}
		}
	})
}

// showsOwnReplies: Envoy 1.36 does not show a picker what its router answers itself.
func showsOwnReplies() bool { return envoyMinor() >= 37 }

func (f *facts) requireNotShown() {
	f.t.Helper()
	f.settle()
	require.Nil(f.t, f.picker.last().frame(isResponseHeaders))
}

func TestARefusedConnectionHasAnAddressToo(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		for _, p.OriginalDst = range []bool{false, true} {
			dead := unused(t)
			p.Pool = []string{dead}
			f := newFacts(t, p, func(x *exchange) error { return x.serve(dead) })
			r := f.send(10)
			require.Equal(t, http.StatusServiceUnavailable, r.status)
			if !showsOwnReplies() {
				f.requireNotShown()
				continue
			}
			metadata, attribute := f.told()
			require.Equal(t, dead, attribute, "the one who was tried")
			if p.OriginalDst {
				require.Empty(t, metadata)
			} else if saysServed() {
				require.Equal(t, dead, metadata)
			}
		}
	})
}

// TestAnExactDestinationTakesNoList: ORIGINAL_DST refuses it, and nobody is tried.
func TestAnExactDestinationTakesNoList(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		a, b := newBackend(t, nil), newBackend(t, nil)
		p.OriginalDst = true
		f := newFacts(t, p, func(x *exchange) error { return x.serve(a.addr + "," + b.addr) })
		r := f.send(10)
		require.Equal(t, http.StatusServiceUnavailable, r.status)
		require.Equal(t, "no healthy upstream", r.body)
		require.Empty(t, append(a.requests(), b.requests()...))
		if !showsOwnReplies() {
			f.requireNotShown()
			return
		}
		metadata, attribute := f.told()
		require.Empty(t, metadata)
		require.Empty(t, attribute)
	})
}

// TestARequestWithoutABodyIsItsHeaders: one frame, and its answer routes it.
func TestARequestWithoutABodyIsItsHeaders(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		a := newBackend(t, nil)
		p.Pool = []string{a.addr}
		f := newFacts(t, p, func(x *exchange) error { return x.serve(a.addr) })
		for _, method := range []string{http.MethodGet, http.MethodPost} { // POST has content-length: 0
			r := f.sendBody(method, http.NoBody)
			require.NoError(t, r.err)
			require.Equal(t, a.addr, r.body)
			require.Equal(t, []string{"RequestHeaders end", "ResponseHeaders"}, f.picker.last().seen()[:2])
		}
	})
}

// TestBodiesArriveWholeWithOneEnd, in full duplex the end in a frame of its own
// and content-length gone, both ways.
func TestBodiesArriveWholeWithOneEnd(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		a := newBackend(t, nil)
		p.Pool = []string{a.addr}
		f := newFacts(t, p, func(x *exchange) error { return x.serve(a.addr) })
		for _, n := range []int{1, 62_000, 62_001, 10_000_000} {
			for _, chunked := range []bool{false, true} {
				var body io.Reader = strings.NewReader(strings.Repeat("x", n))
				if chunked {
					body = struct{ io.Reader }{body}
				}
				r := f.sendBody(http.MethodPost, body)
				require.NoError(t, r.err)
				require.Equal(t, a.addr, r.body)
				got := a.requests()
				require.Equal(t, n, got[len(got)-1].body)
				x := f.picker.last()
				f.await("the stream to end", func() bool {
					x.mu.Lock()
					defer x.mu.Unlock()
					return x.ended != nil
				})
				requireOneEnd(t, p.Buffered, n, x)
				require.Equal(t, p.Buffered && !chunked, got[len(got)-1].header.Get("Content-Length") != "")
				require.Equal(t, p.Buffered, r.header.Get("Content-Length") != "")
			}
		}
	})
}

func requireOneEnd(t *testing.T, buffered bool, n int, x *exchange) {
	t.Helper()
	ends, bytes, frames := 0, 0, 0
	for _, r := range x.taken() {
		b := r.GetRequestBody()
		if b == nil {
			continue
		}
		require.Zero(t, ends, "a frame after the end: %v", x.seen())
		frames++
		bytes += len(b.Body)
		if b.EndOfStream {
			ends++
			if !buffered {
				require.Empty(t, b.Body)
			}
		}
	}
	require.Equal(t, 1, ends)
	require.Equal(t, n, bytes)
	if buffered {
		require.Equal(t, 1, frames)
	}
}

// TestEnvoyNamesEachRequest: the picker sees x-request-id, and a client's own name
// for it is not taken where Envoy is the edge.
func TestEnvoyNamesEachRequest(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		a := newBackend(t, nil)
		p.Pool = []string{a.addr}
		f := newFacts(t, p, func(x *exchange) error { return x.serve(a.addr) })
		require.NoError(t, f.send(10, "x-request-id", "the client's").err)
		seen := headerValues(f.picker.last().taken()[0].GetRequestHeaders().Headers, "x-request-id")
		require.Len(t, seen, 1)
		require.Len(t, seen[0], 36)
		require.Equal(t, seen, a.requests()[0].header.Values("x-request-id"))
	})
}

// TestTheRouteNeedsNotBeChosenAnew: the destination is read when a host is chosen,
// so clear_route_cache changes nothing where no route looks at it.
func TestTheRouteNeedsNotBeChosenAnew(t *testing.T) {
	t.Parallel()
	bothBodies(t, func(t *testing.T, p envoy.GatewayParams) {
		for _, p.OriginalDst = range []bool{false, true} {
			a, b := newBackend(t, nil), newBackend(t, nil)
			p.Pool = []string{a.addr, b.addr}
			var anew atomic.Bool
			f := newFacts(t, p, func(x *exchange) error {
				x.anew = anew.Load()
				return x.serve(b.addr)
			})
			for _, v := range []bool{false, true} {
				anew.Store(v)
				for range 3 { // the fallback would go round
					r := f.send(10)
					require.NoError(t, r.err)
					require.Equal(t, b.addr, r.body)
				}
			}
			require.Empty(t, a.requests())
		}
	})
}
