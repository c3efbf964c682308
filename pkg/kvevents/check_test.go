package kvevents

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// No later event shows the gap, and no audit is due.
func TestTheLostLastEventOfAQuietStreamIsFound(t *testing.T) {
	require.LessOrEqual(t, Config{}.withDefaults().Check, 1500*time.Millisecond, "found within 2 s")
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, func(c *Config) { c.Audit, c.Check = time.Hour, 10*time.Millisecond })
	r.follow(w.source())
	w.store(1, false)
	r.eventually("heard", func() bool { return r.holds(one, w.held) && r.status(one).State == StateConnected })
	for n := 2; n < 5; n++ {
		w.store(n, true)
		r.eventually("found", func() bool { return r.holds(one, w.held) })
	}
	w.publish(event{"type": "AllBlocksCleared"}, true) // lost: the worker's cache was emptied while it was idle
	r.eventually("found", func() bool { return r.holds(one, nil) })
	require.Zero(t, r.status(one).Resets)
}

func TestChecksKeepTheirConnectionAndMakeNewOnesWhereItIsLost(t *testing.T) {
	p := newWirePublisher(t, false, 100, 1000)
	replays := strconv.Itoa(int(p.source().ReplayPort))
	var dialed atomic.Int64
	r := newRig(t, func(c *Config) {
		c.Audit, c.Check = time.Hour, time.Millisecond
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if _, port, _ := net.SplitHostPort(addr); port == replays {
				dialed.Add(1)
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	asked := func() int { _, _, n := p.counts(); return n }
	r.follow(p.source())
	r.eventually("asked often", func() bool { return asked() > 50 })
	require.LessOrEqual(t, dialed.Load(), int64(3), "the replay at the beginning, the audit after a second, the checks")
	was := asked()
	p.cut()
	r.eventually("asked again", func() bool { return asked() > was+50 && r.status(one).State == StateConnected })
	require.LessOrEqual(t, dialed.Load(), int64(7))
}

// Without a replay port the publisher cannot be asked, so AsOf stays at the last message.
func TestWhenItWasKnownLastThatNothingIsMissing(t *testing.T) {
	asked, mute := newZMQWorker(t, 0, 0), newZMQWorker(t, 0, -1)
	r := newRig(t, func(c *Config) { c.Audit, c.Check = time.Hour, 5*time.Millisecond })
	r.follow(asked.source(), mute.source())
	two := one
	two.ID = 2
	n := 0
	r.eventually("both heard", func() bool {
		n++
		asked.store(n, false)
		mute.store(n, false)
		return r.status(one).Seen && r.status(two).Seen
	})
	r.eventually("one is as of now", func() bool { s := r.status(one); return s.AsOf.After(s.LastAt.Add(20 * time.Millisecond)) })
	s := r.status(two)
	require.Equal(t, s.LastAt, s.AsOf)
}

func TestARankWhoseEngineHasEmptiedItsCacheHoldsNothing(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	w.store(1, false)
	r.eventually("heard", func() bool { return r.holds(one, w.held) && r.status(one).State == StateConnected })
	r.sub.Emptied(one)
	r.sub.Emptied(one) // it may be called repeatedly
	r.sub.Emptied(worker.Rank{ID: 99})
	require.True(t, r.holds(one, nil))
	require.Equal(t, uint64(1), r.status(one).Resets)
	w.store(2, false)
	r.eventually("it is followed as before", func() bool { return r.holds(one, map[int]bool{2: true}) })
	require.Equal(t, StateConnected, r.status(one).State)
}

// TestAnEngineWithOtherGroupsDoesNotTellAllThatDecides: the blocks of a sliding window go at
// other times than those that are followed, and without them the engine delivers nothing. A
// later process has learnt it, too.
func TestAnEngineWithOtherGroupsDoesNotTellAllThatDecides(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	w.store(1, false)
	r.eventually("heard", func() bool { _, _, all := r.sub.Heard(one); return all && r.holds(one, w.held) })
	w.publish(removal(event{"group_idx": 1}), false)
	w.publish(store(event{"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}), false)
	w.store(2, false)
	r.eventually("heard", func() bool { return r.status(one).OtherGroups && r.status(one).State == StateConnected })
	_, whole, all := r.sub.Heard(one)
	require.True(t, whole)
	require.False(t, all)
	require.True(t, r.holds(one, w.held))

	before, after := NewDecoder(2, 0, false), NewDecoder(2, 0, false)
	outcome(t, before, store(event{"group_idx": 1, "kv_cache_spec_kind": "mamba"}))
	after.resume(before.learnt())
	require.True(t, after.others)
	after.Reset()
	require.False(t, after.others)
}

// TestARankThatIsResyncedIsConnectedAnew: what it told before is dropped, and what it tells from then
// on is known, also what was missed while it was silent.
func TestARankThatIsResyncedIsConnectedAnew(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	w.store(1, false)
	r.eventually("heard", func() bool { return r.holds(one, w.held) && r.status(one).State == StateConnected })
	replays := r.status(one).Replays
	r.sub.Resync(one, true)
	r.sub.Resync(worker.Rank{ID: 99}, true)
	require.True(t, r.holds(one, nil))
	require.Equal(t, uint64(1), r.status(one).Resets)
	r.eventually("connected anew", func() bool { s := r.status(one); return s.Replays > replays && s.State == StateConnected })
	require.True(t, r.holds(one, nil), "what is replayed is what was missed")
	w.store(2, false)
	r.eventually("it is followed as before", func() bool { return r.holds(one, map[int]bool{2: true}) })
	replays = r.status(one).Replays
	r.sub.Resync(one, false)
	r.eventually("connected anew", func() bool { s := r.status(one); return s.Replays > replays && s.State == StateConnected })
	require.True(t, r.holds(one, map[int]bool{2: true}), "nothing was dropped")
	n, inStep, _ := r.sub.Heard(one)
	require.True(t, inStep)
	require.Equal(t, uint64(2), n)
	_, inStep, _ = r.sub.Heard(worker.Rank{ID: 99})
	require.False(t, inStep)
	require.Equal(t, "doubted", Doubted.String())
}
