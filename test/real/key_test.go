//go:build real

package real

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/stack"
)

// TestVLLMThatAsksForAKey: it is announced with the key of a file that changes while the
// register runs, refuses clients without it, and is predicted as any other.
func TestVLLMThatAsksForAKey(t *testing.T) {
	es := engines.use(t, "vllm-key")
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte("another"), 0o600))

	etcd, err := stack.StartEtcd(t.Context(), stack.EtcdOptions{BinDir: binDir, Dir: t.TempDir()})
	require.NoError(t, err)
	r, err := stack.StartRegister(t.Context(), stack.RegisterOptions{
		BinDir: binDir, EngineURL: es[0].URL, Etcd: etcd.Endpoints, Args: append(es[0].registerArgs(), "--refresh", "1s", "--engine-api-key-file", file),
	})
	require.NoError(t, err)
	s := &scene{t: t, engines: es, keyFile: file, key: es[0].APIKey}
	s.await("the wrong key to be refused", func() bool { return strings.Contains(r.Log(), "the engine refuses the API key of "+file) })
	require.NoError(t, os.WriteFile(file, []byte(es[0].APIKey+"\n"), 0o600))
	s.await("the right one to be shown", func() bool { return strings.Contains(r.Log(), `"msg":"announced"`) })
	require.NoError(t, r.Kill())

	s.start(compared + "engines: {api_key_file: " + file + "}\n")
	var all []told
	for i := range 6 {
		_, x := s.compare("text", "/v1/completions", fields{"model": "tiny", "prompt": words(uint64(i/3), 200) + fmt.Sprint(i), "max_tokens": 4})
		all = append(all, x)
	}
	requireAgreement(t, vllm, "aggregated: an API key", all, 0.99)
	s.key = ""
	a := s.ask("/v1/completions", fields{"model": "tiny", "prompt": "who are you", "max_tokens": 4})
	require.Equal(t, http.StatusUnauthorized, a.status, a.body)
}
