package decision

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhy runs the scenario files. Verbs:
//
//	pick worker=7/0 mode=kv overlap=12 blocks=40   (worker, overlap, blocks may be left out)
//	7/0 cost=12 [requests=3] [estimated] [predicted=1] [host=2] [disk=4] [out=reason]   one candidate a line; many=N offers N at cost+1…
//
// It prints the kept rows and the sentence.
func TestWhy(t *testing.T) {
	datadriven.RunTest(t, "testdata/why", func(t *testing.T, d *datadriven.TestData) string {
		var c Choice
		var mode, id string
		var blocks int64
		d.MaybeScanArgs(t, "mode", &mode)
		d.MaybeScanArgs(t, "overlap", &c.OverlapBlocks)
		d.MaybeScanArgs(t, "blocks", &blocks)
		d.MaybeScanArgs(t, "reason", &c.Reason)
		c.Mode = mode
		if d.MaybeScanArgs(t, "worker", &id) {
			c.Rank = rank(t, id)
		}
		for line := range strings.Lines(d.Input) {
			offer(t, &c, strings.TrimSpace(line))
		}
		var b strings.Builder
		for _, r := range c.Rows() {
			fmt.Fprintf(&b, "%s %.1f %s\n", r.Rank, r.Cost, r.Note)
		}
		fmt.Fprintf(&b, "left out: %d\n%s\n", c.Left(), c.Why(blocks))
		return strings.ReplaceAll(b.String(), " \n", "\n")
	})
}

func rank(t *testing.T, s string) worker.Rank {
	t.Helper()
	var r worker.Rank
	_, err := fmt.Sscanf(s, "%d/%d", &r.ID, &r.DPRank)
	require.NoError(t, err)
	return r
}

func offer(t *testing.T, c *Choice, line string) {
	t.Helper()
	fields := strings.Fields(line)
	r := Row{Rank: rank(t, fields[0])}
	many := 1
	for _, f := range fields[1:] {
		k, v, _ := strings.Cut(f, "=")
		switch k {
		case "cost":
			_, err := fmt.Sscan(v, &r.Cost)
			require.NoError(t, err)
		case "out":
			r.Out, r.Note = true, strings.ReplaceAll(v, "_", " ")
		case "requests":
			_, err := fmt.Sscan(v, &r.ActiveRequests)
			require.NoError(t, err)
		case "estimated":
			r.Estimated = true
		case "predicted":
			_, err := fmt.Sscan(v, &r.PredictedBlocks)
			require.NoError(t, err)
		case "host":
			_, err := fmt.Sscan(v, &r.HostBlocks)
			require.NoError(t, err)
		case "disk":
			_, err := fmt.Sscan(v, &r.DiskBlocks)
			require.NoError(t, err)
		case "many":
			_, err := fmt.Sscan(v, &many)
			require.NoError(t, err)
		default:
			t.Fatalf("row %q: %q is not cost, out, requests, estimated, predicted, host, disk or many", line, k)
		}
	}
	for range many {
		c.Offer(&r)
		r.Rank.ID++
		r.Cost++
	}
}

func TestAReaderMayHaveNamesOfItsOwn(t *testing.T) {
	var r Record
	require.NoError(t, json.Unmarshal([]byte(`{"prompt_blocks":10,"prefill":{"worker_id":"101","mode":"kv","why":"in other words","overlap_blocks":9,"table":[
		{"worker_id":"101","eligible":true,"overlap_blocks":9,"cost":2},{"worker_id":"102","eligible":true,"cost":11}]}}`), &r))
	require.Equal(t, "in other words", r.Legs()[0].Why)
	name := func(r *Row) string { return map[worker.ID]string{102: "p2"}[r.Rank.ID] }
	require.Equal(t, "lowest cost 2.0; next best p2 at 11.0", r.Prefill.WhyNaming(0, name))
	require.Equal(t, "lowest cost 2.0; next best p2 at 11.0; it holds 9 of the prompt's 10 blocks", r.Prefill.WhyNaming(10, name))
}

func TestACostInSecondsIsToldAsSuch(t *testing.T) {
	var r Record
	in := `{"prompt_blocks":10,"prefill":{"worker_id":"101","mode":"kv","overlap_blocks":9,"cost":%[2]v,"cost_in":%[1]q,"table":[
		{"worker_id":"101","eligible":true,"wait_seconds":0.25,"own_seconds":0.04,"cost":0.31},{"worker_id":"102","eligible":true,"cost":%[2]v}]}}`
	require.NoError(t, json.Unmarshal(fmt.Appendf(nil, in, "seconds", 1.5), &r))
	name := func(r *Row) string { return r.Rank.String() }
	require.Equal(t, "lowest cost 0.310 s (0.250 s until it is free, 0.040 s for the prompt); next best 102/0 at 1.500 s", r.Prefill.WhyNaming(0, name))
	again, err := json.Marshal(&r)
	require.NoError(t, err)
	for _, part := range []string{`"cost_in":"seconds"`, `"wait_seconds":0.25`, `"own_seconds":0.04`} {
		require.Contains(t, string(again), part)
	}
	r = Record{}
	require.NoError(t, json.Unmarshal(fmt.Appendf(nil, in, "seconds", 0.31), &r))
	require.Equal(t, "lowest cost 0.310 s, a tie of 2 of which it has computed least lately", r.Prefill.WhyNaming(0, name))
	r = Record{}
	require.NoError(t, json.Unmarshal(fmt.Appendf(nil, in, "", 1.5), &r))
	require.Equal(t, "lowest cost 0.3; next best 102/0 at 1.5", r.Prefill.WhyNaming(0, name))
}

