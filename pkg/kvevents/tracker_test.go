package kvevents

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
)

var phaseNames = [...]string{"disconnected", "replaying", "live"}

// String returns the lower-case name of the phase.
func (p Phase) String() string { return phaseNames[p] }

// The verbs of testdata/tracker. A sequence may be a range, 3-5. Each sequence has its
// own fingerprint; 3' has that of another publisher, and 3=2 that of sequence 2.
//
//	tracker [live-only]
//	empty-before 1
//	connect, disconnect, audit, end, fail, endless, cleared, restart, abandon
//	live 3-5, replayed 3', drain 7
func TestTrackerScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/tracker", func(t *testing.T, path string) {
		tr := NewTracker(true)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			line := d.Cmd
			for _, a := range d.CmdArgs {
				line += " " + a.String()
			}
			for line := range strings.Lines(line + "\n" + d.Input) {
				if f := strings.Fields(line); len(f) > 0 {
					trackerVerb(t, &tr, f, &out)
				}
			}
			last, seen := tr.Last()
			fmt.Fprintf(&out, "%s last=%d", tr.Phase(), last)
			if !seen {
				out.WriteString(" (none)")
			}
			if tr.Degraded() {
				out.WriteString(" degraded")
			}
			return out.String() + "\n"
		})
	})
}

func trackerVerb(t *testing.T, tr **Tracker, f []string, out *strings.Builder) {
	say := func(v Verdict) { fmt.Fprintf(out, "%s: %s\n", strings.Join(f, " "), verdict(v)) }
	each := func(judge func(seq, sum uint64) Verdict) {
		for _, a := range f[1:] {
			a, other := strings.CutSuffix(a, "'")
			a, payload, borrowed := strings.Cut(a, "=")
			from, to, ranged := strings.Cut(a, "-")
			if !ranged {
				to = from
			}
			lo, err := strconv.ParseUint(from, 10, 64)
			require.NoError(t, err)
			hi, err := strconv.ParseUint(to, 10, 64)
			require.NoError(t, err)
			for s := lo; s <= hi; s++ {
				sum := s + 1000
				if other {
					sum = s + 2000
				}
				if borrowed {
					like, err := strconv.ParseUint(payload, 10, 64)
					require.NoError(t, err)
					sum = like + 1000
				}
				fmt.Fprintf(out, "%s %d: %s\n", f[0], s, verdict(judge(s, sum)))
			}
		}
	}
	switch f[0] {
	case "tracker":
		*tr = NewTracker(len(f) == 1)
	case "connect":
		say((*tr).Connect())
	case "audit":
		say((*tr).Audit())
	case "end":
		say((*tr).ReplayEnd())
	case "fail":
		say((*tr).ReplayFail())
	case "empty-before":
		seq, err := strconv.ParseUint(f[1], 10, 64)
		require.NoError(t, err)
		(*tr).EmptyBefore(seq)
	case "endless":
		(*tr).Endless()
	case "disconnect":
		(*tr).Disconnect()
	case "cleared":
		(*tr).Cleared()
	case "restart": // of the process: later verbs are for the next one
		p, seen := (*tr).Position()
		*tr = NewTracker((*tr).replayable)
		if seen {
			(*tr).Resume(p)
		}
	case "abandon":
		fmt.Fprintf(out, "abandon: %v\n", (*tr).Abandon())
	case "live":
		each((*tr).Live)
	case "replayed":
		each((*tr).Replayed)
	case "drain":
		each((*tr).Drain)
	default:
		t.Fatalf("unknown verb %q", f[0])
	}
}

func verdict(v Verdict) string {
	var out []string
	if v.Reset {
		out = append(out, "reset ("+v.Cause.String()+")")
	}
	if v.Restore {
		out = append(out, "restore")
	}
	if v.Apply {
		out = append(out, "apply")
	}
	if v.Buffer {
		out = append(out, "buffer")
	}
	if v.Replay {
		out = append(out, fmt.Sprintf("replay from %d", v.From))
	}
	if v.Gap {
		out = append(out, "gap")
	}
	if out == nil {
		return "ignore"
	}
	return strings.Join(out, ", ")
}

// publisher is a worker's side: it sends messages with a payload each, and keeps the last
// ones for replays.
type publisher struct {
	life   uint64
	sent   []uint64 // fingerprints by sequence
	buffer int
}

// A publisher sends, loses, restarts, disconnects and forgets at random, and a driver
// obeys the tracker. Once the tracker is in step, the applied messages must be a run of
// the present publisher's messages without a hole, from the first one on unless the
// tracker says degraded.
func TestTrackerNeverBelievesWhatIsNotSo(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 300 {
		p := &publisher{buffer: 1 + rng.IntN(30)}
		replayable := round%4 != 0
		d := &driver{t: t, rng: rng, p: p, tr: NewTracker(replayable), failing: rng.IntN(3) == 0}
		for range 60 {
			d.step()
		}
		// At the end nothing fails any more, and one last message brings both in step.
		d.failing = false
		d.connect()
		d.publish(false)
		d.publish(false)
		for len(d.wire) > 0 {
			d.deliver()
		}
		require.NotEmpty(t, d.held)
		if replayable {
			require.Equal(t, p.sent[len(p.sent)-len(d.held):], d.held, "round %d", round)
			require.True(t, len(d.held) == len(p.sent) || d.tr.Degraded(), "round %d", round)
		} else if !d.tr.Degraded() {
			// Without replays the next sequence may hide a restart.
			require.LessOrEqual(t, len(d.held), len(p.sent))
		}
		require.LessOrEqual(t, d.restarts, p.life, "round %d: a restart that never was", round)
		require.Equal(t, Live, d.tr.Phase())
	}
}

