// Package replaytest makes small fleets and requests, for tests of ways to choose.
//
// # What it does not do
//
// It plays nothing.
package replaytest
