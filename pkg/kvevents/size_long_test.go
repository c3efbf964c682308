//go:build long

package kvevents

// demoEvents is how many events the demonstration has.
const demoEvents = 1_000_000
