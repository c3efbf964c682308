//go:build example

package worker

// Example is the engine of internal/engine/example, in the tests' builds.
const Example Engine = "example"

var _ = func() bool {
	names = append(names, Example)
	return true
}()
