//go:build race

package handoff_test

// raceEnabled: the race detector allocates memory itself.
const raceEnabled = true
