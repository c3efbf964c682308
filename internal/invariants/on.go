//go:build invariants || race

package invariants

import "fmt"

// Enabled reports whether checks are compiled in.
const Enabled = true

// Check panics with the formatted message unless ok.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
