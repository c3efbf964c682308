package facts

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// greets is an address at which each connection gets a text and is closed.
func greets(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(text))
			_ = c.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

func TestAPublisherShowsItselfByItsFirstBytes(t *testing.T) {
	pub := greets(t, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f") // https://rfc.zeromq.org/spec/37/
	require.Equal(t, Trial{At: pub, Found: true}, try(t.Context(), pub))

	got := try(t.Context(), greets(t, "220 mail.example.org"))
	require.False(t, got.Found)
	require.Equal(t, "what listens there speaks no ZeroMQ", got.Why)

	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	got = try(t.Context(), free.Addr().String())
	require.False(t, got.Found)
	require.Contains(t, got.Why, "connection refused")

	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, try(ctx, web.Listener.Addr().String()).Found, "one that waits is left at once when the question ends")
}

func TestWhereAWorkerIsAsked(t *testing.T) {
	for _, c := range []struct {
		name, words string
		offset      int
		want        string
	}{
		{"at its endpoint", "", 0, "http://10.0.0.7:8000"},
		{"at its own port", "port=9000", 200, "http://10.0.0.7:9000"},
		{"a decode worker behind a sidecar", "role=decode", 200, "http://10.0.0.7:8200"},
		{"a prefill worker has none", "role=prefill", 200, "http://10.0.0.7:8000"},
		{"no port is above the highest", "role=decode", 60000, "http://10.0.0.7:8000"},
		{"IPv6", "addr=[fd00::7]:8000", 0, "http://[fd00::7]:8000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := bare(t, 7, "10.0.0.7:8000")
			for word := range strings.FieldsSeq(c.words) {
				workerWord(t, w, word)
			}
			conf := Config{PortOffset: c.offset}
			require.Equal(t, c.want, conf.targetOf(w).URL)
		})
	}
}
