//go:build race

package prefill_test

// raceEnabled: the detector allocates by itself.
const raceEnabled = true
