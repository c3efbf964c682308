package wholefile

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Replace replaces the file at path with data. Everyone may read the new file. The error
// names the path but no package, since the caller puts its own in front.
func Replace(path string, data []byte) error {
	return ReplaceWith(path, 0o644, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Edit replaces a file that is there already and a user's own: it keeps its mode and its owner, and where
// path is a link the file that it leads to is replaced.
func Edit(path string, data []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return replace(path, info.Mode().Perm(), func(tmp *os.File) error {
		_, err := tmp.Write(data)
		if was, ok := info.Sys().(*syscall.Stat_t); ok && err == nil {
			err = tmp.Chown(int(was.Uid), int(was.Gid))
		}
		return err
	})
}

// ReplaceWith is [Replace] for what write writes, for content that is too large to be held
// in memory.
func ReplaceWith(path string, mode os.FileMode, write func(io.Writer) error) error {
	return replace(path, mode, func(tmp *os.File) error { return write(tmp) })
}

func replace(path string, mode os.FileMode, write func(*os.File) error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	err = write(tmp)
	if cerr := tmp.Chmod(mode); err == nil {
		err = cerr
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
