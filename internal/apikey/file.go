package apikey

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
)

// maxKey bounds a key. No engine's is as long.
const maxKey = 4096

// File is a file that holds a key. A nil File holds none. Safe for concurrent use.
type File struct {
	path string

	mu  sync.Mutex // held while the file is read
	key string     // as it was read last
	err error      // why it could not be read since
}

// Open reads a key for the first time. No name is no file.
func Open(path string) (*File, error) {
	if path == "" {
		return nil, nil
	}
	f := &File{path: path}
	f.read()
	return f, f.err
}

// Path returns the file's name; "" of none.
func (f *File) Path() string {
	if f == nil {
		return ""
	}
	return f.path
}

// Err returns why the file could not be read last, or nil.
func (f *File) Err() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Show adds the key to a request; without a file nothing.
func (f *File) Show(r *http.Request) {
	if f != nil {
		r.Header.Set("Authorization", "Bearer "+f.read())
	}
}

// read returns the key as the file has it, else as it had it last.
func (f *File) read() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	key, err := readKey(f.path)
	f.err = err
	if err == nil {
		f.key = key
	}
	return f.key
}

func readKey(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("api key: %w", err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxKey+1))
	if err != nil {
		return "", fmt.Errorf("api key: %w", err)
	}
	key := strings.TrimSpace(string(b))
	switch {
	case key == "":
		err = errors.New("is empty")
	case len(b) > maxKey:
		err = fmt.Errorf("is longer than %d bytes", maxKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
		err = errors.New("has a blank, a line break or what is not ASCII within the key")
	default:
		return key, nil
	}
	return "", fmt.Errorf("api key: %s %w: expected the key alone, as the engine's --api-key has it", path, err)
}
