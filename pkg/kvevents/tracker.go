package kvevents

// Verdict says what must be done with the message that was judged. Reset comes first,
// then Restore, then Apply; Buffer and Replay may be done in either order. A verdict
// without any of them means that the message is ignored.
type Verdict struct {
	// Reset: drop all blocks of the rank, for Cause. If Replay is set too, also drop the
	// buffered messages: they may be of an earlier publisher, and the replay brings all
	// that was published so far.
	Reset bool
	Cause Cause
	// Apply: apply the message's events.
	Apply bool
	// Restore: before Apply, take the blocks that an earlier process held; the stream has
	// proved to be theirs. Never set together with Reset.
	Restore bool
	// Buffer: keep the message until the replay has ended.
	Buffer bool
	// Replay: ask for a replay from From on. A replay in progress is given up.
	Replay bool
	From   uint64
	// Gap: messages were found missing. It is only counted.
	Gap bool
}

// Position is how far a stream was applied. A later process resumes from it.
type Position struct {
	Last     uint64 `json:"last"`          // sequence of the last message applied
	Sum      uint64 `json:"sum,omitempty"` // fingerprint of that message
	Degraded bool   `json:"degraded,omitempty"`
}

// Cause says why a rank was reset.
type Cause uint8

// The causes. The set is closed: each is a label of a metric.
const (
	// Lost: messages are missing and cannot be replayed.
	Lost Cause = iota + 1
	// Restarted: the publisher began again.
	Restarted
	// Emptied: the engine said, elsewhere than in its events, that its cache is empty.
	Emptied
	// Doubted: the rank has turned out to hold less than its events say.
	Doubted
)

var causeNames = [...]string{"none", Lost: "lost", Restarted: "restarted", Emptied: "emptied", Doubted: "doubted"}

// String returns the lower-case name of the cause.
func (c Cause) String() string {
	if int(c) >= len(causeNames) {
		return "invalid"
	}
	return causeNames[c]
}

// Phase is the state of a [Tracker].
type Phase uint8

// The phases of a [Tracker].
const (
	Disconnected Phase = iota
	Replaying          // a replay is in progress; live messages are buffered
	Live               // live messages are judged as they come
)

// Tracker judges the messages of one publisher by their sequence. It is pure: it returns
// verdicts, and the caller performs them. Not safe for concurrent use.
//
// Each message has its sequence and a fingerprint of its payload. If a publisher restarts
// and reaches the same sequence again, the fingerprint of the message applied last shows
// the restart.
//
// NB: without replays, a publisher that restarted while the connection was down is not
// told from the old one if its next message happens to be the one after the last seen.
type Tracker struct {
	replayable bool
	empty      uint64 // messages before this sequence announce no blocks
	phase      Phase
	degraded   bool

	seen bool // a message was applied since the last reset
	last uint64
	sum  uint64 // fingerprint of message last
	// The live message heard last on this connection. A connection carries ascending
	// sequences, so a sequence at or below heardSeq is of a new publisher. A sequence at
	// or below last may just have been replayed first: a replay may overtake the live
	// stream.
	heard    bool
	heardSeq uint64
	heardSum uint64
	// endless: a replay on this connection had no end.
	endless bool
	// unproven: connected again, and the publisher has not yet proved to be the same.
	unproven bool
	// kept: the position is an earlier process's. Its blocks wait for the proof.
	kept bool

	// of the replay in progress
	proven   bool // the replay showed last, or a message after it
	progress bool // the replay applied something
	failed   bool // the last replay failed; until the next one begins
}

// NewTracker returns a tracker for a publisher that is not connected yet. replayable says
// whether the publisher offers replays.
func NewTracker(replayable bool) *Tracker { return &Tracker{replayable: replayable} }

// EmptyBefore says that messages before a sequence announce no blocks, so that missing
// them does not make the rank degraded.
func (t *Tracker) EmptyBefore(seq uint64) { t.empty = seq }

// Phase returns the tracker's state.
func (t *Tracker) Phase() Phase { return t.phase }

