//go:build e2e && race

package envoytest

// raceEnabled makes the tested binaries watch for data races too.
const raceEnabled = true
