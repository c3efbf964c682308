package register_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register/registertest"
)

// TestAKeyFileThatHoldsNoneIsSaidAtTheStart before anything is asked.
func TestAKeyFileThatHoldsNoneIsSaidAtTheStart(t *testing.T) {
	c := registertest.Quick("http://127.0.0.1:1")
	c.Engine.APIKeyFile = filepath.Join(t.TempDir(), "key")
	require.ErrorIs(t, c.Validate(), os.ErrNotExist)
	require.NoError(t, os.WriteFile(c.Engine.APIKeyFile, nil, 0o600))
	require.ErrorContains(t, c.Validate(), "is empty")
}
