//go:build race

package prefill_test

// raceEnabled: the race detector allocates memory itself.
const raceEnabled = true
