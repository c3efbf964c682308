package whatif

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/replay/replaytest"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// conversations is traffic of agents over a fleet of 4 prefill and 2 decode ranks, one of each at half its speed.
func conversations() (*replay.Fleet, *replay.Workload) {
	a := replaytest.DefaultAgents()
	a.Requests, a.PerSecond, a.BlockTokens, a.Longest, a.Shared = 700, 0.6, 64, 8<<10, 2048
	f := &replay.Fleet{Near: replay.Transfer{Base: 0.005, PerBlock: 0.0001}, Far: replay.Transfer{Base: 0.005, PerBlock: 0.0001}, EventDelay: eventDelay, ReportEvery: reportEvery}
	for i := range 6 {
		r := replay.Rank{Role: replay.Prefill, PerToken: 1.0 / 8000, PerPrompt: 0.02, Chunk: chunk, CacheBlocks: 3000}
		if i >= 4 {
			r = replay.Rank{Role: replay.Decode, Chunk: chunk, CacheBlocks: 20000, Room: 20000, Step: replay.Step{Base: 0.02, PerBlock: 2e-6}}
		}
		if i == 0 || i == 4 {
			r.PerToken, r.PerPrompt, r.Step.Base = 2*r.PerToken, 2*r.PerPrompt, 2*r.Step.Base
		}
		f.Ranks = append(f.Ranks, r)
	}
	return f, a.Workload()
}

func with(mode picker.Mode) Config {
	c := Default()
	c.Prefill.Mode, c.Decode.Mode, c.Whole.Mode = mode, mode, mode
	return c
}

