package wholefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
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

// TestAUsersFileStaysWhatItIs: no one else may read it from then on, and a link stays a link.
func TestAUsersFileStaysWhatItIs(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "f"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o640))
	require.NoError(t, os.Symlink("f", link))
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(path, 12, 34))
	}
	before, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, Edit(link, []byte("new")))
	after, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, before.Mode(), after.Mode())
	was, is := before.Sys().(*syscall.Stat_t), after.Sys().(*syscall.Stat_t)
	require.Equal(t, []uint32{was.Uid, was.Gid}, []uint32{is.Uid, is.Gid})
	to, err := os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, "f", to)
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "new", string(now))
	require.ErrorContains(t, Edit(filepath.Join(dir, "no"), nil), "no such file")
}
