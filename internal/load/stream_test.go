package load

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// kvEvent is an event as engines publish it.
type kvEvent map[string]any

// grows stores block n of one chain.
func grows(n int) kvEvent {
	return kvEvent{
		"type": "BlockStored", "block_hashes": []int{n + 1}, "parent_block_hash": n, "token_ids": make([]int, 16),
		"block_size": 16, "medium": "GPU",
	}
}

// publisher is a worker's stream of KV events: it writes the far end of one connection
// (ZMTP 3.1).
type publisher struct {
	t       *testing.T
	here    net.Conn // the subscriber's
	far     net.Conn
	greeted chan struct{}
	seq     uint64
}

func newPublisher(t *testing.T) *publisher {
	t.Helper()
	p := &publisher{t: t, greeted: make(chan struct{})}
	p.here, p.far = net.Pipe()
	var said sync.WaitGroup
	said.Go(func() { _, _ = io.Copy(io.Discard, p.far) }) // the subscriber's bytes are not needed
	said.Go(func() {
		defer close(p.greeted)
		greeting := make([]byte, 64)
		greeting[0], greeting[9], greeting[10], greeting[11] = 0xff, 0x7f, 3, 1
		copy(greeting[12:], "NULL")
		_, _ = p.far.Write(append(greeting, "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"...))
	})
	t.Cleanup(func() {
		_ = p.far.Close()
		said.Wait()
	})
	return p
}

// dial returns the subscriber's end of the connection.
func (p *publisher) dial(context.Context, string, string) (net.Conn, error) { return p.here, nil }

// publish sends a message and waits until the subscriber has applied it.
func (p *publisher) publish(s *kvevents.Subscriber, events ...any) {
	p.t.Helper()
	b, err := msgpack.Marshal([]any{0.5, events, 0})
	require.NoError(p.t, err)
	frames := append([]byte{1, 0, 1, 8}, binary.BigEndian.AppendUint64(nil, p.seq)...) // an empty topic, then the sequence
	frames = append(binary.BigEndian.AppendUint64(append(frames, 2), uint64(len(b))), b...)
	<-p.greeted
	_, err = p.far.Write(frames)
	require.NoError(p.t, err)
	p.seq++
	require.Eventually(p.t, func() bool { return s.Status()[0].Messages == p.seq }, 20*time.Second, time.Millisecond)
}

// fed is a book that gets the KV events of one rank, and a second book that does not.
// With each call of the hook their time goes on by 0.6 s.
type fed struct {
	mu          sync.Mutex
	now         time.Time
	calls       int
	book, quiet *Book
	lately      outlen.Lately
	answers     [2]*Reservation
}

func (f *fed) both(do func(b *Book, r *Reservation)) {
	do(f.book, f.answers[0])
	do(f.quiet, f.answers[1])
}

func (f *fed) wrote(r worker.Rank, blocks int, live bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	f.now = f.now.Add(600 * time.Millisecond)
	if w, compared := f.book.Wrote(r, blocks, live, f.now); compared {
		f.lately.Wrote(key, w.Blocks*16, w.Seconds)
	}
}

