package record

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// The names of files: their order is that of time.
const (
	prefix = "baton-"
	suffix = ".rec"
)

// Dir is a Store in a folder.
type Dir struct {
	Path      string
	MaxBytes  int64 // of all files together
	FileBytes int   // of one

	file *os.File
	buf  *bufio.Writer
	size int
}

// Create implements Store. Files of other processes in the folder count, too.
func (d *Dir) Create(began time.Time, life uint64) error {
	d.close()
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return err
	}
	if err := d.make(int64(d.FileBytes)); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(d.Path, fmt.Sprintf("%s%020d-%016x%s", prefix, began.UnixNano(), life, suffix)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	d.file, d.size = f, 0
	d.buf = bufio.NewWriterSize(f, 64<<10)
	return nil
}

// Files returns the paths of the files in a folder, the oldest first.
func Files(dir string) ([]string, error) { return filepath.Glob(filepath.Join(dir, prefix+"*"+suffix)) }

// make makes room for so many bytes.
func (d *Dir) make(room int64) error {
	entries, err := os.ReadDir(d.Path) // sorted by name
	if err != nil {
		return err
	}
	var names []string
	var sizes []int64
	sum := room
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !strings.HasSuffix(e.Name(), suffix) || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil {
			names, sizes = append(names, e.Name()), append(sizes, info.Size())
			sum += info.Size()
		}
	}
	for i := 0; i < len(names) && sum > d.MaxBytes; i++ {
		if err := os.Remove(filepath.Join(d.Path, names[i])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		sum -= sizes[i]
	}
	return nil
}

func (d *Dir) close() {
	if d.file != nil {
		_ = d.buf.Flush() // what is lost has been told
		_ = d.file.Close()
		d.file = nil
	}
}

// Write implements Store.
func (d *Dir) Write(b []byte) error {
	d.size += len(b)
	_, err := d.buf.Write(b)
	return err
}

// Room implements Store.
func (d *Dir) Room() int { return d.FileBytes - d.size }

// Flush implements Store.
func (d *Dir) Flush() error { return d.buf.Flush() }

// Memory is a Store of the newest files in memory. Safe for concurrent use.
type Memory struct {
	MaxBytes, FileBytes int

	mu    sync.Mutex
	files [][]byte // guarded by mu
}

// Create implements Store.
func (m *Memory) Create(time.Time, uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = append(m.files, nil)
	for sum := len(m.files) * m.FileBytes; sum > m.MaxBytes && len(m.files) > 1; sum -= m.FileBytes {
		m.files = append(m.files[:0:0], m.files[1:]...)
	}
	return nil
}

// Write implements Store.
func (m *Memory) Write(b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := &m.files[len(m.files)-1]
	*last = append(*last, b...)
	return nil
}

// Room implements Store.
func (m *Memory) Room() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.FileBytes - len(m.files[len(m.files)-1])
}

// Flush implements Store.
func (m *Memory) Flush() error { return nil }

// Files returns what the files have at present. They must not be changed.
func (m *Memory) Files() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([][]byte(nil), m.files...)
}
