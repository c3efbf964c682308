package etcd

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// folder returns the beginning of the keys of all workers under the prefix.
func folder(prefix string) string { return prefix + "/workers/" }

func workerKey(prefix string, lease clientv3.LeaseID) string {
	return folder(prefix) + worker.ID(lease).String()
}

// withLease adds the length of its lease to a record, which is a JSON object.
func withLease(record []byte, ttl time.Duration) string {
	return fmt.Sprintf(`%s,"lease_seconds":%d}`, strings.TrimSuffix(string(record), "}"), ttl/time.Second)
}

// leaseOf returns how long the key outlives whoever keeps it; 0: it has no lease. A record
// that does not say it has the default of a registrar.
func leaseOf(kv *mvccpb.KeyValue) time.Duration {
	if kv.Lease == 0 {
		return 0
	}
	var rec struct {
		Seconds int64 `json:"lease_seconds"`
	}
	if json.Unmarshal(kv.Value, &rec) != nil || rec.Seconds < 1 || float64(rec.Seconds) > maxTTL.Seconds() {
		return defaultTTL
	}
	return time.Duration(rec.Seconds) * time.Second
}

// checkPrefix refuses prefixes under which keys would not be found.
func checkPrefix(prefix string) error {
	if prefix == "" || strings.HasPrefix(prefix, "/") || strings.HasSuffix(prefix, "/") || strings.ContainsAny(prefix, "\x00 \n") {
		return fmt.Errorf("prefix %q: expected names with slashes between them, for example %s", prefix, DefaultPrefix)
	}
	return nil
}
