//go:build long

package etcd_test

import "time"

// manyWorkers register within the time manyWithin.
const (
	manyWorkers = 5000
	manyWithin  = time.Minute
)
