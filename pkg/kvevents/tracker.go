package kvevents

// Verdict is what must be done with the message in hand. Reset comes first,
// then Apply; Buffer and Replay may be done in either order. All false: ignore
// the message.
type Verdict struct {
	// Reset: drop all blocks of the rank, for Cause. Together with Replay: and
	// whatever is buffered, since it may be of an earlier publisher; the replay
	// brings all that was published so far.
	Reset bool
	Cause Cause
	// Apply: apply the message's events.
	Apply bool
	// Restore: take the blocks that an earlier process held, before Apply: they
	// are of this very stream, up to here. Never together with Reset.
	Restore bool
	// Buffer: keep the message until the replay has ended.
	Buffer bool
	// Replay: ask for a replay from From, giving up one in progress.
	Replay bool
	From   uint64
	// Gap: messages were found missing. Nothing but worth counting.
	Gap bool
}

// Position is how far a stream was applied: what a later process resumes from.
type Position struct {
	Last     uint64 // sequence of the last message applied
	Sum      uint64 // its fingerprint
	Degraded bool
}

// Cause says why a rank was reset.
type Cause uint8

// The causes. The set is closed: each is a label of a metric.
const (
	// Lost: messages are missing and cannot be replayed.
	Lost Cause = iota + 1
	// Restarted: the publisher began again.
	Restarted
	// Emptied: the engine says by other means that its cache is empty.
	Emptied
)

// String returns the lower-case name of the cause.
func (c Cause) String() string {
	switch c {
	case Lost:
		return "lost"
	case Restarted:
		return "restarted"
	case Emptied:
		return "emptied"
	}
	return "none"
}

// Phase is where a [Tracker] stands.
type Phase uint8

// The phases.
const (
	Disconnected Phase = iota
	Replaying          // a replay is in progress; live messages are buffered
	Live               // live messages are judged as they come
)

var phaseNames = [...]string{"disconnected", "replaying", "live"}

// String returns the lower-case name of the phase.
func (p Phase) String() string { return phaseNames[p] }

// Tracker judges the messages of one publisher by their sequence. It is pure:
// it does nothing but answer. Not safe for concurrent use.
//
// NB: without replay, a publisher that restarted while the connection was down
// and whose next message happens to be the one after the last seen is taken for
// the old one.
//
// Each message has its sequence and a fingerprint of its payload. The
// fingerprint of the last one applied tells a publisher that restarted and
// has passed the same sequence from one that never stopped.
type Tracker struct {
	replayable bool
	empty      uint64 // messages before this sequence tell of no block
	phase      Phase
	degraded   bool

	seen bool // a message was applied since the last reset
	last uint64
	sum  uint64 // fingerprint of last
	// The live message heard last on this connection. A connection carries
	// ascending sequences, so one that is not above it is of a new publisher,
	// whereas one that is merely not above last was replayed first: a replay may
	// overtake the live stream.
	heard    bool
	heardSeq uint64
	heardSum uint64
	// endless: what it replays on this connection has no end.
	endless bool
	// unproven: reconnected, and not known yet to be the same publisher.
	unproven bool
	// kept: the position is an earlier process's, and so are the blocks, which
	// wait for the proof.
	kept bool

	// of the replay in progress
	proven   bool // it showed last, or what follows it
	progress bool // it applied something
	failed   bool // it could not be had; until the next is asked for
}

// NewTracker returns a tracker for a publisher that is not connected yet.
// replayable says whether it offers replays.
func NewTracker(replayable bool) *Tracker { return &Tracker{replayable: replayable} }

// EmptyBefore says that the messages before a sequence tell of no block, so that
// who has not heard them has missed nothing.
func (t *Tracker) EmptyBefore(seq uint64) { t.empty = seq }

// Phase returns where the tracker stands.
func (t *Tracker) Phase() Phase { return t.phase }

// Resume puts a tracker that has seen nothing where one of an earlier process
// stood. It asks for the same proof as after a reconnect, and the verdict that
// has it says Restore; every other one that goes on says Reset. Without replays
// the proof is that the first message heard is the next one, or the last once
// more.
func (t *Tracker) Resume(p Position) {
	t.seen, t.last, t.sum, t.degraded, t.unproven, t.kept = true, p.Last, p.Sum, p.Degraded, true, true
}

// Abandon takes Resume back, where nothing was heard since, and reports whether
// it did.
func (t *Tracker) Abandon() bool {
	if !t.kept || t.phase == Replaying {
		return false
	}
	t.forget()
	return true
}

