package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// replicaTTL is how long the key of a replica outlives its process.
const replicaTTL = 10 * time.Second

// Replicas keeps a key in etcd that names this process to other replicas of the plugin, beside those of the
// workers, and lists theirs. Not safe for concurrent use.
type Replicas struct {
	client       *clientv3.Client
	folder, self string
	lease        clientv3.LeaseID // 0: none is held
	kept         bool             // the last listing had the key of lease
	pulse        pulse
}

// NewReplicas returns the list of a process that others reach at the address self.
func NewReplicas(client *clientv3.Client, prefix, self string) (*Replicas, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, discovery.Faults("etcd", err)
	}
	return &Replicas{client: client, folder: prefix + "/replicas/", self: self}, nil
}

// List keeps this process's key, and returns the addresses of all replicas, this one's too. Call it every
// few seconds: without that the key ends after 10 s.
func (r *Replicas) List(ctx context.Context) ([]string, error) {
	if r.lease != 0 {
		err := r.pulse.beat(ctx, r.client, r.lease)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			r.lease, r.kept = 0, false
		} else if err != nil {
			return nil, err
		}
	}
	if r.lease == 0 {
		lease, err := r.client.Grant(ctx, int64(replicaTTL/time.Second))
		if err != nil {
			return nil, err
		}
		r.lease = lease.ID
	}
	if !r.kept {
		if _, err := r.client.Put(ctx, r.folder+r.self, "", clientv3.WithLease(r.lease)); err != nil {
			return nil, err
		}
	}
	got, err := r.client.Get(ctx, r.folder, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(mostReplicas))
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(got.Kvs))
	for _, kv := range got.Kvs {
		out = append(out, strings.TrimPrefix(string(kv.Key), r.folder))
	}
	// Somebody may have deleted the key: the next call puts it again.
	r.kept = slices.Contains(out, r.self) || got.More
	return out, nil
}

// mostReplicas bounds what List reads.
const mostReplicas = 1000

// Close takes the key away, within a second; if etcd is away it ends by itself.
func (r *Replicas) Close() error {
	r.pulse.stop()
	if r.lease == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = r.client.Revoke(ctx, r.lease)
	return nil
}
