package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// tiny is two conversations whose second turns come in the other order, and
// the second turn of the first one again.
const tiny = `{"timestamp": 1000, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 1100, "input_length": 1030, "output_length": 1, "hash_ids": [3, 4, 9]}
{"timestamp": 6000, "input_length": 1536, "output_length": 1, "hash_ids": [3, 4, 6]}
{"timestamp": 6100, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 5]}
{"timestamp": 12000, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 5]}
`

// oneBlockASecond is a fleet whose times can be worked out by hand.
func oneBlockASecond(ranks, capacity int) fleet {
	return fleet{Ranks: ranks, Capacity: capacity, Speed: traceBlock, EventDelay: time.Millisecond}
}

func read(t *testing.T, text string) []replay.Request {
	t.Helper()
	w, err := replay.ParseTrace([]byte(text), 0, 1)
	require.NoError(t, err)
	return w.Requests
}

// sampled is what became of a trace, by request and in sum.
type sampled struct {
	replay.Figures
	ttft                   []time.Duration
	tokens, hits, believed int
}

// sample runs a mode by name.
func sample(t *testing.T, trace []replay.Request, f fleet, name string, seed uint64) sampled {
	t.Helper()
	return sampleBy(t, trace, f, name, 1, seed)
}

// sampleBy is sample with so many replicas of the plugin.
func sampleBy(t *testing.T, trace []replay.Request, f fleet, name string, replicas int, seed uint64) (out sampled) {
	t.Helper()
	m, err := chosen(name, f.Speed)
	require.NoError(t, err)
	m = replicated(m, []int{replicas}, -1)
	m[0].plugin.RoutedTTL, m[0].plugin.PredictedTTL = f.RoutedTTL, f.PredictedTTL
	r, err := m[0].play(f.simulated(), workloadOf(trace), seed)
	require.NoError(t, err)
	for _, o := range r.Outcomes {
		out.ttft, out.tokens = append(out.ttft, o.FirstToken), out.tokens+o.Tokens
		out.hits, out.believed = out.hits+o.Cached, out.believed+o.Believed*traceBlock
	}
	out.Figures = r.Figures(replay.Target{})
	return out
}

// blocks is how long a fleet of one block a second takes for some blocks and tokens.
func blocks(n, tokens int) time.Duration {
	return time.Duration(float64(n*traceBlock+tokens) / traceBlock * float64(time.Second))
}

// kv: each conversation returns to its rank, and its second turn computes one
// block. So does the repeated one: the block of the last token is always computed.
func TestATinyTraceHasTheFiguresWorkedOutByHandInKVMode(t *testing.T) {
	for _, name := range []string{"kv", "kv-blocks", "estimate", "estimate-full"} {
		for seed := range uint64(5) {
			s := sample(t, read(t, tiny), oneBlockASecond(2, 4), name, seed+1)
			require.Equal(t, []time.Duration{blocks(2, 0), blocks(2, 6), blocks(1, 0), blocks(1, 0), blocks(1, 0)}, s.ttft, name)
			require.Equal(t, 1024+1030+3*1536, s.tokens, name)
			require.Equal(t, 3*1024, s.hits, name)
			if name == "kv" {
				require.Equal(t, (2+2+3)*traceBlock, s.believed)
			}
		}
	}
}

// Round-robin: second turns meet the other conversation's cache and push the
// end of it out, of which the last request finds one block.
func TestATinyTraceHasTheFiguresWorkedOutByHandInTurn(t *testing.T) {
	s := sample(t, read(t, tiny), oneBlockASecond(2, 4), "round-robin", 1)
	require.Equal(t, []time.Duration{blocks(2, 0), blocks(2, 6), blocks(3, 0), blocks(3, 0), blocks(2, 0)}, s.ttft)
	require.Equal(t, 512, s.hits)
	require.Zero(t, s.believed)

	f := s.Figures
	require.Equal(t, blocks(2, 6), f.First.P50)
	require.Equal(t, blocks(3, 0), f.First.P95)
	require.InDelta(t, 512.0/(1024+1030+3*1536), f.Hit, 1e-12)
	require.InDelta(t, (2+3+2)*512*2.0/((2+3+2)*512+(1030+3*512)), f.Busiest, 1e-12)
}

func TestTheTimeToFirstTokenCountsTheQueue(t *testing.T) {
	f := oneBlockASecond(1, 4)
	f.Overhead = 100 * time.Millisecond
	s := sample(t, read(t, `{"timestamp": 0, "input_length": 512, "hash_ids": [1]}
{"timestamp": 500, "input_length": 512, "hash_ids": [2]}
{"timestamp": 600, "input_length": 1024, "hash_ids": [1, 3]}`), f, "least-loaded", 1)
	require.Equal(t, []time.Duration{1100 * time.Millisecond, 1700 * time.Millisecond, 2700 * time.Millisecond}, s.ttft)
	require.Equal(t, 512, s.hits, "what was cached while the request waited")
}

