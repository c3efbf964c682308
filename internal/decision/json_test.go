package decision

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// told is a record of which every field that JSON has is set.
func told() *Record {
	r := &Record{
		Seq: 7, Time: time.Date(2025, 3, 9, 3, 12, 45, 678, time.UTC), RequestID: "<id>", Attempt: 2,
		Model: "m", Namespace: "lab", Path: "/v1/completions", BodyBytes: 2231,
		TokenSource: ByteEstimate, TokenReason: "tokenize timed out", ISLTokens: 2561, PromptBlocks: 40, BlockSize: 64,
		Split: "prefill apart: it is not busy", Outcome: Failed, Detail: "prefill_failed", Status: 503,
		Leg: LegFailed, LegDetail: "connection lost", DecisionIn: 84 * time.Microsecond,
		Timings: Timings{
			PrefillStarted: 1, PrefillWell: 2 * time.Millisecond, PrefillEnded: 3 * time.Second,
			ResponseHeaders: 1200 * time.Microsecond, FirstToken: 1300 * time.Microsecond, End: time.Hour,
		},
	}
	big := worker.Rank{ID: math.MaxUint64, DPRank: 3}
	for _, c := range []*Choice{&r.Prefill, &r.Decode} {
		*c = Choice{Rank: big, Endpoint: "10.0.0.7:8000", Mode: "kv", Reason: "lowest-cost", OverlapBlocks: 12, Cost: 12.25}
		c.Offer(&Row{
			Rank: big, Endpoint: "10.0.0.7:8000", OverlapBlocks: 12, PredictedBlocks: 5, HostBlocks: 3, DiskBlocks: 8, SharedBlocks: 2,
			Estimated: true, Degraded: true, CachedTokens: 768, UncachedTokens: 1793, ActivePrefillTokens: 12480, ActiveDecodeBlocks: 4, ActiveRequests: 3,
			CreditBlocks: 12, PrefillCost: 11, DecodeCost: 1.25, Cost: 12.25, Note: "degraded", KnownAgo: time.Second, StaleFor: 3 * time.Second,
		})
		c.Offer(&Row{Rank: worker.Rank{ID: 8}, Cost: math.Inf(1), CreditBlocks: math.NaN(), Out: true, Note: "set aside: overdue"})
		c.Skip(1, 3)
	}
	return r
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	r := told()
	first, err := json.Marshal(r)
	require.NoError(t, err)
	var got Record
	require.NoError(t, json.Unmarshal(first, &got))
	second, err := json.Marshal(&got)
	require.NoError(t, err)
	require.Equal(t, string(first), string(second))

	for _, c := range []*Choice{&got.Prefill, &got.Decode} { // what JSON has no number for
		out := &c.rows[1]
		require.True(t, math.IsNaN(out.Cost) && math.IsNaN(out.CreditBlocks))
		out.Cost, out.CreditBlocks = 0, 0
		require.Contains(t, c.said, "the only candidate left")
		c.said = ""
	}
	for _, c := range []*Choice{&r.Prefill, &r.Decode} {
		c.rows[1].Cost, c.rows[1].CreditBlocks = 0, 0
	}
	require.Equal(t, r, &got, "every field comes back")
}

func TestWhatWasSaidIsSaidAgain(t *testing.T) {
	r := &Record{Prefill: Choice{Mode: "kv", Refused: "its queue is full"}}
	r.Decode.Rank, r.Decode.Replaced = worker.Rank{ID: 3}, "in place of 4/0, which left"
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var got Record
	require.NoError(t, json.Unmarshal(text, &got))
	require.True(t, got.Prefill.Told())
	require.False(t, got.Prefill.Made())
	require.Equal(t, "nobody was picked: its queue is full", got.Prefill.Why(40))
	require.Equal(t, "picked in place of 4/0, which left", got.Decode.Why(0))
}

func TestALongerTableIsReadAsFarAsItIsKept(t *testing.T) {
	f := choiceForm{WorkerID: 1, Table: make([]rowForm, MaxRows+3), LeftOut: 2, EligibleOut: 1}
	f.Table[MaxRows+1].Eligible = true
	text, err := json.Marshal(&f)
	require.NoError(t, err)
	var c Choice
	require.NoError(t, json.Unmarshal(text, &c))
	require.Len(t, c.Rows(), MaxRows)
	require.Equal(t, 5, c.Left())
	require.Equal(t, 2, c.more)
}

// FuzzReadJSON holds that what can be read is written, and read as the same.
func FuzzReadJSON(f *testing.F) {
	text, err := json.Marshal(told())
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"prefill":{"worker_id":"1","table":[{"worker_id":"1","known_seconds_ago":0},{}]},"decode":{},"timings":{"end_seconds":-1e300}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var a, b Record
		if json.Unmarshal(text, &a) != nil {
			return
		}
		first, err := json.Marshal(&a)
		if err != nil {
			return // a year of five digits
		}
		require.NoError(t, json.Unmarshal(first, &b))
		second, err := json.Marshal(&b)
		require.NoError(t, err)
		require.JSONEq(t, string(first), string(second))
	})
}
