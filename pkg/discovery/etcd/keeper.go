package etcd

import (
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// keeper decides what a registrar does next. It is pure: the time and the events are
// arguments. Not safe for concurrent use.
//
// Invariants: at most one lease is held. A lease that was held and no longer is stays
// retired until etcd says that it is gone. The transaction that writes the key of the
// held lease deletes the keys of retired ones.
type keeper struct {
	// Set at construction, read-only.
	ttl                time.Duration
	retryMin, retryMax time.Duration
	jitter             func(time.Duration) time.Duration

	want    wanted
	held    holding
	retired []retired

	notBefore time.Time // no request is made before this time
	fails     int       // how many requests have failed in a row
	losses    int       // how many registrations in a row were lost soon
}

// wanted is what etcd should have.
type wanted struct {
	gen     uint64 // counts calls of ask
	present bool
	life    uint64
}

// holding is the held lease, and what its key has. The zero value is no lease.
type holding struct {
	lease   clientv3.LeaseID
	life    uint64
	written uint64    // the wanted.gen that the key has; 0: there is no key
	since   time.Time // when the key was first written
	due     time.Time // when the next keep-alive is due
}

// retired is a lease that has to be revoked.
type retired struct {
	lease  clientv3.LeaseID
	noKey  bool // the lease's key has been deleted
	marked bool // the key says that the worker leaves
}

// deed is a kind of action.
type deed uint8

const (
	rest   deed = iota // wait until action.until, or until something happens
	grant              // get a new lease
	write              // write the record to the lease's key, and delete the keys of action.drop
	renew              // keep the lease alive, and check that its key is there
	resign             // write to the lease's key that the worker leaves
	revoke             // revoke the lease
)

var deedNames = [...]string{rest: "rest", grant: "grant", write: "write", renew: "renew", resign: "resign", revoke: "revoke"}

func (d deed) String() string { return deedNames[d] }

// maxDrop bounds the operations of a transaction. etcd allows 128, and write has its
// operations twice. The keys of further retired leases go when those leases are
// revoked.
const maxDrop = 32

// maxRetired is how many leases are kept to be revoked.
const maxRetired = 1000

// action is one deed with its arguments. When a request for it has ended, exactly one
// of the keeper's methods granted, wrote, renewed, resigned, revoked, lost and failed must be
// called.
type action struct {
	deed  deed
	lease clientv3.LeaseID
	gen   uint64             // write: the wanted.gen that is written
	drop  []clientv3.LeaseID // write: the leases whose keys are deleted in the same transaction
	until time.Time          // rest: until when; zero: until something happens
}

// next returns what to do now.
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
		// A key that goes without a word would look like a lease that has run out.
		if r := k.retired[0]; !r.noKey && !r.marked {
			return action{deed: resign, lease: r.lease}
		}
		return action{deed: revoke, lease: k.retired[0].lease}
	default:
		return action{until: h.due}
	}
}

// retireUnwanted retires the lease if nothing is to be registered.
func (k *keeper) retireUnwanted() {
	if !k.want.present {
		k.retire()
		k.held = holding{}
	}
}

// retire adds the held lease to those that have to be revoked. They stay there however
// long that takes: a lease does not expire while etcd is away, and has its whole time
// again afterwards, so only etcd can say that it has ended.
func (k *keeper) retire() {
	if k.held.lease == 0 {
		return
	}
	k.retired = append(k.retired, retired{lease: k.held.lease})
	if len(k.retired) > maxRetired {
		k.retired = k.retired[1:] // etcd grants leases but revokes none: let the oldest expire
	}
}

// ask sets what is wanted.
func (k *keeper) ask(present bool, life uint64) {
	k.want = wanted{gen: k.want.gen + 1, present: present, life: life}
}

// settled reports whether etcd has what is wanted, as far as is known.
func (k *keeper) settled() bool {
	if !k.want.present {
		return k.held.lease == 0 && len(k.retired) == 0
	}
	return k.held.written == k.want.gen && k.held.life == k.want.life
}

// granted records a new lease. It retires the held one, whose key stays until the key
// of the new one is written.
func (k *keeper) granted(lease clientv3.LeaseID) {
	k.retire()
	k.held = holding{lease: lease, life: k.want.life}
	k.worked()
}

// wrote records that a write was done. It reports whether the worker is now registered
// with a new id.
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

// resigned records that the key of a retired lease says that the worker leaves, or is not
// there.
func (k *keeper) resigned(lease clientv3.LeaseID) {
	for i := range k.retired {
		k.retired[i].marked = k.retired[i].marked || k.retired[i].lease == lease
	}
	k.worked()
}

// revoked records that the lease is gone, because it was revoked or had ended before.
func (k *keeper) revoked(lease clientv3.LeaseID) {
	k.retired = slices.DeleteFunc(k.retired, func(r retired) bool { return r.lease == lease })
	k.worked()
}

// lost records that the lease or its key is gone, or that another lease holds the key.
// The worker is registered again: at once, or after a pause if that was the case
// recently as well. False means that the lease is not the held one.
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

// doubt is called when the watch of the key has ended. The key then has to be checked
// before the keep-alive is due; not at once, since a watch that is refused also ends at
// once.
func (k *keeper) doubt(now time.Time) {
	k.hasten(now.Add(k.pause(1) + k.longest()/2))
}

func (k *keeper) hasten(due time.Time) {
	if k.held.written != 0 && due.Before(k.held.due) {
		k.held.due = due
	}
}

// reconnected is called when the connection to etcd is back, or when a token has come. What
// waits after a failure is then done at once; what waits because registrations were lost
// is not.
func (k *keeper) reconnected(now time.Time) {
	k.hasten(now)
	if k.fails > 0 {
		k.notBefore = now
	}
}

// failed records that a request has failed, or that its result is not known.
func (k *keeper) failed(now time.Time) {
	k.fails++
	k.notBefore = now.Add(k.pause(k.fails))
}

func (k *keeper) worked() { k.fails = 0 }

// pause returns how long to wait after n failures.
func (k *keeper) pause(n int) time.Duration {
	return k.jitter(pauseAfter(n, k.retryMin, k.longest()))
}

// pauseAfter doubles a pause with each of n failures but the first.
func pauseAfter(n int, first, longest time.Duration) time.Duration {
	for ; n > 1 && first < longest; n-- {
		first *= 2
	}
	return min(first, longest)
}

// longest returns the longest pause. While there is a lease it may be lost meanwhile, and
// what is to be withdrawn is still picked.
func (k *keeper) longest() time.Duration {
	if k.held.lease != 0 || len(k.retired) > 0 || !k.want.present {
		return min(k.retryMax, time.Second)
	}
	return k.retryMax
}
