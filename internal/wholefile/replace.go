package wholefile

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Replace replaces the file at path with data. Everyone may read the new file. The error
// names the path but no package, since the caller puts its own in front.
func Replace(path string, data []byte) error {
	return ReplaceWith(path, 0o644, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// ReplaceWith is [Replace] for what write writes, for content that is too large to be held
// in memory.
func ReplaceWith(path string, mode os.FileMode, write func(io.Writer) error) (err error) {
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
