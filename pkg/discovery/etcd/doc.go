// Package etcd keeps workers in etcd and reads them from it.
package etcd
