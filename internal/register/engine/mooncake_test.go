package engine

import (
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// askMooncake reads an engine whose bootstrap server answers so.
func askMooncake(t *testing.T, answer string) Facts {
	t.Helper()
	boot := httptest.NewServer(pages(engine{"/query": answer}))
	t.Cleanup(boot.Close)
	u, err := url.Parse(boot.URL)
	require.NoError(t, err)
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	require.NoError(t, err)
	e := engine{"/version": `{"version":"0.32.0"}`, "/v1/models": models}
	f, err := client(t, pages(e), Config{Kind: VLLMMooncake, Bootstrap: uint16(port)}).Facts(t.Context())
	require.NoError(t, err)
	require.Equal(t, worker.VLLMMooncake, f.Engine)
	require.Equal(t, uint16(port), f.BootstrapPort)
	return f
}

func TestMooncakesBootstrapServerNamesTheEngines(t *testing.T) {
	f := askMooncake(t, `{"1":{"engine_id":"b","worker_addr":{"0":{"0":"tcp://127.0.0.1:5"}}},"0":{"engine_id":"a","worker_addr":{}}}`)
	require.NoError(t, f.Unread.Err())
	require.Equal(t, []string{"a", "b"}, f.EngineIDs)
	for answer, want := range map[string]string{
		`{}`: "no engine has come to it yet", `{"1":{"engine_id":"b"}}`: "rank 0 has not come to it yet",
		`[]`: "expected a JSON object", `503!`: "status 503",
	} {
		f := askMooncake(t, answer)
		require.ErrorContains(t, f.Unread.Engines, want)
		before := f
		before.EngineIDs = []string{"a"}
		require.Equal(t, []string{"a"}, f.Keeping(before, true).EngineIDs)
	}
}

func TestADecodeWorkerOfMooncakeHasNoBootstrapServer(t *testing.T) {
	e := engine{"/version": `{"version":"0.32.0"}`, "/v1/models": models}
	f, err := client(t, pages(e), Config{Kind: VLLMMooncake}).Facts(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.Unread.Err())
	require.Zero(t, f.BootstrapPort)
}
