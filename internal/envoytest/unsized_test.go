//go:build e2e

package envoytest

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestABodyOfUnknownSizeIsRefusedWhileItComes: it has no content-length and no end, so
// whoever waits for it to be whole never says a word.
func TestABodyOfUnknownSizeIsRefusedWhileItComes(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, config: "request: {max_bodies_bytes: 8388608}\n"}, func(t *testing.T, f *fleet) {
		body, w := io.Pipe()
		defer w.Close()
		go func() {
			_, _ = io.WriteString(w, `{"model":"m","prompt":"`+strings.Repeat("x", 5<<20)) // fails once it is refused
		}()
		r := f.sendFrom(t.Context(), "/v1/completions", body)
		require.NoError(t, r.err)
		require.Equal(t, 503, r.status, r.body)
		require.Contains(t, r.body, `"bodies_full"`)
		require.Equal(t, "5", r.header.Get("Retry-After"))
		f.await("its bytes to be given back", func() bool { return f.metric("baton_body_bytes_in_flight") == 0 })

		whole := completion("of unknown size", 2, false)
		whole = strings.TrimSuffix(whole, "}") + `,"user":"` + strings.Repeat("x", 2<<20) + `"}`
		requireAnswer(t, f.sendFrom(t.Context(), "/v1/completions", io.MultiReader(strings.NewReader(whole))), "of unknown size", 2)
	})
}
