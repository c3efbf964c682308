//go:build long

package etcd

import "time"

// So many workers register within that time.
const (
	manyWorkers = 5000
	manyWithin  = time.Minute
)