// After a stream of senseless events, bookings and expected answers are as without it.
func TestEventsThatMeanNothingChangeNothing(t *testing.T) {
	t.Parallel()
	of := func(change kvEvent) []kvEvent {
		var out []kvEvent
		for n := range 8 {
			e := grows(n)
			maps.Copy(e, change)
			out = append(out, e)
		}
		return out
	}
	for name, c := range map[string]struct {
		events        []kvEvent
		ended, absent bool
		told, changes bool
	}{
		"a running answer's":      {events: of(nil), told: true, changes: true},
		"an ended answer's":       {events: of(nil), ended: true, told: true},
		"an unknown worker's":     {events: of(nil), absent: true, told: true},
		"no tokens":               {events: of(kvEvent{"token_ids": []int{}})},
		"too few tokens":          {events: of(kvEvent{"token_ids": []int{1, 2, 3}})},
		"too many tokens":         {events: of(kvEvent{"token_ids": make([]int, 1000)})},
		"no block":                {events: of(kvEvent{"block_hashes": []int{}})},
		"blocks of nothing":       {events: of(kvEvent{"block_size": 0})},
		"blocks of less":          {events: of(kvEvent{"block_size": -16})},
		"blocks of half of all":   {events: of(kvEvent{"block_size": uint64(1) << 63})},
		"a length that is a text": {events: of(kvEvent{"block_size": "sixteen"})},
		"tokens that are none":    {events: of(kvEvent{"token_ids": "sixteen"})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testWorker(t, 1, worker.Decode, 1, 8000)
			f := fed{now: time.Unix(1000, 0), book: New(1), quiet: New(1), answers: [2]*Reservation{new(Reservation), new(Reservation)}}
			p := newPublisher(t)
			w.KVEvents = worker.KVEvents{Host: "w", Port: 1}
			s, params := snapshot(t, w), picker.DecodeOverride(*params())
			f.lately.Booked(key)
			expected := f.lately.Expect(key, outlen.NotSaid)
			f.both(func(b *Book, r *Reservation) {
				b.Update(s)
				_, err := b.PickAndReserve(&Request{
					Key: key, Ranks: s.Pool(key).DecodeRanks, Params: &params, Now: f.now, Growth: Growth{PerSecond: 0.5, Most: 10},
					Pick: picker.Request{Role: worker.Decode, ISLTokens: 16},
				}, r)
				require.NoError(t, err)
				if c.ended {
					r.Release(f.now)
				}
				if c.absent {
					b.Update(snapshot(t))
				}
			})
			tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, kvindex.NewSlots())
			require.NoError(t, err)
			sub, err := kvevents.NewSubscriber(kvevents.Config{Index: tree, Dial: p.dial, Hooks: kvevents.Hooks{Wrote: f.wrote}})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- sub.Run(ctx) }()
			sub.Update(s)
			require.Eventually(t, func() bool { return len(sub.Status()) == 1 }, 20*time.Second, time.Millisecond)
			for _, e := range c.events {
				p.publish(sub, e)
			}
			cancel()
			require.NoError(t, <-done)

			require.Equal(t, c.told, f.calls > 0, "%d calls", f.calls)
			end := time.Unix(1010, 0)
			var said [2]string
			f.both(func(b *Book, _ *Reservation) {
				held, known := b.DecodingBlocks(worker.Rank{ID: 1}, end)
				i := 0
				if b == f.quiet {
					i = 1
				}
				said[i] = fmt.Sprintf("%d blocks of a rank that is known: %v; %+v; %d entries, %d turns", held, known, b.Totals(), len(b.entries), len(b.turns))
			})
			if c.changes {
				require.NotEqual(t, said[1], said[0])
				require.NotEqual(t, expected, f.lately.Expect(key, outlen.NotSaid))
				return
			}
			require.Equal(t, said[1], said[0])
			require.Equal(t, expected, f.lately.Expect(key, outlen.NotSaid))
			if !c.ended && !c.absent {
				f.both(func(_ *Book, r *Reservation) { r.Release(end) })
			}
		})
	}
}

// If a stream announces more blocks than its rank can hold, the book believes only as
// many as the rank can hold.
func TestNoMoreIsBelievedOfEventsThanARankCanHold(t *testing.T) {
	t.Parallel()
	w := testWorker(t, 1, worker.Decode, 1, 8000)
	w.CapacityBlocks = 500
	s, params, now := snapshot(t, w), picker.DecodeOverride(*params()), time.Unix(1000, 0)
	b, r := New(1), new(Reservation)
	b.Update(s)
	rank := worker.Rank{ID: 1}
	_, err := b.PickAndReserve(&Request{
		Key: key, Ranks: s.Pool(key).DecodeRanks, Params: &params, Now: now, Growth: Growth{PerSecond: 1, Most: 20},
		Pick: picker.Request{Role: worker.Decode, ISLTokens: 16},
	}, r)
	require.NoError(t, err)
	for range 5 {
		now = now.Add(1100 * time.Millisecond)
		b.Wrote(rank, 100_000, true, now)
	}
	held, _ := b.DecodingBlocks(rank, now)
	require.LessOrEqual(t, held, int64(500+1+20))
	r.Release(now)
	held, _ = b.DecodingBlocks(rank, now)
	require.Zero(t, held)
}