type driver struct {
	t       *testing.T
	rng     *rand.Rand
	p       *publisher
	tr      *Tracker
	failing bool // replays may break
	up      bool
	held    []uint64 // applied since the last reset
	kept    []uint64 // of an earlier process, until they are judged
	buffer  []uint64 // sequences
	sums    []uint64
	wire    []sent // live messages that were sent and not received yet
	// restarts that the tracker has reported
	restarts uint64
}

type sent struct{ seq, sum uint64 }

func (d *driver) step() {
	switch k := d.rng.IntN(20); {
	case k == 0:
		d.p.life++
		d.p.sent = nil
		d.disconnect()
	case k == 1:
		d.disconnect()
	case k == 2 && d.rng.IntN(2) == 0:
		d.restartProcess()
	case k < 5:
		d.connect()
	case k == 5 && d.up:
		d.perform(d.tr.Audit(), 0, 0)
	case k < 8:
		d.publish(true)
	default:
		d.publish(false)
	}
	for d.rng.IntN(3) > 0 && len(d.wire) > 0 {
		d.deliver()
	}
}

// restartProcess starts a new tracker with the position and the blocks of the old one.
func (d *driver) restartProcess() {
	d.disconnect()
	p, seen := d.tr.Position()
	if d.tr = NewTracker(d.tr.replayable); seen {
		d.tr.Resume(p)
		d.kept = append(d.kept, d.held...)
	}
	if d.held = nil; d.rng.IntN(8) == 0 && d.tr.Abandon() {
		d.kept = nil
	}
}

func (d *driver) disconnect() {
	d.up, d.wire = false, nil
	d.tr.Disconnect()
}

func (d *driver) deliver() {
	m := d.wire[0]
	d.wire = d.wire[1:]
	d.perform(d.tr.Live(m.seq, m.sum), m.seq, m.sum)
}

func (d *driver) connect() {
	if !d.up {
		d.up, d.buffer, d.sums = true, nil, nil
		d.perform(d.tr.Connect(), 0, 0)
	}
}

func (d *driver) publish(lost bool) {
	seq := uint64(len(d.p.sent))
	sum := d.p.life<<32 | seq | 1<<63
	d.p.sent = append(d.p.sent, sum)
	if d.up && !lost {
		d.wire = append(d.wire, sent{seq, sum})
	}
}

// perform obeys a verdict. If that starts a replay, it also obeys all verdicts of the
// replay.
func (d *driver) perform(v Verdict, seq, sum uint64) {
	again, from := d.obey(v, seq, sum)
	for again {
		again, from = d.replay(from)
		for !again && len(d.buffer) > 0 {
			v := d.tr.Drain(d.buffer[0], d.sums[0])
			if v.Replay {
				require.True(d.t, v.Buffer)
				again, from = true, v.From
				break
			}
			d.obey(v, d.buffer[0], d.sums[0])
			d.buffer, d.sums = d.buffer[1:], d.sums[1:]
		}
	}
}

func (d *driver) obey(v Verdict, seq, sum uint64) (bool, uint64) {
	if v.Restore {
		require.False(d.t, v.Reset)
		require.Empty(d.t, d.held, "blocks were applied to what is not there yet")
		d.held, d.kept = d.kept, nil
	}
	if v.Reset {
		d.held, d.kept = nil, nil
		if v.Cause == Restarted {
			d.restarts++
		}
		if v.Replay {
			d.buffer, d.sums = nil, nil
		}
	}
	if v.Apply {
		require.Empty(d.t, d.kept, "applied while older blocks wait")
		d.held = append(d.held, sum)
	}
	if v.Buffer {
		d.buffer, d.sums = append(d.buffer, seq), append(d.sums, sum)
	}
	return v.Replay, v.From
}

func (d *driver) replay(from uint64) (bool, uint64) {
	breaks := d.failing && d.rng.IntN(3) == 0
	oldest := max(0, len(d.p.sent)-d.p.buffer)
	for i := max(oldest, int(from)); i < len(d.p.sent); i++ {
		if breaks && d.rng.IntN(4) == 0 {
			break
		}
		if again, from := d.obey(d.tr.Replayed(uint64(i), d.p.sent[i]), uint64(i), d.p.sent[i]); again {
			return true, from
		}
		if d.rng.IntN(10) == 0 { // a message is published while the replay runs
			d.publish(d.rng.IntN(5) == 0)
		}
		for d.rng.IntN(5) == 0 && len(d.wire) > 0 {
			m := d.wire[0]
			d.wire = d.wire[1:]
			v := d.tr.Live(m.seq, m.sum)
			require.False(d.t, v.Replay, "one connection, one publisher")
			d.obey(v, m.seq, m.sum)
		}
	}
	if breaks {
		return d.obey(d.tr.ReplayFail(), 0, 0)
	}
	return d.obey(d.tr.ReplayEnd(), 0, 0)
}
