//go:build e2e && !race

package envoytest

const raceEnabled = false
