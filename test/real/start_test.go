//go:build real

package real

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAnEngineThatCannotStart says why, and leaves nothing running.
func TestAnEngineThatCannotStart(t *testing.T) {
	_, err := StartVLLM(t.Context(), Options{Home: home, Name: "wrong", Model: "tiny", Role: worker.Aggregated, Args: []string{"--no-such-flag"}})
	require.ErrorContains(t, err, "wrong ended before it served: exit status 2")
	require.ErrorContains(t, err, "unrecognized arguments: --no-such-flag")
	_, err = StartVLLM(t.Context(), Options{Home: t.TempDir(), Name: "absent", Model: "tiny", Role: worker.Aggregated})
	require.ErrorContains(t, err, "no such file or directory")

	e := engines.use(t, "vllm-d1")[0]
	require.NoError(t, e.Kill())
	taken, err := net.Listen("tcp", strings.TrimPrefix(e.URL, "http://"))
	require.NoError(t, err, "nothing of the engine is left at its port")
	err = e.Restart(context.Background())
	require.ErrorContains(t, err, "ended before it served")
	require.ErrorContains(t, err, "Address already in use")
	require.False(t, e.Alive())
	require.NoError(t, taken.Close())

	require.NoError(t, e.Restart(context.Background()), "the next start mends it")
	resp, err := http.Get(e.URL + "/health")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
}