func TestTheEstimateSeesNoEviction(t *testing.T) {
	trace := read(t, `{"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2]}
{"timestamp": 5000, "input_length": 1024, "hash_ids": [3, 4]}
{"timestamp": 10000, "input_length": 1536, "hash_ids": [1, 2, 5]}`)
	exact, estimate := sample(t, trace, oneBlockASecond(1, 2), "kv", 1), sample(t, trace, oneBlockASecond(1, 2), "estimate", 1)
	require.Zero(t, exact.hits)
	require.Zero(t, estimate.hits)
	require.Zero(t, exact.believed)
	require.Equal(t, 1024, estimate.believed)
}

func TestABlockIsKnownOnlyAfterItsEvent(t *testing.T) {
	trace := read(t, `{"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2]}
{"timestamp": 2500, "input_length": 1536, "hash_ids": [1, 2, 5]}
{"timestamp": 9000, "input_length": 1536, "hash_ids": [1, 2, 5]}`)
	f := oneBlockASecond(1, 8)
	f.EventDelay = time.Second
	s := sample(t, trace, f, "kv-told", 1)
	require.Equal(t, 3*traceBlock, s.believed, "of the third request only")
	require.Equal(t, 1024+1024, s.hits)
	s = sample(t, trace, f, "kv", 1)
	require.Equal(t, (2+3)*traceBlock, s.believed, "of the second by what was routed")
	require.Equal(t, 1024+1024, s.hits)
}

func TestAReplicaPredictsWhatItHasRoutedItselfAndHearsAllEvents(t *testing.T) {
	trace := read(t, `{"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2]}
{"timestamp": 2500, "input_length": 1536, "hash_ids": [1, 2, 5]}
{"timestamp": 9000, "input_length": 1536, "hash_ids": [1, 2, 5]}`)
	f := oneBlockASecond(1, 8)
	f.EventDelay = time.Second
	for replicas, want := range map[int]int{1: 2 + 3, 2: 3, 3: 3} {
		s := sampleBy(t, trace, f, "kv", replicas, 1)
		require.Equal(t, want*traceBlock, s.believed, "%d: the second's start is known to the first's replica alone", replicas)
		require.Equal(t, 1024+1024, s.hits)
	}
	for replicas, want := range map[int]int{1: 2 + 3, 2: 2, 3: 0} {
		s := sampleBy(t, trace, f, "estimate-full", replicas, 1)
		require.Equal(t, want*traceBlock, s.believed, "%d: without events never", replicas)
	}
}

func TestAReplicaDoesNotSeeTheLoadThatAnotherHasBooked(t *testing.T) {
	trace := read(t, `{"timestamp": 0, "input_length": 512, "hash_ids": [1]}
{"timestamp": 100, "input_length": 512, "hash_ids": [2]}`)
	free, waits := blocks(1, 0), blocks(2, 0)-100*time.Millisecond
	seen := map[time.Duration]bool{}
	for seed := range uint64(20) {
		require.Equal(t, free, sample(t, trace, oneBlockASecond(2, 4), "least-loaded", seed+1).ttft[1])
		seen[sampleBy(t, trace, oneBlockASecond(2, 4), "least-loaded", 2, seed+1).ttft[1]] = true
	}
	require.Equal(t, map[time.Duration]bool{free: true, waits: true}, seen)
}

func TestEachModeIsPlayedWithEachCountOfReplicas(t *testing.T) {
	o, err := parse([]string{"-replicas", "1,3", "-modes", "kv,random", "-live-modes", "kv,no-events"}, io.Discard)
	require.NoError(t, err)
	var simulated, live, like []string
	for _, m := range o.modes {
		simulated = append(simulated, fmt.Sprint(m.name, " by ", m.plugin.Replicas))
	}
	for _, m := range o.played.modes {
		live, like = append(live, fmt.Sprint(m.name, " by ", m.replicas)), append(like, m.like)
	}
	require.Equal(t, []string{"kv by 1", "kv ×3 by 3", "random by 1", "random ×3 by 3"}, simulated)
	require.Equal(t, []string{"kv by 1", "kv ×3 by 3", "no-events by 1", "no-events ×3 by 3"}, live)
	require.Equal(t, []string{"kv", "kv ×3", "estimate", "estimate ×3"}, like)
}

