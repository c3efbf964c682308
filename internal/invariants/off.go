//go:build !invariants && !race

package invariants

// Enabled reports whether checks are compiled in.
const Enabled = false

// Check does nothing in this build.
func Check(bool, string, ...any) {}

// CloseChecker finds things that are closed twice or used after closing. It
// does nothing in this build.
type CloseChecker struct{}

// Close does nothing in this build.
func (*CloseChecker) Close() {}

// AssertOpen does nothing in this build.
func (*CloseChecker) AssertOpen() {}

// AssertClosed does nothing in this build.
func (*CloseChecker) AssertClosed() {}
