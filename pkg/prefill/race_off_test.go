//go:build !race

package prefill_test

const raceEnabled = false
