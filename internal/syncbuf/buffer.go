// Package syncbuf has a buffer that is read while it is written: what a program under
// test says. It is for tests; unlike the log of package stack it keeps everything.
package syncbuf

import (
	"bytes"
	"sync"
)

// Buffer keeps what is written to it. The zero value is empty. Safe for concurrent use.
type Buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

// Write appends p; it never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns all that was written since the last Reset.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Reset empties the buffer.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}
