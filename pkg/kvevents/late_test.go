package kvevents

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// heardWrote records the calls of Hooks.Wrote.
type heardWrote struct {
	mu         sync.Mutex
	calls      int
	live, late int // blocks
	broken     int // calls that said that something may be missing
}

func (h *heardWrote) hook(_ worker.Rank, blocks int, live bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	switch {
	case live:
		h.live += blocks
	case blocks > 0:
		h.late += blocks
	default:
		h.broken++
	}
}

// count is the number of calls.
func (h *heardWrote) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

// said returns what the calls since the last said had.
func (h *heardWrote) said() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := fmt.Sprintf("%d live, %d late, %d broken", h.live, h.late, h.broken)
	h.live, h.late, h.broken = 0, 0, 0
	return s
}

// handStream is a stream for which the test plays the connection. Replays do not run by
// themselves.
func handStream(t *testing.T, replayAddr string, hooks Hooks) *stream {
	t.Helper()
	index := newTree(t)
	index.Attach(one)
	cfg := Config{Index: index, Hooks: hooks, Dial: nowhere, ReplayAttempts: 1}.withDefaults()
	s := newStream(&cfg, one, source{addr: "w:1", replayAddr: replayAddr, blockSize: 2})
	ctx, cancel := context.WithCancel(t.Context())
	s.session = &session{
		ctx: ctx, conn: &conn{peer: "w:1"}, inbox: make(chan message, inboxMessages), inRoom: newRoom(), stopReplay: func() {},
		audit: time.NewTimer(time.Hour), check: time.NewTimer(time.Hour), checker: newChecker(&cfg, replayAddr),
	}
	t.Cleanup(func() {
		cancel()
		s.session.wg.Wait()
	})
	s.inTurn(func() { s.obey(s.tracker.Connect(), message{}) })
	return s
}

// chained is block n of a chain that begins with block 0.
func chained(n int) event {
	e := event{"block_hashes": []int{n}, "parent_block_hash": n - 1, "token_ids": []int{n, n}}
	if n == 0 {
		e["parent_block_hash"] = nil
	}
	return store(e)
}

func (s *stream) hears(m message) {
	s.inTurn(func() { s.obey(s.tracker.Live(m.seq, s.sum(m)), m) })
}

// replays gives the stream a replay of these messages, with its end.
func (s *stream) replays(t *testing.T, ms ...message) {
	t.Helper()
	for _, m := range ms {
		m, ok := parseReplayed([][]byte{nil, be64(m.seq), m.payload})
		require.True(t, ok)
		s.inTurn(func() { s.answered(answer{m: m}) })
	}
	s.inTurn(func() { s.answered(answer{end: true}) })
}

// Messages that were replayed or held back do not show how fast answers are written now.
func TestWhatIsReplayedOrHeldBackIsNotLive(t *testing.T) {
	t.Parallel()
	var heard heardWrote
	s := handStream(t, "w:2", Hooks{Wrote: heard.hook})
	sent := make([]message, 10)
	for n := range sent {
		sent[n] = message{seq: uint64(n), payload: payload(t, 0, chained(n))}
	}
	s.hears(sent[3])
	require.Equal(t, "0 live, 0 late, 0 broken", heard.said(), "it waits for the replay")
	s.replays(t, sent[0], sent[1], sent[2])
	require.Equal(t, "0 live, 3 late, 0 broken", heard.said())
	s.hears(sent[4])
	require.Equal(t, "1 live, 0 late, 0 broken", heard.said())
	s.hears(sent[6]) // message 5 is missing
	s.hears(sent[7])
	s.replays(t, sent[4], sent[5])
	require.Equal(t, "0 live, 3 late, 0 broken", heard.said())
	s.hears(sent[8])
	require.Equal(t, "1 live, 0 late, 0 broken", heard.said())
}

