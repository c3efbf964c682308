package outlen

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The verbs of testdata; max is of the request, and may be left out:
//
//	heard [times=1] [model=m] [max=100] tokens=80 [first=1s] whole=3s
//	expect [model=m] [max=100]
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var l Lately
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var a Answer
			times, k, seconds := 1, worker.Key{Model: "m"}, 0.0
			a.MaxTokens = NotSaid
			for _, arg := range d.CmdArgs {
				var err error
				switch v := arg.Vals[0]; arg.Key {
				case "times":
					_, err = fmt.Sscan(v, &times)
				case "model":
					k.Model = v
				case "max":
					_, err = fmt.Sscan(v, &a.MaxTokens)
				case "tokens":
					_, err = fmt.Sscan(v, &a.Tokens)
				case "seconds":
					_, err = fmt.Sscan(v, &seconds)
				case "first":
					a.First, err = time.ParseDuration(v)
				case "whole":
					a.Whole, err = time.ParseDuration(v)
				default:
					require.Fail(t, "unknown argument", arg.Key)
				}
				require.NoError(t, err, d.Pos)
			}
			switch d.Cmd {
			case "heard":
				for range times {
					l.Heard(k, a)
				}
				return ""
			case "wrote":
				l.Wrote(k, float64(a.Tokens), seconds)
				return ""
			}
			e := l.Expect(k, a.MaxTokens)
			return strings.TrimSpace(fmt.Sprintf("first after %v, %.4g a second, at most %d", e.First.Round(time.Millisecond), e.PerSecond, e.Tokens)) + "\n"
		})
	})
}

func name(i int) worker.Key { return worker.Key{Model: fmt.Sprint(i)} }

// known returns how many of the first n names something is known of.
func known(l *Lately, n int) (known int) {
	for i := range n {
		if l.Expect(name(i), NotSaid) != new(Lately).Expect(name(i), NotSaid) {
			known++
		}
	}
	return known
}

func TestNoMoreModelsAreKnownThanFit(t *testing.T) {
	var l Lately
	for i := range 3 * mostModels {
		l.Heard(name(i), Answer{Tokens: 11, First: time.Second, Whole: 2 * time.Second})
		l.Heard(name(0), Answer{Tokens: 21, First: time.Second, Whole: 2 * time.Second})
	}
	require.Equal(t, mostModels, known(&l, 3*mostModels))
	require.InDelta(t, 20, l.Expect(name(0), NotSaid).PerSecond, 0.1, "the one that was heard of lately stays")
	require.InDelta(t, defaultPace, l.Expect(name(1), NotSaid).PerSecond, 0)
	require.InDelta(t, 10, l.Expect(name(3*mostModels-1), NotSaid).PerSecond, 0)
}

// A worker tells of what it writes under each of its names: those that nobody asks for are
// not known for it, and keep no other from being forgotten.
func TestNamesThatNobodyAsksForAreNotKnown(t *testing.T) {
	var l Lately
	for i := range 3 * mostModels {
		l.Wrote(name(i), 60, 1)
	}
	require.Zero(t, known(&l, 3*mostModels))
	l.Booked(name(0))
	l.Wrote(name(0), 60, 1)
	require.InDelta(t, 60, l.Expect(name(0), NotSaid).PerSecond, 0, "what was booked is known")
	for i := range 2 * mostModels {
		l.Expect(name(1+i), NotSaid)
	}
	require.InDelta(t, 60, l.Expect(name(0), NotSaid).PerSecond, 0, "whoever only asks leaves no trace")
	for i := range mostModels {
		require.Equal(t, 1, known(&l, 1), "%d others are known", i)
		l.Booked(name(1 + i))
		l.Wrote(name(0), 60, 1)
	}
	require.Zero(t, known(&l, 1), "the one that was booked longest ago goes, whatever was asked of it or written under its name")
	require.Less(t, mostModels*int(unsafe.Sizeof(model{})), 3<<20)
}

func TestAnExpectationAllocatesNothing(t *testing.T) {
	var l Lately
	k := worker.Key{Model: "m"}
	l.Heard(k, Answer{Tokens: 11, Whole: time.Second})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		l.Heard(k, Answer{MaxTokens: 7, Tokens: 11, Whole: time.Second})
		l.Expect(k, 7)
	}))
}
