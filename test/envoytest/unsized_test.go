//go:build e2e

package envoytest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestABodyOfUnknownSizeIsRefusedWhileItComes: it has no content-length and no end, so
// whoever waits for it to be whole never says a word.
func TestABodyOfUnknownSizeIsRefusedWhileItComes(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, config: "request: {max_bodies_bytes: 8388608}\n"}, func(t *testing.T, f *fleet) {
		inFlight := func(n float64) {
			t.Helper()
			f.await("what is in flight", func() bool { return f.metric("baton_body_bytes_in_flight") == n })
		}
		// begin sends the beginning of a body and no end.
		begin := func(n int) *reply {
			body, w := io.Pipe()
			defer w.Close()
			go func() {
				_, _ = io.WriteString(w, `{"model":"m","prompt":"`+strings.Repeat("x", n)) // fails once it is refused
			}()
			return f.sendFrom(t.Context(), "/v1/completions", body)
		}
		// announce says how long a body is, and sends none of it. The request ends with end.
		announce := func(n int) (r chan *reply, end func()) {
			body, w := io.Pipe()
			r = make(chan *reply, 1)
			go func() { r <- f.sendFrom(t.Context(), "/v1/completions", &sizedBody{body, n}) }()
			return r, func() { _ = w.Close() }
		}
		held, end := announce(2 << 20)
		inFlight(2 << 20)
		r := begin(5 << 20)
		require.NoError(t, r.err)
		require.Equal(t, 503, r.status, r.body)
		require.Contains(t, r.body, `"bodies_full"`)
		require.Regexp(t, `^([5-9]|1[0-4])$`, r.header.Get("Retry-After"))
		inFlight(2 << 20) // its bytes are given back
		end()
		require.Error(t, (<-held).err)
		inFlight(0)

		// There is room for so much of it, and for more than that never.
		whole := completion("of unknown size", 2, false)
		whole = strings.TrimSuffix(whole, "}") + `,"user":"` + strings.Repeat("x", 5<<20) + `"}`
		requireAnswer(t, f.sendFrom(t.Context(), "/v1/completions", io.MultiReader(strings.NewReader(whole))), "of unknown size", 2)
		inFlight(0)
		r = begin(7 << 20)
		requireError(t, r, http.StatusRequestEntityTooLarge, "body_too_large")
		require.Empty(t, r.header.Get("Retry-After"))
		said, end := announce(6<<20 + 1)
		requireError(t, <-said, http.StatusRequestEntityTooLarge, "body_too_large")
		end()
		inFlight(0)
	})
}

// TestALargeBodyIsReadAsItComes also where Envoy buffers the others: a whole one as one message
// takes tens of milliseconds of an Envoy thread, in which no other request of it goes on.
func TestALargeBodyIsReadAsItComes(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]envoy.Params{"sent": {}, "mirrored": mirrors} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bodyModes(t, layout{prefill: 1, decode: 1, envoy: own}, func(t *testing.T, l layout) { newFleet(t, l).readsLargeBodies(!own.Mirrors) })
		})
	}
}

func (f *fleet) readsLargeBodies(sent bool) {
	t := f.t
	for _, size := range []int{4 << 20, 4<<20 + 1} {
		f.forget()
		requireAnswer(t, f.send(t.Context(), "/v1/completions", paddedCompletion(size)), "hello padded world", 3)
		prefill, decode := f.legs()
		whole := !f.fullDuplex && size <= 4<<20
		for leg, q := range map[string]enginesim.Request{"prefill": prefill, "decode": decode} {
			sized := whole || sent && leg == "prefill" // the plugin knows the size of what it sends
			require.Equal(t, sized, q.Headers.Get("Content-Length") != "", "%s, %d bytes: what is read as it comes goes on in chunks", leg, size)
			require.Greater(t, q.BodyBytes, size, leg)
		}
	}
}
