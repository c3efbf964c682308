//go:build !long

package etcd

// So many workers register within that time.
const (
	manyWorkers = 1000
	manyWithin  = 0 // as fast as etcd takes them
)