// Position returns where the tracker stands, if it has seen anything.
func (t *Tracker) Position() (Position, bool) { return Position{t.last, t.sum, t.degraded}, t.seen }

// Degraded reports whether blocks may be held that the index was never told of.
func (t *Tracker) Degraded() bool { return t.degraded || t.kept }

// Last returns the sequence applied last, if any.
func (t *Tracker) Last() (uint64, bool) { return t.last, t.seen }

// Cleared notes that the worker dropped all blocks: whatever was missed is gone.
func (t *Tracker) Cleared() { t.degraded = false }

// Connect notes that the subscription stands.
func (t *Tracker) Connect() Verdict {
	if !t.replayable {
		t.phase = Live
		return Verdict{}
	}
	return t.ask()
}

// Disconnect notes that the connection is gone, with all that was buffered.
func (t *Tracker) Disconnect() {
	t.phase, t.unproven, t.heard, t.endless = Disconnected, t.seen, false, false
}

// Endless notes, after ReplayFail, that a replay had no end: on this connection
// the publisher counts as one that offers none, and blocks may be held that it has
// not told of in order.
func (t *Tracker) Endless() { t.endless, t.degraded = true, true }

func (t *Tracker) asks() bool { return t.replayable && !t.endless }

// Audit asks whether anything was missed. It is for quiet times; it does
// nothing unless the tracker is Live and replays are offered.
func (t *Tracker) Audit() Verdict {
	if t.phase != Live || !t.asks() {
		return Verdict{}
	}
	return t.ask()
}

// Next returns the sequence that would be contiguous, and whether it is a time at
// which the publisher may be asked for it.
func (t *Tracker) Next() (seq uint64, asks bool) { return t.next(), t.phase == Live && t.asks() }

// ask begins a replay at the last message seen, so that the answer proves who
// is answering.
func (t *Tracker) ask() Verdict {
	t.phase, t.proven, t.progress, t.failed = Replaying, false, false, false
	return Verdict{Replay: true, From: t.last} // 0 when nothing was seen
}

// Live judges a message of the subscription.
func (t *Tracker) Live(seq, sum uint64) Verdict {
	if t.heard && seq == t.heardSeq && sum == t.heardSum {
		return Verdict{} // the same message once more
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

// Drain judges a message that was buffered while a replay ran. A verdict with
// Replay means that this message and those behind it stay buffered.
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

// Replayed judges a message of the replay in progress. A verdict with Replay
// means that the rest of this replay is to be ignored.
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
	// Its buffer no longer reaches back to the last message: after a reconnect
	// even the next one proves nothing.
	contiguous := seq == t.next() && !t.unproven
	t.proven, t.unproven, t.progress = true, false, true
	if contiguous {
		return t.apply(Verdict{}, seq, sum)
	}
	return t.lose(seq, sum)
}

// ReplayEnd notes the end marker. Unless the verdict says Replay, the buffer is
// to be drained next. A replay that did not even show the last message is of a
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

// ReplayFail notes that the replay could not be had. The buffer is to be
// drained next, by sequence alone. After a reconnect even the sequence proves
// nothing, since a restarted publisher may stand where the old one stood: the
// rank is reset.
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
		t.degraded = true // what came before is unknown
	}
	return v
}

// next is the sequence that would be contiguous. A publisher begins at 0.
func (t *Tracker) next() uint64 {
	if !t.seen {
		return 0
	}
	return t.last + 1
}

// proof notes that it is the same publisher, and reports whether blocks wait for
// that.
func (t *Tracker) proof() (kept bool) {
	kept, t.kept, t.unproven = t.kept, false, false
	return kept
}

func (t *Tracker) apply(v Verdict, seq, sum uint64) Verdict {
	t.kept = false
	if !t.seen && seq <= t.empty {
		t.degraded = false // from the very beginning
	}
	t.seen, t.last, t.sum = true, seq, sum
	v.Apply = true
	return v
}

// gap: messages between the last one and seq are missing.
func (t *Tracker) gap(seq, sum uint64) Verdict {
	var v Verdict
	seen := t.seen // else it is but the beginning that is missing
	if t.asks() {
		v = t.ask()
		v.Buffer = true
	} else {
		v = t.lose(seq, sum)
	}
	v.Gap = seen
	return v
}

// lose goes on at seq without what came before it.
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

// restart: the sequence of a live message went back.
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

// restartReplay: the replay in progress is of a publisher that has restarted.
func (t *Tracker) restartReplay() Verdict {
	t.forget()
	v := t.ask()
	v.Reset, v.Cause = true, Restarted
	return v
}
