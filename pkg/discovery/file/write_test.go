package file

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func mustEndpoint(t *testing.T, s string) worker.Endpoint {
	t.Helper()
	e, err := worker.ParseEndpoint(s)
	require.NoError(t, err)
	return e
}

// one returns a list of one worker.
func one(t *testing.T) []*worker.Worker {
	return []*worker.Worker{{
		ID: 8, Role: worker.Decode, Engine: worker.SGLang, Endpoint: mustEndpoint(t, "10.0.0.8:30000"),
		Models: []string{"qwen"}, DPSize: 1, BlockSize: 1,
	}}
}

func TestAWriteThatFailsChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.yaml")
	require.NoError(t, Write(path, one(t)))
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	bad := one(t)
	bad[0].BlockSize = 0
	require.ErrorContains(t, Write(path, bad), "block_size: expected at least 1")
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(now))
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary file stays behind")
}
