package trouble

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func start() time.Time { return time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC) }

func at(d time.Duration) time.Time { return start().Add(d) }

func TestEveryKindHasOneRowAndAName(t *testing.T) {
	seen := map[Kind]bool{}
	for _, k := range Kinds() {
		require.NotEmpty(t, k)
		require.False(t, seen[k], k)
		seen[k] = true
		require.Regexp(t, `^[a-z_]+$`, string(k))
	}
	n := ByKind([]Trouble{{Kind: WorkerAside, Count: 7}, {Kind: WorkerAside}, {Kind: ViewStale}})
	require.Len(t, n, len(seen))
	require.EqualValues(t, 8, n["worker_aside"])
	require.EqualValues(t, 1, n["view_stale"])
	require.EqualValues(t, 0, n["not_ready"])
}

func TestATroubleSaysWhatItDoesAndWhatToDo(t *testing.T) {
	x := Trouble{Kind: QueueFull, What: "The queue is full."}
	require.Equal(t, "FULL: The queue is full. New requests get 429. Add prefill workers, or raise prefill.max_queued_isl_tokens.", x.Line())
	require.True(t, x.Severe())
	x.Lighter = true
	require.False(t, x.Severe())
	x = Trouble{Kind: PoolMixed, What: "Two block sizes"}
	require.Equal(t, "Two block sizes.", x.Line())
	x.Effect, x.Do = "None is found", "Use one"
	require.Equal(t, "Two block sizes. None is found. Use one.", x.Line())
	x = Trouble{Kind: "of another version", What: "It"}
	require.Equal(t, "It.", x.Line())
}

func TestTheSevereComeFirst(t *testing.T) {
	ts := []Trouble{{Kind: RecordLost}, {Kind: QueueFull, Lighter: true}, {Kind: WorkerAside, Subject: "b"}, {Kind: WorkerAside, Subject: "a"}, {Kind: NotReady}}
	Sort(ts)
	var order []string
	for _, x := range ts {
		order = append(order, string(x.Kind)+x.Subject)
	}
	require.Equal(t, []string{"not_ready", "worker_asideb", "worker_asidea", "queue_full", "record_lost"}, order)
}

func TestATroubleBeginsOnceAndEndsOnce(t *testing.T) {
	var w Watch
	look := func(d time.Duration, ts ...Trouble) (begun, ended int, since time.Time) {
		b, e := w.Look(ts, at(d))
		if len(ts) > 0 {
			since = ts[0].Since
		}
		return len(b), len(e), since
	}
	x := Trouble{Kind: WorkerAside, Subject: "1"}
	begun, ended, since := look(0, x)
	require.Equal(t, []any{1, 0, at(0)}, []any{begun, ended, since})
	begun, ended, since = look(2*time.Second, x)
	require.Equal(t, []any{0, 0, at(0)}, []any{begun, ended, since}, "it is known since when it lasts")
	begun, ended, _ = look(4 * time.Second)
	require.Equal(t, []int{0, 0}, []int{begun, ended}, "it may come back")
	begun, ended, since = look(5*time.Second, x)
	require.Equal(t, []any{0, 0, at(0)}, []any{begun, ended, since}, "what comes and goes is told once")
	begun, ended, _ = look(5*time.Second + Calm)
	require.Equal(t, []int{0, 1}, []int{begun, ended})
	begun, ended, _ = look(20 * time.Second)
	require.Equal(t, []int{0, 0}, []int{begun, ended})
	begun, _, since = look(21*time.Second, x, Trouble{Kind: ViewStale, Since: at(time.Second)})
	require.Equal(t, []any{2, at(21 * time.Second)}, []any{begun, since})
	begun, ended, _ = look(-time.Hour, x)
	require.Equal(t, []int{0, 1}, []int{begun, ended}, "the clock was set back: what is not there has ended")
}

func TestSubjectsFromOutsideDoNotDecideHowMuchIsHeld(t *testing.T) {
	var w Watch
	var b Board
	var many []Trouble
	for i := range 1000 {
		many = append(many, Trouble{Kind: DiscoveryProblem, Subject: fmt.Sprint(i)})
		b.Put(many[i], start())
	}
	begun, _ := w.Look(many, start())
	require.Len(t, begun, MostOfKind)
	require.Len(t, w.known, MostOfKind)
	require.Len(t, b.List(), MostOfKind)
	begun, _ = w.Look(append(many, Trouble{Kind: ViewStale}), at(time.Second))
	require.Len(t, begun, 1, "another kind has room")
}

func TestWhatAPartPutsOnTheBoardItTakesOff(t *testing.T) {
	var b Board
	b.Set(IndexDump, "", "no room", at(0))
	b.Set(IndexDump, "", "read-only", at(time.Minute))
	b.Set(ModelFiles, "b", "x", at(0))
	b.Set(ModelFiles, "a", "y", at(0))
	ts := b.List()
	require.Len(t, ts, 3)
	require.Equal(t, []string{"a", "b", ""}, []string{ts[0].Subject, ts[1].Subject, ts[2].Subject})
	require.Equal(t, Trouble{Kind: IndexDump, Since: at(0), What: "read-only"}, ts[2], "it lasts since it began")
	b.Set(IndexDump, "", "", at(2*time.Minute))
	b.Take(ModelFiles, "a")
	require.Len(t, b.List(), 1)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 100 {
				b.Set(ModelFiles, fmt.Sprint(i), "x", start())
				b.List()
				b.Take(ModelFiles, fmt.Sprint(i))
			}
		})
	}
	all.Wait()
	require.Len(t, b.List(), 1)
}