// TestText runs the scenario files. The verb text takes a record in JSON and prints
// it in many lines, as `extproc explain` does; ~ is an empty line.
func TestText(t *testing.T) {
	datadriven.RunTest(t, "testdata/text", func(t *testing.T, d *datadriven.TestData) string {
		var r Record
		require.NoError(t, json.Unmarshal([]byte(d.Input), &r))
		return strings.ReplaceAll(r.Text(), "\n\n", "\n~\n")
	})
}

func TestTheLineNamesThePicksAndTheirCosts(t *testing.T) {
	r := &Record{Attempt: 2, ISLTokens: 9, PromptBlocks: 2, TokenSource: RequestIDs}
	require.Equal(t, `attempt=2 isl=9 blocks=2 tokens="request ids"`, r.Line())
	r.Prefill = Choice{Role: worker.Prefill, Rank: worker.Rank{ID: 7, DPRank: 1}, Reason: "lowest-cost"}
	r.Prefill.Offer(&Row{Rank: r.Prefill.Rank, OverlapBlocks: 2, PredictedBlocks: 1, HostBlocks: 3, DiskBlocks: 4, SharedBlocks: 5, Degraded: true, Cost: 0.5})
	r.Prefill.Offer(&Row{Rank: worker.Rank{ID: 8}, Estimated: true, Degraded: true, Cost: 123456.7})
	r.Prefill.Offer(&Row{Rank: worker.Rank{ID: 9}, Out: true, Note: "set aside"})
	r.Decode = Choice{Role: worker.Aggregated, Rank: worker.Rank{ID: 3}, Reason: "tie"}
	for i := range MaxRows + 2 {
		r.Decode.Offer(&Row{Rank: worker.Rank{ID: worker.ID(3 + i)}, Cost: float64(i)})
	}
	r.Decode.Skip(0, 7)
	r.Decode.Offer(&Row{Rank: worker.Rank{ID: 90}, Out: true})
	r.Prefill.Skip(0, 3)
	r.Split = "one worker"
	line := r.Line()
	require.Contains(t, line, `; prefill=7/1 reason=lowest-cost 7/1:0.5(overlap=!2(1p)+3h+4d+5s) 8/0:1.2346e+05(overlap=~0); aggregated=3/0 reason=tie 3/0:0(overlap=0) 4/0:1(`)
	require.Contains(t, line, ` 18/0:15(overlap=0) +2; split="one worker"`)
}

// One worker that serves alone is picked for what it holds; the decode worker of a
// pair is not.
func TestWhatAWorkerHoldsIsSaidOfTheOneThatPrefills(t *testing.T) {
	r := &Record{PromptBlocks: 40, Decode: Choice{Rank: worker.Rank{ID: 3}, Mode: "kv", OverlapBlocks: 12}}
	require.Contains(t, r.Legs()[0].Why, "; it holds 12 of the prompt's 40 blocks")
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(text), "; it holds 12 of the prompt's 40 blocks")
	r.Prefill.Rank.ID = 1
	require.Contains(t, r.Legs()[0].Why, "; it holds none of the prompt's 40 blocks")
	require.NotContains(t, r.Legs()[1].Why, "holds")

	alone := &Record{PromptBlocks: 40, Decode: Choice{Role: worker.Decode, Rank: worker.Rank{ID: 3}, Mode: "kv"}}
	require.NotContains(t, alone.Legs()[0].Why, "holds", "a question about decode alone")
	alone.Decode.Role = worker.Aggregated
	require.Contains(t, alone.Legs()[0].Why, "holds")
}

// TestWhatWasLostIsShown, in the text and in JSON, and not where nothing was.
func TestWhatWasLostIsShown(t *testing.T) {
	r := Record{TokenSource: ByteEstimate, Loss: "lost 512 of 2048 tokens: load 512"}
	require.Contains(t, r.Text(), "overlap: lost 512 of 2048 tokens: load 512\n")
	b, err := r.MarshalJSON()
	require.NoError(t, err)
	require.Contains(t, string(b), `"overlap_lost":"lost 512 of 2048 tokens: load 512"`)
	r.Loss = ""
	require.NotContains(t, r.Text(), "overlap:")
}