func TestRequestsAreSpreadUnlessTheFlagSaysNo(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(trace, []byte(`{"timestamp": 0, "input_length": 5, "hash_ids": []}
{"timestamp": 0, "input_length": 5, "hash_ids": []}
{"timestamp": 3000, "input_length": 5, "hash_ids": []}`), 0o600))
	for flag, want := range map[string]time.Duration{"-spread=true": 1500 * time.Millisecond, "-spread=false": 0} {
		o, err := parse([]string{"-trace", trace, flag}, io.Discard)
		require.NoError(t, err)
		got, err := o.read(0, 1)
		require.NoError(t, err)
		require.Equal(t, want, got[1].At, flag)
	}
}

func TestTheCommandWritesTheSameTableAndPlotEachTime(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "tiny.jsonl")
	require.NoError(t, os.WriteFile(trace, []byte(tiny), 0o600))
	args := []string{"-trace", trace, "-ranks", "2", "-capacity", "4,8", "-rate", "1", "-speed", "512", "-live=false"}
	var table, plotted [2]string
	for i := range table {
		out := filepath.Join(dir, "out", string(rune('a'+i)))
		require.NoError(t, run(t.Context(), append(args, "-out", out), io.Discard, io.Discard))
		md, err := os.ReadFile(filepath.Join(out, "routing.md"))
		require.NoError(t, err)
		svg, err := os.ReadFile(filepath.Join(out, "routing.svg"))
		require.NoError(t, err)
		table[i], plotted[i] = string(md), string(svg)
	}
	require.Equal(t, table[0], table[1])
	require.Equal(t, plotted[0], plotted[1])
	require.Contains(t, table[0], "| kv | 46.1 % |")
	require.Contains(t, table[0], "Seeds 1 to 3")
	require.Equal(t, 2, strings.Count(table[0], "| round-robin |"))
	require.Contains(t, plotted[0], "46.1 %")
	for d := xml.NewDecoder(strings.NewReader(plotted[0])); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
	}
}

func TestFlagsThatMeanNothingAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"-ranks", "0"}, {"-speed", "NaN"}, {"-modes", "best"}, {"-capacity", "x"}, {"-rate", "0"}, {"-seed", "0"}, {"-estimate-ttl", "0"}, {"-replicas", "0"}, {"-replicas", "65"}, {"-replicas", "1,x"}, {"more"},
		{"-live-modes", "best"}, {"-speedup", "0"}, {"-page", "24"}, {"-page", "1024"}, {"-decode", "0"}, {"-live-requests", "0"}, {"-live-repeats", "0"},
	} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, "xpected", args)
	}
	_, err := parse([]string{"-modes", "kv,random"}, io.Discard)
	require.NoError(t, err)
}

// The order that the whole exercise is about, on a part of the real trace. The
// times are simulated, so this is no assertion on the machine's.
func TestOnTheRealTraceKVFindsMoreAndAnswersSooner(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	o := options{trace: filepath.Join(root, "..", "shared", "data", "mooncake_conversation_trace.jsonl")}
	if _, err := os.Stat(o.trace); errors.Is(err, os.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip("the trace is not beside the repository")
	}
	trace, err := o.read(3000, 1)
	require.NoError(t, err)
	f := fleet{Ranks: 8, Capacity: 2000, Speed: 8000, Overhead: 20 * time.Millisecond, EventDelay: 10 * time.Millisecond}
	got := map[string]replay.Figures{}
	for _, name := range []string{"kv", "estimate", "least-loaded", "round-robin"} {
		got[name] = sample(t, trace, f, name, 1).Figures
	}
	for _, name := range []string{"estimate", "least-loaded", "round-robin"} {
		require.Greater(t, got["kv"].Hit, got[name].Hit, name)
		require.Less(t, got["kv"].First.P50, got[name].First.P50, name)
		require.Less(t, got["kv"].First.P95, got[name].First.P95, name)
	}
	require.Greater(t, got["estimate"].Hit, got["least-loaded"].Hit)
	require.LessOrEqual(t, got["kv"].Hit, workloadOf(trace).Bound())
}

func TestSeedsAreSummedUpAsMediansWithTheRangeOfTheP95(t *testing.T) {
	r := summarise("kv", []replay.Figures{{Hit: 0.3, First: replay.Times{P95: 5, P50: 1}}, {Hit: 0.1, First: replay.Times{P95: 9, P50: 3}}, {Hit: 0.2, First: replay.Times{P95: 7, P50: 2}}})
	require.Equal(t, row{Mode: "kv", Figures: replay.Figures{Hit: 0.2, First: replay.Times{P95: 7, P50: 2}}, LowHit: 0.1, HighHit: 0.3, LowP95: 5, HighP95: 9}, r)
}

