package etcd

import (
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// folder returns the beginning of the keys of all workers under the prefix.
func folder(prefix string) string { return prefix + "/workers/" }

func workerKey(prefix string, lease clientv3.LeaseID) string {
	return folder(prefix) + worker.ID(lease).String()
}

// checkPrefix refuses prefixes under which keys would not be found.
func checkPrefix(prefix string) error {
	if prefix == "" || strings.HasPrefix(prefix, "/") || strings.HasSuffix(prefix, "/") || strings.ContainsAny(prefix, "\x00 \n") {
		return fmt.Errorf("prefix %q: expected names with slashes between them, for example %s", prefix, DefaultPrefix)
	}
	return nil
}

// joined returns the faults as one error that names the package, or nil if there are
// none.
func joined(errs []error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}