// Resume puts a tracker that has seen nothing at the position of an earlier process. The
// proof is the same as after a reconnect: the verdict on the message that brings it says
// Restore, and a verdict that goes on without it says Reset. Without replays the first
// message heard is the proof, if it is the next one or the last one once more.
func (t *Tracker) Resume(p Position) {
	t.seen, t.last, t.sum, t.degraded, t.unproven, t.kept = true, p.Last, p.Sum, p.Degraded, true, true
}

// Abandon undoes Resume. False means that it did not: the position was judged before, or
// a replay is in progress that judges it.
func (t *Tracker) Abandon() bool {
	if !t.kept || t.phase == Replaying {
		return false
	}
	t.forget()
	return true
}

// Position returns the tracker's position. False means that no message was applied.
func (t *Tracker) Position() (Position, bool) { return Position{t.last, t.sum, t.degraded}, t.seen }

// Degraded reports whether the worker may hold blocks that the index does not know.
func (t *Tracker) Degraded() bool { return t.degraded || t.kept }

// Last returns the sequence applied last. False means that there was none.
func (t *Tracker) Last() (uint64, bool) { return t.last, t.seen }

// Cleared notes that the worker dropped all blocks: messages that were missed before no
// longer matter.
func (t *Tracker) Cleared() { t.degraded = false }

// Connect notes that the subscription is made.
func (t *Tracker) Connect() Verdict {
	if !t.replayable {
		t.phase = Live
		return Verdict{}
	}
	return t.ask()
}

// Disconnect notes that the connection is gone. The caller drops the buffered messages.
func (t *Tracker) Disconnect() {
	t.phase, t.unproven, t.heard, t.endless = Disconnected, t.seen, false, false
}

// Endless notes, after ReplayFail, that a replay had no end. Until the next connection,
// no replay is asked for. The rank is degraded, since the worker may hold blocks that it
// has not told of in order.
func (t *Tracker) Endless() { t.endless, t.degraded = true, true }

func (t *Tracker) asks() bool { return t.replayable && !t.endless }

// Audit asks for a replay in a quiet time, to find missed messages. It does nothing
// unless the tracker is Live and replays are offered.
func (t *Tracker) Audit() Verdict {
	if t.phase != Live || !t.asks() {
		return Verdict{}
	}
	return t.ask()
}

// Next returns the sequence that would be contiguous. asks is false if the publisher must
// not be asked for it now.
func (t *Tracker) Next() (seq uint64, asks bool) { return t.next(), t.phase == Live && t.asks() }

// ask begins a replay at the last message seen, so that the answer shows whether the
// publisher is still the same.
func (t *Tracker) ask() Verdict {
	t.phase, t.proven, t.progress, t.failed = Replaying, false, false, false
	return Verdict{Replay: true, From: t.last} // last is 0 if nothing was seen
}

// Live judges a message of the subscription.
func (t *Tracker) Live(seq, sum uint64) Verdict {
	if t.heard && seq == t.heardSeq && sum == t.heardSum {
		return Verdict{} // the same message again
	}
	back := t.heard && seq <= t.heardSeq
	t.heard, t.heardSeq, t.heardSum = true, seq, sum
	switch {
	case back:
		return t.restart(seq, sum)
	case t.phase == Replaying:
		return Verdict{Buffer: true}
	case seq == t.next():
		return t.apply(Verdict{Restore: t.proof()}, seq, sum)
	case seq > t.next():
		return t.gap(seq, sum)
	case t.asks():
		return Verdict{} // replayed already
	case seq == t.last && sum == t.sum:
		return Verdict{Restore: t.proof()}
	default:
		return t.restart(seq, sum) // while the connection was down
	}
}

// Drain judges a message that was buffered during a replay. A verdict with Replay means
// that this message and those behind it stay buffered.
func (t *Tracker) Drain(seq, sum uint64) Verdict {
	if seq > t.next() && t.asks() && !t.failed && t.progress {
		v := t.ask()
		v.Buffer = true
		return v
	}
	switch {
	case seq == t.next():
		return t.apply(Verdict{}, seq, sum)
	case seq > t.next():
		return t.lose(seq, sum)
	default:
		return Verdict{} // replayed already
	}
}

