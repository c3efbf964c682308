package etcd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// String shows the state, for scenario files.
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

// Verbs of testdata/keeper. Each line of the input is one event; after it the test
// prints the keeper, and what it would do now. The TTL is 9 s; pauses are 100 ms to 800
// ms, without jitter. Only `pass` lets time pass.
//
//	new                   a new keeper
//	do                    the lines:
//	  announce life=N     something new is wanted
//	  withdraw
//	  pass D              time passes
//	  granted LEASE       the result of a grant
//	  wrote               the result of a write
//	  renewed             the result of a renewal
//	  resigned LEASE      its key says that the worker leaves
//	  revoked LEASE       the result of a revocation
//	  lost LEASE          the lease or its key is gone
//	  failed              the last request has failed
//	  reconnected         etcd can be reached again
//	  doubt               the watch of the key has ended
func TestKeeperScenarios(t *testing.T) {
	var k *keeper
	var now, start time.Time
	begin := func() {
		start = time.Unix(1000, 0)
		now = start
		k = &keeper{ttl: 9 * time.Second, retryMin: 100 * time.Millisecond, retryMax: 800 * time.Millisecond, jitter: func(d time.Duration) time.Duration { return d }}
	}
	begin()
	datadriven.RunTest(t, "testdata/keeper", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "new" {
			begin()
		}
		var b strings.Builder
		for line := range strings.Lines(d.Input) {
			words := strings.Fields(line)
			arg := strings.Join(words[1:], " ")
			num, _ := strconv.ParseInt(strings.TrimPrefix(arg, "life="), 10, 64)
			switch words[0] {
			case "announce":
				k.ask(true, uint64(num))
			case "withdraw":
				k.ask(false, 0)
			case "pass":
				by, err := time.ParseDuration(arg)
				require.NoError(t, err)
				now = now.Add(by)
			case "granted":
				require.Equal(t, grant, k.next(now).deed)
				k.granted(clientv3.LeaseID(num))
			case "wrote":
				a := k.next(now)
				require.Equal(t, write, a.deed)
				if k.wrote(now, a) {
					fmt.Fprintf(&b, "known as %d\n", a.lease)
				}
			case "renewed":
				require.Equal(t, renew, k.next(now).deed)
				k.renewed(now)
			case "resigned":
				require.Equal(t, resign, k.next(now).deed)
				k.resigned(clientv3.LeaseID(num))
			case "revoked":
				require.Equal(t, revoke, k.next(now).deed)
				k.revoked(clientv3.LeaseID(num))
			case "lost":
				if !k.lost(now, clientv3.LeaseID(num)) {
					b.WriteString("not held\n")
				}
			case "failed":
				k.failed(now)
			case "reconnected":
				k.reconnected(now)
			case "doubt":
				k.doubt(now)
			default:
				d.Fatalf(t, "event %q is unknown", words[0])
			}
		}
		a := k.next(now)
		fmt.Fprintf(&b, "%s\n%s", k, a.deed)
		switch a.deed {
		case rest:
			if !a.until.IsZero() {
				fmt.Fprintf(&b, " for %s", a.until.Sub(now))
			}
		case write:
			fmt.Fprintf(&b, " #%d under %d", a.gen, a.lease)
			for _, l := range a.drop {
				fmt.Fprintf(&b, ", drop %d", l)
			}
		case renew, resign, revoke:
			fmt.Fprintf(&b, " %d", a.lease)
		default:
		}
		b.WriteByte('\n')
		return b.String()
	})
}

func TestATransactionDropsNoMoreKeysThanEtcdTakes(t *testing.T) {
	now := time.Unix(1000, 0)
	k := &keeper{ttl: time.Hour, retryMin: 1, retryMax: 1, jitter: func(d time.Duration) time.Duration { return d }}
	k.ask(true, 1)
	for l := clientv3.LeaseID(1); l < 200; l++ {
		k.granted(l)
	}
	a := k.next(now)
	require.Equal(t, write, a.deed)
	require.Len(t, a.drop, maxDrop)
	require.Equal(t, clientv3.LeaseID(198), a.drop[maxDrop-1], "the latest ones")
	for l := clientv3.LeaseID(200); l < 3*maxRetired; l++ {
		k.granted(l)
	}
	require.Len(t, k.retired, maxRetired)
	require.Equal(t, clientv3.LeaseID(3*maxRetired-2), k.retired[maxRetired-1].lease, "the latest ones")
}

func TestTroubleIsToldAtFirstWhenItChangesAndEachMinute(t *testing.T) {
	var tr trouble
	start := time.Unix(1000, 0)
	told := func(after time.Duration, text string) bool { return tr.failed(start.Add(after), errors.New(text)) }
	require.True(t, told(0, "a"))
	require.False(t, told(time.Second, "a"))
	require.False(t, told(2*time.Second, "b"), "too soon for another")
	require.True(t, told(5*time.Second, "b"))
	require.False(t, told(64*time.Second, "b"))
	require.True(t, told(65*time.Second, "b"))
	require.Equal(t, start, tr.since)
	require.EqualError(t, tr.err, "b")
}
