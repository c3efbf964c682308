// Package host names the machine that a benchmark runs on, and reads the clocks
// of its processes.
package host
