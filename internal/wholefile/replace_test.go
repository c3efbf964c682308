package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAReaderOfTheOldFileStillHasItWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, Replace(path, []byte("old")))
	old, err := os.Open(path)
	require.NoError(t, err)
	defer old.Close()
	require.NoError(t, Replace(path, []byte("new")))
	was, err := io.ReadAll(old)
	require.NoError(t, err)
	require.Equal(t, "old", string(was))
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "new", string(now))
}

func TestAWriterThatFailsLeavesTheOldFileAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, Replace(path, []byte("old")))
	err := ReplaceWith(path, 0o600, func(w io.Writer) error {
		_, _ = w.Write([]byte("ne"))
		return errors.New("the rest is lost")
	})
	require.EqualError(t, err, "write "+path+": the rest is lost")
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(now))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary file stays behind")
	require.ErrorContains(t, Replace(filepath.Join(dir, "no", "f"), nil), "no such file")
}
