package etcd

import (
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// keeper decides what a registrar does next. It is pure: the time and what
// happened are told to it. Not safe for concurrent use.
//
// Invariants: at most one lease is held; a lease that was held and is not any
// more is retired until etcd says that it is gone; the keys of
// retired leases are deleted in the transaction that writes the held one's.
type keeper struct {
	// Set at construction, read-only.
	ttl                time.Duration
	retryMin, retryMax time.Duration
	jitter             func(time.Duration) time.Duration

	want    wanted
	held    holding
	retired []retired

	notBefore time.Time // nothing is tried before
	fails     int       // tries that failed, in a row
	losses    int       // registrations that did not last, in a row
}

// wanted is what etcd should hold.
type wanted struct {
	gen     uint64 // counts what was asked for
	present bool
	life    uint64
}

// holding is the lease that is held and what its key says. The zero value is
// no lease.
type holding struct {
	lease   clientv3.LeaseID
	life    uint64
	written uint64    // the wanted.gen that the key holds; 0: none
	since   time.Time // of the key's first write
	due     time.Time // of the next keep-alive
}

// retired is a lease that is to be revoked.
type retired struct {
	lease clientv3.LeaseID
	noKey bool // its key has been deleted
}

// deed is what a registrar can be told to do.
type deed uint8

const (
	rest   deed = iota // until action.until, or until something happens
	grant              // a new lease
	write              // the record under the lease, dropping the keys of `drop`
	renew              // keep the lease alive and see that the key is there
	revoke             // the lease
)

var deedNames = [...]string{rest: "rest", grant: "grant", write: "write", renew: "renew", revoke: "revoke"}

func (d deed) String() string { return deedNames[d] }

// maxDrop bounds a transaction. etcd takes 128 operations, and the write names
// its own twice. The keys of older leases go when those are revoked.
const maxDrop = 32

// maxRetired bounds how many leases are remembered to be revoked.
const maxRetired = 1000

// action is one deed. A deed that etcd is asked for ends with exactly one of
// the keeper's granted, wrote, renewed, revoked, lost and failed.
type action struct {
	deed  deed
	lease clientv3.LeaseID
	gen   uint64             // write: what is written
	drop  []clientv3.LeaseID // write: whose keys go in the same transaction
	until time.Time          // rest; zero: until something happens
}

// next says what to do now.
func (k *keeper) next(now time.Time) action {
	k.retireUnwanted()
	a := k.pending(now)
	if a.deed != rest && now.Before(k.notBefore) {
		return action{until: k.notBefore}
	}
	return a
}

func (k *keeper) pending(now time.Time) action {
	h := &k.held
	switch {
	case h.written != 0 && !now.Before(h.due):
		return action{deed: renew, lease: h.lease}
	case k.want.present && (h.lease == 0 || h.life != k.want.life):
		return action{deed: grant}
	case k.want.present && h.written != k.want.gen:
		a := action{deed: write, lease: h.lease, gen: k.want.gen}
		for _, r := range k.retired[max(0, len(k.retired)-maxDrop):] {
			if !r.noKey {
				a.drop = append(a.drop, r.lease)
			}
		}
		return a
	case len(k.retired) > 0:
		return action{deed: revoke, lease: k.retired[0].lease}
	default:
		return action{until: h.due}
	}
}

// retireUnwanted gives up the lease when nothing is to be registered.
func (k *keeper) retireUnwanted() {
	if !k.want.present {
		k.retire()
		k.held = holding{}
	}
}

// retire notes that the lease is to be revoked. However long that takes: a lease
// does not run while etcd is away, and has its whole time again after it, so that
// only etcd can say that it has ended.
func (k *keeper) retire() {
	if k.held.lease == 0 {
		return
	}
	k.retired = append(k.retired, retired{lease: k.held.lease})
	if len(k.retired) > maxRetired {
		k.retired = k.retired[1:] // etcd grants leases and revokes none: they run out by themselves
	}
}

// ask replaces what is wanted.
func (k *keeper) ask(present bool, life uint64) {
	k.want = wanted{gen: k.want.gen + 1, present: present, life: life}
}

// settled reports whether etcd holds what was last asked for, as far as is
// known.
func (k *keeper) settled() bool {
	if !k.want.present {
		return k.held.lease == 0 && len(k.retired) == 0
	}
	return k.held.written == k.want.gen && k.held.life == k.want.life
}

// granted says that there is a new lease. One that is held is retired, and its
// key stays until the new one's is written.
func (k *keeper) granted(lease clientv3.LeaseID) {
	k.retire()
	k.held = holding{lease: lease, life: k.want.life}
	k.worked()
}

// wrote says that the write was done. It reports whether the worker is now known
// by a new id.
func (k *keeper) wrote(now time.Time, a action) bool {
	first := k.held.written == 0
	k.held.written = a.gen
	for i := range k.retired {
		k.retired[i].noKey = k.retired[i].noKey || slices.Contains(a.drop, k.retired[i].lease)
	}
	if first {
		k.held.since = now
		k.held.due = now.Add(k.ttl / 3)
	}
	k.worked()
	return first
}

func (k *keeper) renewed(now time.Time) {
	k.held.due = now.Add(k.ttl / 3)
	if now.Sub(k.held.since) >= k.ttl {
		k.losses = 0
	}
	k.worked()
}

// revoked says that the lease is gone, by us or before.
func (k *keeper) revoked(lease clientv3.LeaseID) {
	k.retired = slices.DeleteFunc(k.retired, func(r retired) bool { return r.lease == lease })
	k.worked()
}

// lost says that the lease, or its key, is gone or another's. The worker is
// registered anew at once, unless it has been lost like that lately. It reports
// false for a lease that is not held (any more).
func (k *keeper) lost(now time.Time, lease clientv3.LeaseID) bool {
	if lease != k.held.lease || lease == 0 {
		return false
	}
	k.retire()
	if k.held.written != 0 && now.Sub(k.held.since) >= k.ttl {
		k.losses = 0
	}
	k.held = holding{}
	k.fails = 0
	k.notBefore = now
	if k.losses > 0 {
		k.notBefore = now.Add(k.pause(k.losses))
	}
	k.losses++
	return true
}

// doubt says that the key has to be looked at before the time is due: its watch
// has ended. Not at once, as a watch that is refused ends at once, too.
func (k *keeper) doubt(now time.Time) {
	k.hasten(now.Add(k.pause(1) + k.retryMax/2))
}

func (k *keeper) hasten(due time.Time) {
	if k.held.written != 0 && due.Before(k.held.due) {
		k.held.due = due
	}
}

// reconnected says that etcd is there again: whatever waits is done now, unless
// it waits because the registration did not last.
func (k *keeper) reconnected(now time.Time) {
	k.hasten(now)
	if k.fails > 0 {
		k.notBefore = now
	}
}

// failed says that etcd could not be asked, or did not say what came of it.
func (k *keeper) failed(now time.Time) {
	k.fails++
	k.notBefore = now.Add(k.pause(k.fails))
}

func (k *keeper) worked() { k.fails = 0 }

// pause returns how long to wait after n failures.
func (k *keeper) pause(n int) time.Duration {
	d := k.retryMin
	for ; n > 1 && d < k.retryMax; n-- {
		d *= 2
	}
	return k.jitter(min(d, k.retryMax))
}

// String is what scenario files show.
func (k *keeper) String() string {
	var b strings.Builder
	switch h := k.held; {
	case h.lease == 0:
		b.WriteString("nothing held")
	case h.written == 0:
		fmt.Fprintf(&b, "lease %d of life %d, no key", h.lease, h.life)
	default:
		fmt.Fprintf(&b, "lease %d of life %d, key holds #%d", h.lease, h.life, h.written)
	}
	for _, r := range k.retired {
		fmt.Fprintf(&b, "; to revoke %d", r.lease)
	}
	if k.settled() {
		b.WriteString("; settled")
	}
	return b.String()
}
