//go:build race

package handoff_test

// raceEnabled: the detector allocates by itself.
const raceEnabled = true