// After a loss that no replay repairs, the hook says that the count so far is not
// complete.
func TestALossBreaksWhatIsCounted(t *testing.T) {
	t.Parallel()
	var heard heardWrote
	s := handStream(t, "", Hooks{Wrote: heard.hook})
	s.hears(message{seq: 0, payload: payload(t, 0, chained(0))})
	s.hears(message{seq: 1, payload: payload(t, 0, chained(1), chained(2))})
	require.Equal(t, "2 live, 0 late, 0 broken", heard.said())
	s.hears(message{seq: 3, payload: payload(t, 0, block(9))})
	require.Equal(t, "0 live, 0 late, 1 broken", heard.said())
}

// The first message of a publisher that dials waits until its worker is known, so it
// counts as late.
func TestTheFirstMessageOfAPublisherThatDialsIsLate(t *testing.T) {
	t.Parallel()
	var heard heardWrote
	r, addr := bindRig(t, func(c *Config) { c.Hooks.Wrote = heard.hook })
	r.follow(worker.KVEvents{})
	r.attached(one)
	d := dialIn(t, addr)
	d.publish(t, "kv@127.0.0.1:1001@m", 0, 0, chained(1))
	r.eventually("the first", func() bool { return heard.count() == 1 })
	require.Equal(t, "0 live, 1 late, 0 broken", heard.said())
	d.publish(t, "kv@127.0.0.1:1001@m", 1, 0, chained(2))
	r.eventually("the second", func() bool { return heard.count() == 2 })
	require.Equal(t, "1 live, 0 late, 0 broken", heard.said())
}

// The hook is called once for all messages that have waited together, live ones and those
// of a replay: it takes a lock that picks need.
func TestMessagesThatWaitAreToldAsOne(t *testing.T) {
	t.Parallel()
	sent := func(n int) message {
		return message{seq: uint64(n), payload: payload(t, 0, chained(4*n), chained(4*n+1), chained(4*n+2), chained(4*n+3))}
	}
	t.Run("live", func(t *testing.T) {
		t.Parallel()
		var heard heardWrote
		s := handStream(t, "", Hooks{Wrote: heard.hook})
		inbox := s.session.inbox
		for n := range 256 {
			inbox <- sent(n)
		}
		for len(inbox) > 0 {
			s.inTurn(func() { s.takeLive(<-inbox) })
		}
		require.Equal(t, "1023 live, 0 late, 0 broken", heard.said())
		require.Equal(t, 4, heard.count())
	})
	t.Run("replayed", func(t *testing.T) {
		t.Parallel()
		var heard heardWrote
		s := handStream(t, "w:2", Hooks{Wrote: heard.hook})
		ss := s.session
		ss.stopReplay()
		ss.wg.Wait()
		ss.answers, ss.answerRoom = make(chan answer, 64), new(room)
		for n := range 63 {
			ss.answers <- answer{m: message{seq: uint64(n), payload: sent(n).payload, late: true}}
		}
		ss.answers <- answer{end: true}
		s.hears(sent(63)) // waits for the replay
		s.inTurn(func() { s.takeReplayed(<-ss.answers) })
		require.Equal(t, Live, s.tracker.Phase())
		require.Equal(t, "0 live, 255 late, 0 broken", heard.said())
		require.Equal(t, 1, heard.count())
	})
}

