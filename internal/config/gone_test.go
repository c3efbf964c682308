package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKeysOfBeforeAreReadAndNamed: whatever a file says there, it is read as without them, and whoever
// starts with it is told. No key of today is among them.
func TestKeysOfBeforeAreReadAndNamed(t *testing.T) {
	read := func(text string) (Config, error) {
		file := filepath.Join(t.TempDir(), "baton.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return Read(file)
	}
	keys := keysOfConfig()
	for _, key := range gone() {
		require.NotContains(t, keys, key)
		text := "[of, any: form]"
		for part := range strings.SplitSeq(reverse(key), ".") {
			text = "{" + part + ": " + text + "}"
		}
		c, err := read(text)
		require.NoError(t, err, key)
		want := "keys of the configuration that have no effect any more: " + key + "; remove them"
		if key == "routing.predicted_weight" {
			want += "; what routing.predicted_weight: 0 did, routing.predicted_ttl: 0s does"
		}
		require.Equal(t, want, c.GoneWarning())
		as, err := c.Effective()
		require.NoError(t, err)
		def := Default()
		without, err := def.Effective()
		require.NoError(t, err)
		require.Equal(t, without, as)
	}
	c, err := read("health: {max_probes: 3, probe_path: /x, server_errors: 4}")
	require.NoError(t, err)
	require.Equal(t, 4, c.Health.ServerErrors)
	require.Equal(t, "keys of the configuration that have no effect any more: health.max_probes, health.probe_path; remove them", c.GoneWarning())
	c, err = read("health: {server_errors: 4}")
	require.NoError(t, err)
	require.Empty(t, c.GoneWarning())
	_, err = read("record: {file_bytes: 4194304}")
	require.ErrorContains(t, err, "record.file_bytes: there is no such key", "no version had it")
}
