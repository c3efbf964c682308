package journal

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func at(ms int) time.Time { return time.UnixMilli(1_700_000_000_000 + int64(ms)) }

func newJournal(t *testing.T, size int) *Journal {
	t.Helper()
	j, err := New(size)
	require.NoError(t, err)
	return j
}

func add(j *Journal, id string) Handle {
	return j.Add(func(r *decision.Record) {
		r.RequestID, r.Time, r.Outcome = id, at(0), decision.Routed
		r.Prefill.Rank = worker.Rank{ID: 7}
		r.Prefill.Offer(&decision.Row{Rank: worker.Rank{ID: 7}, Cost: 1})
	})
}

func ids(rs []decision.Record) string {
	var s []string
	for _, r := range rs {
		s = append(s, r.RequestID)
	}
	return strings.Join(s, " ")
}

func TestRecentGivesTheNewestFirst(t *testing.T) {
	j := newJournal(t, 3)
	require.Empty(t, j.Recent(nil, 0))
	for i := range 5 {
		add(j, fmt.Sprint("r", i))
	}
	require.Equal(t, "r4 r3 r2", ids(j.Recent(nil, 0)))
	require.Equal(t, "r4 r3", ids(j.Recent(nil, 2)))
	require.Equal(t, "r4 r3 r2", ids(j.Recent(nil, 99)))
	require.Equal(t, "old r4", ids(j.Recent([]decision.Record{{RequestID: "old"}}, 1)))
}

func TestAHandleOutlivesItsSlotWithoutHarm(t *testing.T) {
	j := newJournal(t, 2)
	h := add(j, "first")
	require.True(t, j.End(h, decision.OK, "", 200, at(5)))
	add(j, "second")
	add(j, "third")
	require.False(t, j.End(h, decision.Failed, "late", 500, at(9)))
	require.False(t, j.Update(Handle{}, func(*decision.Record) { t.Fatal("called for no record") }))
	for _, r := range j.Recent(nil, 0) {
		require.Equal(t, decision.Routed, r.Outcome)
		require.Zero(t, r.Status)
	}
}

func TestAReusedSlotKeepsNothingOfTheOldRecord(t *testing.T) {
	j := newJournal(t, 1)
	j.Add(func(r *decision.Record) {
		*r = decision.Record{
			Seq: 9, Time: at(1), RequestID: "a", Attempt: 2, Model: "m", Namespace: "n", Path: "/p", BodyBytes: 1,
			TokenSource: decision.ByteEstimate, TokenReason: "x", ISLTokens: 1, PromptBlocks: 1, BlockSize: 1,
			Outcome: decision.Failed, Detail: "d", Status: 500, Leg: decision.LegFailed, LegDetail: "l",
			Timings: decision.Timings{PrefillStarted: 1, PrefillWell: 1, PrefillEnded: 1, ResponseHeaders: 1, End: 1}, DecisionIn: 1,
		}
		for _, c := range []*decision.Choice{&r.Prefill, &r.Decode} {
			*c = decision.Choice{Rank: worker.Rank{ID: 1, DPRank: 1}, Endpoint: "e", Mode: "kv", Reason: "r", OverlapBlocks: 1, Cost: 1}
			for i := range decision.MaxRows + 1 {
				c.Offer(&decision.Row{Rank: worker.Rank{ID: worker.ID(i + 1)}})
			}
		}
	})
	j.Add(func(*decision.Record) {})
	got := j.Recent(nil, 0)[0]
	require.Empty(t, got.Prefill.Rows())
	require.Empty(t, got.Decode.Rows())
	require.Equal(t, decision.Record{Seq: 2}, got)
}

func TestTheFirstEndAndTheFirstMarkStand(t *testing.T) {
	j := newJournal(t, 0)
	require.Equal(t, DefaultSize, j.Size())
	h := add(j, "r")
	require.True(t, j.Mark(h, decision.PrefillStarted, at(0)))
	j.Mark(h, decision.PrefillStarted, at(50))
	j.Mark(h, decision.ResponseHeaders, at(7))
	j.LegEnd(h, decision.LegFailed, "connection lost", at(9))
	j.LegEnd(h, decision.LegAborted, "orphan", at(10))
	j.Mark(h, decision.PrefillWell, at(11))
	j.End(h, decision.Retried, "prefill connection lost", 0, at(12))
	j.End(h, decision.OK, "", 200, at(30))
	r := j.Recent(nil, 1)[0]
	require.Equal(t, decision.Timings{
		PrefillStarted: 1, PrefillWell: 11 * time.Millisecond, PrefillEnded: 9 * time.Millisecond,
		ResponseHeaders: 7 * time.Millisecond, End: 12 * time.Millisecond,
	}, r.Timings)
	require.Equal(t, "retried: prefill connection lost", r.OutcomeText())
	require.Equal(t, decision.LegFailed, r.Leg)
	require.Equal(t, "connection lost", r.LegDetail)
	require.Zero(t, r.Status)
}

