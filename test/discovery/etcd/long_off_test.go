//go:build !long

package etcd_test

// manyWorkers register within the time manyWithin.
const (
	manyWorkers = 1000
	manyWithin  = 0 // as fast as etcd accepts them
)
