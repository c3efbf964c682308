//go:build example

package worker

// Example is the engine of internal/engine/example, in the tests' builds.
const Example Engine = "example"

func init() { names = append(names, Example) }
