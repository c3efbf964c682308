// Package host names the machine that a benchmark runs on, and reads the clocks
// and the memory of its processes.
package host