func TestEachModeHasTheParametersThatItsNameSays(t *testing.T) {
	by := map[string]mode{}
	for _, m := range modes(8000) {
		for _, p := range []picker.Params{m.plugin.Prefill, m.plugin.Decode, m.plugin.Whole} {
			require.True(t, m.rival != nil || p.Mode == m.plugin.Prefill.Mode, m.name)
		}
		by[m.name] = m
	}
	require.Equal(t, picker.DefaultParamsFor(worker.Prefill), by["kv"].plugin.Prefill)
	require.Equal(t, picker.DefaultParamsFor(worker.Aggregated), by["kv"].plugin.Whole)
	require.InDelta(t, 0.5, by["estimate"].plugin.Prefill.EstimatedOverlapWeight, 0)
	require.InDelta(t, 1, by["estimate-full"].plugin.Prefill.EstimatedOverlapWeight, 0)
	require.False(t, by["kv"].plugin.Estimated || by["kv-blocks"].plugin.Estimated)
	require.True(t, by["estimate"].plugin.Estimated && by["estimate-full"].plugin.Estimated)
	require.True(t, by["kv"].plugin.Predicted && !by["kv-told"].plugin.Predicted && !by["estimate"].plugin.Predicted)
}

// The figures of the simulator that this one has replaced, on the real trace; durations of a
// prompt were cut to nanoseconds there, and are rounded here.
func TestTheModesHaveTheFiguresOfTheSimulatorBefore(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	o := options{trace: filepath.Join(root, "..", "shared", "data", "mooncake_conversation_trace.jsonl"), spread: false}
	if _, err := os.Stat(o.trace); errors.Is(err, os.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip("the trace is not beside the repository")
	}
	trace, err := o.read(3000, 1.3)
	require.NoError(t, err)
	f := fleet{
		Ranks: 8, Capacity: 1000, Speed: 8000, Overhead: 20 * time.Millisecond, EventDelay: 10 * time.Millisecond,
		RoutedTTL: 120 * time.Second, PredictedTTL: 10 * time.Second,
	}
	for _, c := range []struct {
		mode      string
		replicas  int
		hit       float64
		mean, p99 time.Duration
	}{
		{"kv-blocks", 1, 0.137728, 2229365176, 11976125000},
		{"least-loaded", 1, 0.054243, 3030552781, 15508038461},
		{"power-of-two", 1, 0.054546, 3911740182, 16868336539},
		{"round-robin", 1, 0.059432, 6347638358, 25262048076},
		{"random", 1, 0.051919, 10054370697, 43437278838},
		{"kv-blocks", 2, 0.160380, 2627307230, 14367057693},
	} {
		got := sampleBy(t, trace, f, c.mode, c.replicas, 1)
		require.InDelta(t, c.hit, got.Hit, 1e-6, c.mode)
		require.InDelta(t, c.mean, got.First.Mean, 1000, c.mode)
		require.InDelta(t, c.p99, got.First.P99, 1000, c.mode)
	}
}

func TestTheCommandPlaysFleetsAndTrafficByName(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "tiny.jsonl")
	require.NoError(t, os.WriteFile(trace, []byte(tiny), 0o600))
	args := []string{"-trace", trace, "-fleet", "whole,apart+two-slow", "-traffic", "45,bursts", "-modes", "kv,random,lmetric", "-out", dir}
	var printed [2]string
	for i := range printed {
		var b strings.Builder
		require.NoError(t, run(t.Context(), args, &b, io.Discard))
		printed[i] = b.String()
	}
	require.Equal(t, strings.Split(printed[0], "\nTook")[0], strings.Split(printed[1], "\nTook")[0])
	for _, heading := range []string{"## whole, 45", "## whole, bursts", "## apart+two-slow, 45", "## apart+two-slow, bursts"} {
		require.Contains(t, printed[0], heading)
	}
	require.Equal(t, 4, strings.Count(printed[0], "| lmetric |"))
	for line := range strings.SplitSeq(printed[0], "\n") {
		if strings.HasPrefix(line, "| kv |") {
			require.Contains(t, line, "| +0 %, +0 %, ", "the others are relative to it")
		}
	}
	written, err := os.ReadFile(filepath.Join(dir, "routing.md"))
	require.NoError(t, err)
	require.Equal(t, strings.Split(printed[0], "\nTook")[0], string(written))
	for _, bad := range [][]string{{"-fleet", "half"}, {"-fleet", "whole", "-traffic", "x"}, {"-traffic", "45"}} {
		require.ErrorContains(t, run(t.Context(), append([]string{"-trace", trace, "-live=false", "-out", dir}, bad...), io.Discard, io.Discard), "xpected", bad)
	}
}
