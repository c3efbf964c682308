//go:build invariants || race

package invariants

import (
	"fmt"
	"sync/atomic"
)

// Enabled reports whether checks are compiled in.
const Enabled = true

// Check panics with the formatted message unless ok.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}

// CloseChecker finds things that are closed twice or used after closing. The
// zero value is open. Safe for concurrent use.
type CloseChecker struct{ closed atomic.Bool }

// Close marks the thing as closed and panics if it was.
func (c *CloseChecker) Close() {
	if c.closed.Swap(true) {
		panic("invariant broken: closed twice")
	}
}

// AssertOpen panics if the thing is closed.
func (c *CloseChecker) AssertOpen() {
	if c.closed.Load() {
		panic("invariant broken: used after closing")
	}
}

// AssertClosed panics unless the thing is closed.
func (c *CloseChecker) AssertClosed() {
	if !c.closed.Load() {
		panic("invariant broken: not closed")
	}
}