// Replayed judges a message of the replay in progress. A verdict with Replay means that
// the rest of this replay must be ignored.
func (t *Tracker) Replayed(seq, sum uint64) Verdict {
	switch {
	case t.phase != Replaying:
		return Verdict{}
	case t.seen && seq == t.last:
		if sum == t.sum {
			t.proven = true
			return Verdict{Restore: t.proof()}
		}
		return t.restartReplay()
	case seq < t.next():
		return Verdict{}
	}
	// The publisher's own buffer no longer reaches back to last. After a reconnect even
	// the next message then proves nothing.
	contiguous := seq == t.next() && !t.unproven
	t.proven, t.unproven, t.progress = true, false, true
	if contiguous {
		return t.apply(Verdict{}, seq, sum)
	}
	return t.lose(seq, sum)
}

// ReplayEnd notes the end marker. Unless the verdict says Replay, the caller must drain
// its buffer next. A replay that did not even show the last message comes from a
// publisher that never sent it.
func (t *Tracker) ReplayEnd() Verdict {
	if t.phase != Replaying {
		return Verdict{}
	}
	if t.seen && !t.proven {
		return t.restartReplay()
	}
	t.phase = Live
	return Verdict{}
}

// ReplayFail notes that the replay failed. The caller must drain its buffer next; the
// messages are judged by sequence alone. After a reconnect even a matching sequence
// proves nothing, since a restarted publisher may have reached it too: the rank is reset.
func (t *Tracker) ReplayFail() Verdict {
	if t.phase != Replaying {
		return Verdict{}
	}
	t.phase, t.failed = Live, true
	v := Verdict{}
	if t.unproven {
		t.forget()
		v = Verdict{Reset: true, Cause: Lost}
	}
	if !t.seen {
		t.degraded = true // earlier messages are unknown
	}
	return v
}

// next is the sequence that would be contiguous. Publishers begin at 0.
func (t *Tracker) next() uint64 {
	if !t.seen {
		return 0
	}
	return t.last + 1
}

// proof notes that the publisher is the same. It reports whether blocks of an earlier
// process waited for that.
func (t *Tracker) proof() (kept bool) {
	kept, t.kept, t.unproven = t.kept, false, false
	return kept
}

func (t *Tracker) apply(v Verdict, seq, sum uint64) Verdict {
	t.kept = false
	if !t.seen && seq <= t.empty {
		t.degraded = false // nothing was missed
	}
	t.seen, t.last, t.sum = true, seq, sum
	v.Apply = true
	return v
}

// gap handles a live message whose predecessors are missing.
func (t *Tracker) gap(seq, sum uint64) Verdict {
	var v Verdict
	seen := t.seen // false: only the beginning is missing
	if t.asks() {
		v = t.ask()
		v.Buffer = true
	} else {
		v = t.lose(seq, sum)
	}
	v.Gap = seen
	return v
}

// lose goes on at seq without the messages before it.
func (t *Tracker) lose(seq, sum uint64) Verdict {
	v := Verdict{}
	if t.seen {
		v = Verdict{Reset: true, Cause: Lost}
	}
	t.degraded = true
	return t.apply(v, seq, sum)
}

func (t *Tracker) forget() {
	t.seen, t.last, t.sum, t.degraded, t.unproven, t.kept = false, 0, 0, false, false, false
}

// restart handles a live message whose sequence went back.
func (t *Tracker) restart(seq, sum uint64) Verdict {
	t.forget()
	v := Verdict{Reset: true, Cause: Restarted}
	if t.asks() {
		a := t.ask()
		v.Buffer, v.Replay, v.From = true, true, a.From
		return v
	}
	return t.begin(v, seq, sum)
}

// begin applies the first message seen of a publisher.
func (t *Tracker) begin(v Verdict, seq, sum uint64) Verdict {
	t.degraded = seq > t.empty
	return t.apply(v, seq, sum)
}

// restartReplay handles a replay that shows a restarted publisher.
func (t *Tracker) restartReplay() Verdict {
	t.forget()
	v := t.ask()
	v.Reset, v.Cause = true, Restarted
	return v
}