// taped plays the workload, and returns what a plugin that recorded it would have written. Times to first tokens are
// later than simulated by late.
func taped(t testing.TB, f *replay.Fleet, w *replay.Workload, c Config, late time.Duration, change func(i int, d *record.Decision, e *record.End)) (*replay.Result, []byte) {
	t.Helper()
	p, err := NewPlugin(f, w.BlockTokens, c)
	require.NoError(t, err)
	r, err := replay.Run(f, w, p)
	require.NoError(t, err)
	m := &record.Memory{MaxBytes: 256 << 20, FileBytes: 128 << 20}
	rec, err := record.New(record.Config{
		Version: "1.0", Stores: []record.Store{m}, World: func() *worker.Snapshot { return p.snap }, Lost: func() { t.Error("lost") },
		Speeds: func(*worker.Snapshot) (out []record.Speed) {
			for i := range f.Ranks {
				x := &f.Ranks[i]
				s := record.Speed{Rank: idOf(i), PerToken: x.PerToken, PerRequest: x.PerPrompt}
				if x.Role == replay.Decode {
					s.PerToken, s.PerRequest = x.Step.PerBlock, x.Step.Base
				}
				out = append(out, s)
			}
			return append(out, record.Speed{Model: "m", PerToken: f.Near.PerBlock / float64(w.BlockTokens), PerRequest: f.Near.Base})
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, i := range byArrival(r) {
		o, q := &r.Outcomes[i], &w.Requests[i]
		var e record.End
		number := rec.Decided(func(d *record.Decision) {
			d.At, d.Model, d.Attempt, d.Tokens, d.BlockTokens, d.Source, d.MaxTokens = clock(o.At), "m", 1, q.Tokens, w.BlockTokens, "request ids", -1
			for _, b := range q.Blocks {
				d.Chain = append(d.Chain, uint64(b))
			}
			d.Prefill = record.Pick{Rank: idOf(o.Rank), Mode: "kv", Reason: "lowest_cost", Overlap: o.Believed}
			d.Decode = record.Pick{Rank: idOf(o.Decode), Mode: "kv", Reason: "lowest_cost"}
			if f.Ranks[o.Rank].Role == replay.Whole {
				d.Prefill, d.Decode = record.Pick{}, d.Prefill
			}
			e = record.End{Outcome: "ok", First: o.FirstToken + late, Whole: o.End + late, Output: int64(o.Answer), Cached: int64(o.Cached)}
			if change != nil {
				change(i, d, &e)
			}
		})
		e.Number = number
		rec.Ended(&e)
		require.NoError(t, rec.Run(ctx))
	}
	require.Len(t, m.Files(), 1)
	return r, m.Files()[0]
}

func byArrival(r *replay.Result) []int {
	order := make([]int, len(r.Outcomes))
	for i := range order {
		order[i] = i
	}
	sortBy(order, func(i int) time.Duration { return r.Outcomes[i].At })
	return order
}

func sortBy(order []int, at func(int) time.Duration) {
	for i := 1; i < len(order); i++ { // nearly sorted
		for k := i; k > 0 && at(order[k]) < at(order[k-1]); k-- {
			order[k], order[k-1] = order[k-1], order[k]
		}
	}
}

func inputOf(t testing.TB, file []byte) *Input {
	t.Helper()
	in, err := Read([]io.Reader{bytes.NewReader(file)}, "")
	require.NoError(t, err)
	return in
}

func one() *Options {
	o := Defaults()
	o.Seeds = 1
	return &o
}

// TestARecordPredictsWhatAnotherPolicyGives: recorded under one policy, the other one is predicted as well as if it were
// simulated over the fleet itself. Sessions do not wait for answers in a record, so it is the arrivals under the first
// policy that both get.
func TestARecordPredictsWhatAnotherPolicyGives(t *testing.T) {
	f, w := conversations()
	const late = 7 * time.Millisecond
	for _, c := range []struct{ recorded, other picker.Mode }{{picker.KV, picker.RoundRobin}, {picker.RoundRobin, picker.KV}, {picker.LeastLoaded, picker.KV}} {
		r, file := taped(t, f, w, with(c.recorded), late, nil)
		in := inputOf(t, file)
		require.Empty(t, in.Notes)
		rep, err := Play(in, one(), with(c.other))
		require.NoError(t, err)
		require.Equal(t, "4P2D", rep.Fleet)
		require.InDelta(t, r.Figures(replay.Target{}).Hit, rep.Measured.Hit, 1e-9)
		require.InDelta(t, 0, rep.Error.Hit, 0.005, "the recorded picks give what was measured")
		require.InDelta(t, 0, rep.Error.P50, 0.02)
		require.InDelta(t, 0, rep.Error.P99, 0.05)
		require.InDelta(t, late.Seconds(), rep.Path.Seconds(), 0.002)

		arrivals := &replay.Workload{BlockTokens: w.BlockTokens, Requests: in.Load.Requests}
		known := with(c.other)
		known.Paced = true // as a plugin that has run for a while
		p, err := NewPlugin(f, w.BlockTokens, known)
		require.NoError(t, err)
		live, err := replay.Run(f, arrivals, p)
		require.NoError(t, err)
		want := live.Figures(replay.Target{})
		t.Logf("%v, other %v: hit %.3f (%.3f), p50 %v (%v), p99 %v (%v)", c.recorded, c.other, rep.Played.Hit, want.Hit, rep.Played.First.P50, want.First.P50+late, rep.Played.First.P99, want.First.P99+late)
		require.InDelta(t, want.Hit, rep.Played.Hit, 0.02)
		require.InEpsilon(t, (want.First.P50 + late).Seconds(), rep.Played.First.P50.Seconds(), 0.1)
		require.InEpsilon(t, (want.First.P99 + late).Seconds(), rep.Played.First.P99.Seconds(), 0.1)
		require.Greater(t, math.Abs(want.Hit-rep.Measured.Hit), 0.04, "the two policies differ, so this could fail")
	}
}

func TestAWrongSpeedIsFoundByTheError(t *testing.T) {
	f, w := conversations()
	_, file := taped(t, f, w, with(picker.KV), 0, nil)
	in := inputOf(t, file)
	for i := range in.Speeds {
		in.Speeds[i].PerToken *= 1.5
	}
	rep, err := Play(in, one(), with(picker.KV))
	require.NoError(t, err)
	require.Greater(t, rep.Error.P99, 0.1)
}

func TestAnotherFleetHasMedianSpeeds(t *testing.T) {
	f, w := conversations()
	_, file := taped(t, f, w, with(picker.KV), 0, nil)
	in, o := inputOf(t, file), one()
	o.Fleet = "8p1d"
	fleet, says, err := in.Fleet(o)
	require.NoError(t, err)
	require.Equal(t, "8P1D", nameOf(fleet))
	require.InDelta(t, 1.0/8000, fleet.Ranks[0].PerToken, 1e-12, "the slow rank is not the median")
	require.Equal(t, 3000, fleet.Ranks[0].CacheBlocks)
	require.Contains(t, strings.Join(says, "; "), "as learned, of 4 ranks")
	rep, err := Play(in, o, with(picker.KV))
	require.NoError(t, err)
	require.NotNil(t, rep.Error, "the recorded picks are played over the recorded fleet")
	require.Equal(t, map[string]int{Limited: rep.Requests}, rep.Differs)
	few := one()
	few.Fleet = "2P2D"
	worse, err := Play(in, few, with(picker.KV))
	require.NoError(t, err)
	require.Less(t, rep.Played.First.P99, worse.Played.First.P99)
}

func TestDifferencesHaveTheirCause(t *testing.T) {
	f, w := conversations()
	_, file := taped(t, f, w, with(picker.RoundRobin), 0, nil)
	in := inputOf(t, file)
	for i := range in.Seen {
		in.Seen[i].Bound = i < 10
		if i%4 == 3 {
			in.Load.Requests[i].Blocks = nil
		}
	}
	busy := one()
	busy.Rate = 6
	rep, err := Play(in, busy, with(picker.KV))
	require.NoError(t, err)
	sum := 0
	for _, n := range rep.Differs {
		sum += n
	}
	require.Equal(t, rep.Requests, sum)
	require.Equal(t, 10, rep.Differs[Limited])
	require.Greater(t, rep.Differs[Overlap], rep.Requests/4, "round robin does not look where a prompt is")
	require.Positive(t, rep.Differs[ByLoad])
	rep, err = Play(in, one(), with(picker.Random))
	require.NoError(t, err)
	require.Greater(t, rep.Differs[Mode], rep.Requests/2)
}

func TestRefusalsAreToldApart(t *testing.T) {
	f, w := conversations()
	replay.Scale(w.Requests, 3)
	_, file := taped(t, f, w, with(picker.KV), 0, func(i int, d *record.Decision, e *record.End) {
		if i%100 == 0 {
			d.Refused, d.Prefill, d.Decode, e.Outcome = "queue_full", record.Pick{}, record.Pick{}, "refused"
		}
	})
	in := inputOf(t, file)
	c := with(picker.KV)
	c.MostQueued = 2_000
	rep, err := Play(in, one(), c)
	require.NoError(t, err)
	was := (len(w.Requests) + 99) / 100
	require.Equal(t, was, rep.Measured.Refused)
	require.Equal(t, was, rep.Recorded.Refused)
	require.Greater(t, rep.Played.Refused, was)
	require.Greater(t, rep.Differs[Refusal], was)
	free, err := Play(in, one(), with(picker.KV))
	require.NoError(t, err)
	require.Zero(t, free.Played.Refused)
}

func TestOneWorkerServesWholeRequests(t *testing.T) {
	f, w := conversations()
	f.Ranks = f.Ranks[:4]
	for i := range f.Ranks {
		f.Ranks[i].Role, f.Ranks[i].Room, f.Ranks[i].Step = replay.Whole, 3000, replay.Step{Base: 0.02}
	}
	_, file := taped(t, f, w, with(picker.KV), 0, nil)
	rep, err := Play(inputOf(t, file), one(), with(picker.KV))
	require.NoError(t, err)
	require.Equal(t, "4A", rep.Fleet)
	require.InDelta(t, 0, rep.Error.Hit, 0.01)
	require.InDelta(t, 0, rep.Error.P50, 0.05)
}

func TestWhatARecordLacksIsSaid(t *testing.T) {
	f, w := conversations()
	_, file := taped(t, f, w, with(picker.KV), 0, func(i int, d *record.Decision, e *record.End) {
		switch {
		case i%50 == 0:
			e.Output = 0
		case i%50 == 1:
			e.Outcome = "retried"
		case i%50 == 2:
			d.Model = "other\x00\n<model>"
		case i%50 == 3:
			d.BlockTokens = 100
		case i%50 == 4:
			d.Tokens = 0
		}
	})
	in := inputOf(t, file)
	require.Len(t, in.Notes, 5)
	require.Equal(t, `left out, `, in.Notes[0][:10])
	require.Contains(t, in.Notes[0], `"other\x00\n<model>"`)
	rep, err := Play(in, one(), with(picker.KV))
	require.NoError(t, err)
	require.NotContains(t, rep.Text(), "\x00")
	_, err = Read([]io.Reader{bytes.NewReader(file)}, "nobody")
	require.ErrorContains(t, err, `no request for model "nobody": expected one of ["m" "other\x00\n<model>"]`)
	_, err = Read([]io.Reader{bytes.NewReader(file[:100])}, "")
	require.Error(t, err)
}

func TestAReportIsTextJSONAndAPicture(t *testing.T) {
	f, w := conversations()
	_, file := taped(t, f, w, with(picker.KV), 0, nil)
	o := one()
	o.Warm = 0.5
	rep, err := Play(inputOf(t, file), o, with(picker.RoundRobin))
	require.NoError(t, err)
	require.Equal(t, rep.Requests, len(rep.Input.Seen)-len(rep.Input.Seen)/2)
	text := rep.Text()
	for _, want := range []string{"measured", "recorded picks, simulated", "this configuration, simulated", "played over 4P2D", "The simulation's own error", "speeds as learned, of 4 ranks"} {
		require.Contains(t, text, want)
	}
	b, err := rep.JSON()
	require.NoError(t, err)
	var out struct {
		Figures map[string]struct {
			Hit   float64            `json:"hit_rate"`
			First map[string]float64 `json:"first_token_seconds"`
		} `json:"figures"`
	}
	require.NoError(t, json.Unmarshal(b, &out))
	require.InDelta(t, rep.Played.Hit, out.Figures["played"].Hit, 1e-9)
	require.InDelta(t, rep.Played.First.P99.Seconds(), out.Figures["played"].First["p99"], 1e-9)
	d := xml.NewDecoder(strings.NewReader(rep.SVG()))
	for err = error(nil); err == nil; _, err = d.Token() {
	}
	require.ErrorIs(t, err, io.EOF)
}

const dynamoLine = `{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":%d,"request":{"request_id":"r","model":"m","request_received_ms":%d,"output_tokens":4,"replay":{"trace_block_size":16,"input_length":%d,"input_sequence_hashes":[%s]}}}` + "\n"

func TestDynamosTraceIsRead(t *testing.T) {
	text := fmt.Sprintf(dynamoLine, 1600, 1500, 40, "11,33") + fmt.Sprintf(dynamoLine, 1100, 1000, 32, "0,22,99") +
		`{"schema":"dynamo.request.trace.v1","event_type":"tool_end"}` + "\n" + `{"schema":"dynamo.request.trace.v2","event_type":"request_end"}` + "\n\n"
	in := inputOf(t, []byte(text))
	require.Equal(t, "m", in.Model)
	require.Equal(t, 16, in.Load.BlockTokens)
	require.Len(t, in.Load.Requests, 2)
	require.Equal(t, replay.Request{Tokens: 32, Answer: 4, Blocks: []replay.Block{1, 22}, Session: 1}, in.Load.Requests[0], "in order of arrival, with no more blocks than tokens fill")
	require.Equal(t, 500*time.Millisecond, in.Load.Requests[1].At)
	require.Len(t, in.Notes, 1)
	o := one()
	_, err := Play(in, o, with(picker.KV))
	require.ErrorContains(t, err, "expected --fleet")
	o.Fleet = "2P1D"
	rep, err := Play(in, o, with(picker.KV))
	require.NoError(t, err)
	require.Nil(t, rep.Error)
	require.Contains(t, rep.Text(), "How far the simulation is off is not known")
}

func TestLongGapsAreShort(t *testing.T) {
	text := fmt.Sprintf(dynamoLine, 1, 1000, 40, "1") + fmt.Sprintf(dynamoLine, 1, 4_000_000_000_000, 40, "2") + fmt.Sprintf(dynamoLine, 1, 4_000_000_001_000, 40, "3")
	in := inputOf(t, []byte(text))
	require.Equal(t, []time.Duration{0, longestGap, longestGap + time.Second}, []time.Duration{in.Load.Requests[0].At, in.Load.Requests[1].At, in.Load.Requests[2].At})
	require.Equal(t, []string{"1 times nothing arrived for more than 10m0s, which is played as 10m0s"}, in.Notes)
}

func TestMooncakesTraceIsRead(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "data", "mooncake_conversation_trace.jsonl"))
	if errors.Is(err, os.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip("the trace is not beside the repository")
	}
	require.NoError(t, err)
	in := inputOf(t, text)
	require.Len(t, in.Load.Requests, 12031)
	o := one()
	o.Fleet = "8P2D"
	kv, err := Play(in, o, with(picker.KV))
	require.NoError(t, err)
	turns, err := Play(in, o, with(picker.RoundRobin))
	require.NoError(t, err)
	require.Greater(t, kv.Played.Hit, 2*turns.Played.Hit)
}

func TestFilesThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "expected a record",
		"an essay":                      "expected a record",
		`{"schema":"x"}`:                "no request_end",
		`{"schema":`:                    "Dynamo",
		`{"timestamp":0}`:               "input_length 0",
		`{"timestamp":1e308,"schema":1`: "Dynamo",
	} {
		_, err := Read([]io.Reader{strings.NewReader(text)}, "")
		require.ErrorContains(t, err, want, text)
	}
	for _, name := range []string{"", "x", "6", "P", "99999P", "1P1P", "-1P"} {
		_, err := countsOf(name)
		if name == "P" {
			require.Error(t, err)
			continue
		}
		require.Error(t, err, name)
	}
	_, err := countsOf("12P3D")
	require.NoError(t, err)
}

func FuzzReadAndPlay(f *testing.F) {
	fl, w := conversations()
	w.Requests = w.Requests[:8]
	for i := range w.Requests {
		w.Requests[i].Follows = 0
		w.Requests[i].At = time.Duration(i) * time.Second
	}
	_, file := taped(f, fl, w, with(picker.KV), 0, nil)
	f.Add(file)
	f.Add([]byte(fmt.Sprintf(dynamoLine, 1, 1, 32, "1,2")))
	f.Add([]byte(`{"timestamp":1,"input_length":600,"output_length":3,"hash_ids":[1,2]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := Read([]io.Reader{bytes.NewReader(b)}, "")
		if err != nil {
			return
		}
		tokens := 0
		for i := range in.Load.Requests {
			tokens += in.Load.Requests[i].Tokens + in.Load.Requests[i].Answer
		}
		if tokens > 1<<20 || len(in.Ranks) > 64 {
			return // a long run finds nothing more
		}
		o := one()
		if len(in.Ranks) == 0 {
			o.Fleet = "2P1D"
		}
		rep, err := Play(in, o, with(picker.KV))
		if err == nil {
			_ = rep.Text()
		}
	})
}
