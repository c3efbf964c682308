//go:build !long

package kvevents

// demoEvents is how many events the demonstration has.
const demoEvents = 50_000
