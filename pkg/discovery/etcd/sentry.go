package etcd

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// sighting is what a sentry has seen of the key of a lease.
type sighting struct {
	lease clientv3.LeaseID
	gone  string // how the key was lost; "": the watch has ended, and the key has to be checked
}

// sentry watches one key, so that its loss is known before the next keep-alive. It may
// miss a loss, so the registrar also checks the key with each keep-alive. Not safe for
// concurrent use; the zero value watches nothing.
type sentry struct {
	lease clientv3.LeaseID // the lease whose key is or was watched
	said  chan sighting    // at most one sighting for each start
	done  chan struct{}    // closed when the watch has ended; nil: no watch was started
	end   context.CancelFunc
	wait  sync.WaitGroup
}

// start watches the key from the given revision on, unless the lease's key is already
// being watched.
func (s *sentry) start(client *clientv3.Client, key string, lease clientv3.LeaseID, from int64) {
	if s.done != nil && s.lease == lease {
		select {
		case <-s.done:
		default:
			return
		}
	}
	s.stop()
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	s.lease, s.end, s.said, s.done = lease, cancel, make(chan sighting, 1), make(chan struct{})
	said, done := s.said, s.done
	s.wait.Go(func() {
		gone := watchKey(ctx, client, key, lease, from)
		close(done)
		said <- sighting{lease: lease, gone: gone}
	})
}

// stop ends the watch and waits for its end.
func (s *sentry) stop() {
	if s.end != nil {
		s.end()
		s.wait.Wait()
	}
}

// watchKey returns how the key was lost, or "" if it cannot be watched any longer.
func watchKey(ctx context.Context, client *clientv3.Client, key string, lease clientv3.LeaseID, from int64) string {
	// It uses a watcher of its own: on the client's watcher, other watches would wait
	// while this one is made.
	watcher := clientv3.NewWatcher(client)
	defer watcher.Close()
	for res := range watcher.Watch(ctx, key, clientv3.WithRev(from)) {
		if res.Err() != nil {
			return ""
		}
		for _, ev := range res.Events {
			switch {
			case ev.Type == clientv3.EventTypeDelete:
				return "its key was deleted, or its lease revoked"
			case ev.Kv.Lease != int64(lease):
				return "its key was written by another without its lease"
			}
		}
	}
	return ""
}