func TestLegMarksMoveForwardOnly(t *testing.T) {
	j := newJournal(t, 1)
	h := add(j, "r")
	for _, tc := range []struct {
		e    decision.Event
		want decision.LegOutcome
	}{{decision.PrefillWell, decision.LegWell}, {decision.PrefillStarted, decision.LegWell}, {decision.PrefillEnded, decision.LegEnded}, {decision.PrefillWell, decision.LegEnded}} {
		j.Mark(h, tc.e, at(1))
		require.Equal(t, tc.want, j.Recent(nil, 1)[0].Leg)
	}
}

func TestLongTextIsCutAndQueriesAreDropped(t *testing.T) {
	j := newJournal(t, 1)
	j.Add(func(r *decision.Record) {
		r.RequestID = strings.Repeat("é", 1000)
		r.Path = "/v1/completions?key=secret"
	})
	r := j.Recent(nil, 1)[0]
	require.LessOrEqual(t, len(r.RequestID), decision.MaxText+len("…"))
	require.True(t, strings.HasSuffix(r.RequestID, "é…"))
	require.Equal(t, "/v1/completions", r.Path)
}

func TestANilJournalKeepsNothing(t *testing.T) {
	var j *Journal
	h := j.Add(func(*decision.Record) { t.Fatal("called without a journal") })
	require.True(t, h.IsZero())
	require.False(t, j.End(h, decision.OK, "", 200, at(0)))
	require.Nil(t, j.Recent(nil, 5))
	require.Zero(t, j.Size())
}

func TestNewRefusesANegativeSize(t *testing.T) {
	_, err := New(-1)
	require.ErrorContains(t, err, "journal: size -1: expected 0")
}

func TestWritingDoesNotAllocate(t *testing.T) {
	j := newJournal(t, 4)
	now, rows := at(3), make([]decision.Row, 40)
	for i := range rows {
		rows[i] = decision.Row{Rank: worker.Rank{ID: worker.ID(40 - i)}, Cost: float64(40 - i)}
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h := j.Add(func(r *decision.Record) {
			r.Time, r.RequestID = now, "abc"
			r.Prefill.Rank = rows[3].Rank
			for i := range rows {
				r.Prefill.Offer(&rows[i])
			}
		})
		j.Mark(h, decision.PrefillStarted, now)
		j.LegEnd(h, decision.LegFailed, "status 500", now)
		j.End(h, decision.OK, "", 200, now)
	}))
	dst := make([]decision.Record, 0, 4)
	require.Zero(t, testing.AllocsPerRun(20, func() { dst = j.Recent(dst[:0], 0) }))
}

func TestWritersAndReadersMayRunTogether(t *testing.T) {
	j := newJournal(t, 4)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 300 {
				id := fmt.Sprint(w, "-", i)
				h := add(j, id)
				j.Update(h, func(r *decision.Record) {
					if r.RequestID != id {
						t.Errorf("handle of %s reached %s", id, r.RequestID)
					}
				})
				j.End(h, decision.OK, "", 200, at(1))
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			var last uint64
			for _, r := range j.Recent(nil, 0) {
				if last != 0 && r.Seq >= last {
					t.Errorf("record %d after %d", r.Seq, last)
				}
				last = r.Seq
			}
		}
	})
	wg.Wait()
	require.Len(t, j.Recent(nil, 0), 4)
}

func TestARecordHasNothingOfTheOneThatItsSlotHadBefore(t *testing.T) {
	j, err := New(1)
	require.NoError(t, err)
	j.Add(func(r *decision.Record) {
		r.Split, r.Decode.Replaced, r.Prefill.Refused = "one worker", "in place of 3/0", "full"
	})
	j.Add(func(r *decision.Record) { require.Equal(t, decision.Record{Seq: 2}, *r) })
}

func TestWhatIsKeptIsACopy(t *testing.T) {
	j := newJournal(t, 1)
	add(j, "before")
	r := decision.Record{Seq: 99, RequestID: strings.Repeat("x", 2*decision.MaxText), Outcome: decision.Routed}
	h := j.Keep(&r)
	require.True(t, j.End(h, decision.OK, "", 200, at(5)))
	require.Equal(t, decision.Routed, r.Outcome)
	got := j.Recent(nil, 1)[0]
	require.Equal(t, decision.OK, got.Outcome)
	require.EqualValues(t, 2, got.Seq)
	require.Empty(t, got.Prefill.Rows())
	require.Len(t, got.RequestID, decision.MaxText+len("…"))
	require.Zero(t, testing.AllocsPerRun(100, func() { j.Keep(&decision.Record{}) }))
}