// Other goroutines wait for a turn, so few large messages must fill one.
func TestATurnTakesNoMoreBytesThanItMay(t *testing.T) {
	t.Parallel()
	sent := func(n int) message {
		e := chained(n)
		e["beside"] = strings.Repeat("x", 256<<10)
		return message{seq: uint64(n), payload: payload(t, 0, e)}
	}
	t.Run("live", func(t *testing.T) {
		t.Parallel()
		var heard heardWrote
		s := handStream(t, "", Hooks{Wrote: heard.hook})
		inbox := s.session.inbox
		for n := range 32 {
			inbox <- sent(n)
		}
		for turn := range 8 {
			s.inTurn(func() { s.takeLive(<-inbox) })
			require.Len(t, inbox, 28-4*turn)
		}
		require.Equal(t, "31 live, 0 late, 0 broken", heard.said())
	})
	t.Run("replayed", func(t *testing.T) {
		t.Parallel()
		s := handStream(t, "w:2", Hooks{})
		ss := s.session
		ss.stopReplay()
		ss.wg.Wait()
		answers := make(chan answer, 64)
		ss.answers, ss.answerRoom = answers, new(room)
		for n := range 8 {
			answers <- answer{m: message{seq: uint64(n), payload: sent(n).payload, late: true}}
		}
		answers <- answer{end: true}
		for turn := range 2 {
			s.inTurn(func() { s.takeReplayed(<-answers) })
			require.Len(t, answers, 5-4*turn)
			require.Equal(t, Replaying, s.tracker.Phase())
		}
		s.inTurn(func() { s.takeReplayed(<-answers) })
		require.Equal(t, Live, s.tracker.Phase())
	})
}

// While a replay runs, a thousand times as many messages may be held back as a turn
// takes. They are judged in turns, in their order, before newer messages.
func TestWhatWasHeldBackIsJudgedInTurns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		beside, held, most int // bytes in addition to each block; messages held back; most messages in a turn
		limit              int // most messages that may be held back; 0: no limit
	}{
		"many":                {0, 256, turnMessages, 0},
		"large":               {256 << 10, 16, 4, 0},
		"more than is waited": {0, 256, turnMessages, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var turns, longest, late, gaps int // guarded by the turn
			var whole uint64
			var s *stream
			s = handStream(t, "w:2", Hooks{
				Wrote: func(_ worker.Rank, blocks int, live bool) {
					longest = max(longest, blocks)
					if turns++; !live {
						late += blocks
					}
				},
				Gap: func(worker.Rank) { gaps++ },
				State: func(_ worker.Rank, st State) {
					if st == StateConnected || st == StateDegraded {
						whole, _ = s.tracker.Last()
					}
				},
			})
			s.cfg.Heartbeat = time.Hour
			ss := s.session
			ss.stopReplay()
			ss.wg.Wait()
			sent := func(n int) message {
				e := chained(n)
				e["beside"] = strings.Repeat("x", c.beside)
				return message{seq: uint64(n), payload: payload(t, 0, e)}
			}
			s.cfg.MaxBufferedBytes = 64 << 20
			if c.limit > 0 {
				s.cfg.MaxBufferedBytes = c.limit * len(sent(200).payload)
			}
			answers := make(chan answer, 64)
			ss.answers, ss.answerRoom = answers, new(room)
			n := c.held
			if c.limit > 0 {
				n = 20
			}
			for i := 1; i <= n; i++ {
				s.hears(sent(i))
			}
			for ; n < c.held; n++ {
				ss.inbox <- sent(n + 1)
			}
			if c.limit == 0 {
				answers <- answer{m: message{seq: 0, payload: sent(0).payload, late: true}}
				answers <- answer{end: true}
				ss.wg.Go(func() { _ = s.loop(ss) })
				require.Eventually(t, func() bool { return s.snapshot().LastSeq >= 1 }, 20*time.Second, time.Millisecond)
				ss.inbox <- sent(c.held + 1)
			} else {
				ss.inbox <- sent(c.held + 1)
				ss.wg.Go(func() { _ = s.loop(ss) })
			}
			require.Eventually(t, func() bool { return s.snapshot().LastSeq == uint64(c.held+1) }, 20*time.Second, time.Millisecond)
			s.turn.Lock()
			defer s.turn.Unlock()
			require.Zero(t, gaps)
			require.LessOrEqual(t, longest, c.most)
			require.Greater(t, turns, c.held/c.most)
			require.False(t, s.draining)
			require.Zero(t, ss.bufferBytes)
			if c.limit == 0 {
				require.Equal(t, c.held, late)
				require.EqualValues(t, c.held, whole, "until then it is replaying")
			}
		})
	}
}
