package plugin

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fine is a state in which nothing is wrong: one worker of each role.
func fine(change ...func(s *admin.State)) *admin.State {
	s := &admin.State{
		Now: time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC), Ready: true,
		Keys: []admin.KeyRow{{Model: "m", CanServe: true}},
		Workers: []admin.WorkerRow{
			{ID: 1, Role: worker.Prefill, Endpoint: "10.0.0.1:8000", Health: admin.Healthy, Ranks: []admin.RankRow{{Events: admin.EventStream{State: admin.Connected}}}},
			{ID: 2, Role: worker.Decode, Endpoint: "10.0.0.2:8000", Health: admin.Healthy, Ranks: []admin.RankRow{{}}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

// linesOf judges a state, and returns the lines.
func linesOf(s *admin.State) (lines []string) {
	ts := judge(s, nil, ended{})
	for i := range ts {
		lines = append(lines, string(ts[i].Kind)+": "+ts[i].Line())
	}
	return lines
}

func TestWhatTheStateShowsIsJudged(t *testing.T) {
	require.Empty(t, linesOf(fine()))
	at := admin.At(fine().Now.Add(-time.Minute))
	first := func(f func(w *admin.WorkerRow)) func(s *admin.State) {
		return func(s *admin.State) { f(&s.Workers[0]) }
	}
	for _, row := range []struct {
		want   string
		change func(s *admin.State)
	}{
		{"not_ready: NOT READY: Baton is not ready: no worker view yet. Requests are refused.", func(s *admin.State) { s.Ready, s.NotReadyReason = false, "no worker view yet" }},
		{"no_workers: NO WORKERS: The view has no workers. Requests are refused. Check whether engines run, and whether discovery lists them.", func(s *admin.State) { s.Workers = nil }},
		{"model_unserved: Model m cannot be served: no decode worker. Its requests are refused or wait.", func(s *admin.State) { s.Keys[0].CanServe, s.Keys[0].Reason = false, "no decode worker" }},
		{"queue_full: FULL: The prefill workers of model m have 12 prompt tokens queued, the limit is 10.", func(s *admin.State) { s.Keys[0].QueuedTokens, s.Keys[0].MaxQueuedTokens = 12, 10 }},
		{"bodies_full: FULL: 101 MiB of bodies are in flight, of at most 128 MiB.", func(s *admin.State) { s.BodiesTight, s.BodyBytes, s.BodyLimit = true, 101<<20, 128<<20 }},
		{"worker_aside: 1 of 1 prefill workers is set aside: 10.0.0.1:8000 (id 1) (connect-failed).", first(func(w *admin.WorkerRow) { w.Health, w.Reason, w.Since = admin.Aside, "connect-failed", at })},
		{"worker_aside: 1 of 1 prefill workers is set aside: 10.0.0.1:8000 (id 1): rank 1: silent (in part).", first(func(w *admin.WorkerRow) { w.Health, w.Reason = admin.Partly, "rank 1: silent" })},
		{"worker_recovering: 1 of 1 prefill workers is coming back: 10.0.0.1:8000 (id 1) (probe).", first(func(w *admin.WorkerRow) { w.Health, w.Reason = admin.Recovering, "probe" })},
		{"worker_unheard: 1 of 1 prefill workers is not heard from yet: 10.0.0.1:8000 (id 1) (it refuses connections).", first(func(w *admin.WorkerRow) { w.Health, w.Reason = admin.Unheard, "it refuses connections" })},
		{"worker_spared: 1 of 1 prefill workers is failing", first(func(w *admin.WorkerRow) { w.Doubt = trouble.WorkerSpared })},
		{"worker_doubted: 1 of 1 prefill workers is doubted: 10.0.0.1:8000 (id 1) (silent).", first(func(w *admin.WorkerRow) { w.Doubt, w.Reason = trouble.WorkerDoubted, "silent" })},
		{"worker_ineligible: 1 of 1 prefill workers is not used", first(func(w *admin.WorkerRow) { w.Doubt = trouble.WorkerIneligible })},
		{"worker_stale: 1 of 1 prefill workers is stale", first(func(w *admin.WorkerRow) { w.StaleSince = at })},
		{"facts_failing: 1 of 1 prefill workers is not telling what they run: 10.0.0.1:8000 (id 1) (EOF).", first(func(w *admin.WorkerRow) { w.Facts = admin.FactsRow{State: "failing", Error: "EOF", Since: at} })},
		{"view_stale: STALE: The view of the workers, revision 0, is no longer confirmed (the file is gone).", func(s *admin.State) {
			s.View = admin.View{Stale: true, Age: time.Minute, StaleReason: "the file is gone"}
		}},
		{"discovery_problem: file: bad port.", func(s *admin.State) {
			s.Problems = []admin.Problem{{Kind: trouble.DiscoveryProblem, Text: "file: bad port"}}
		}},
		{"kv_channel_down: No KV events come by nats (refused).", func(s *admin.State) { s.Channels = []admin.ChannelRow{{Name: "nats", Reason: "refused"}} }},
		{"index_shed: The index has too little memory, and has dropped 9 blocks of 1 ranks.", first(func(w *admin.WorkerRow) { w.Ranks[0].ShedBlocks = 9 })},
		{"kv_events_lost: KV events of 1 of 2 workers are degraded: 10.0.0.1:8000 (1/0) (some events were lost).", first(func(w *admin.WorkerRow) {
			w.Ranks[0].Events = admin.EventStream{State: admin.Connected, Degraded: true, Reason: "some events were lost"}
		})},
		{"kv_events_silent: KV events of 1 of 2 workers do not come: 10.0.0.1:8000 (1/0) (EOF).", first(func(w *admin.WorkerRow) {
			w.Ranks[0].Events = admin.EventStream{State: admin.Lost, Degraded: true, Reason: "EOF"}
		})},
	} {
		t.Run(strings.Split(row.want, ":")[0], func(t *testing.T) {
			lines := linesOf(fine(row.change))
			require.NotEmpty(t, lines)
			require.True(t, strings.HasPrefix(lines[0], row.want), lines[0])
			require.Len(t, lines, 1)
		})
	}
}

func TestWhatIsNoTroubleIsNotTold(t *testing.T) {
	for name, f := range map[string]func(w *admin.WorkerRow){
		"an engine may be starting": func(w *admin.WorkerRow) {
			w.Ranks[0].Events = admin.EventStream{State: admin.Connecting, Degraded: true}
		},
		"a stream that catches up": func(w *admin.WorkerRow) {
			w.Ranks[0].Events = admin.EventStream{State: admin.Replaying, Degraded: true}
		},
		"a worker that leaves has no events": func(w *admin.WorkerRow) {
			w.Health, w.Ranks[0].Events = admin.Draining, admin.EventStream{State: admin.Lost}
		},
	} {
		require.Empty(t, linesOf(fine(func(s *admin.State) { f(&s.Workers[0]) })), name)
	}
}

// TestAFleetInTroubleIsAFewLines: what three hundred workers have alike is to be read once.
func TestAFleetInTroubleIsAFewLines(t *testing.T) {
	s := fine(func(s *admin.State) {
		s.Workers = nil
		for i := range 300 {
			w := admin.WorkerRow{ID: worker.ID(i + 1), Role: worker.Prefill, Endpoint: "10.0.0.1:8000", Health: admin.Healthy, Ranks: []admin.RankRow{{Events: admin.EventStream{
				State: admin.Connecting, Late: true, Since: admin.At(s.Now.Add(-time.Duration(i) * time.Minute)), Reason: "connection refused",
			}}}}
			if i%2 == 0 {
				w.Health, w.Reason, w.Since = admin.Aside, "connect-failed", admin.At(s.Now.Add(-time.Duration(i)*time.Second))
			}
			s.Workers = append(s.Workers, w)
			s.Problems = append(s.Problems, admin.Problem{Kind: trouble.DiscoveryProblem, Text: fmt.Sprintf("entry %d", i)})
		}
	})
	ts := judge(s, nil, ended{})
	require.Len(t, ts, 10)
	require.EqualValues(t, 150, ts[0].Count)
	require.Equal(t, s.Now.Add(-298*time.Second), ts[0].Since, "since the first of them")
	require.Equal(t, "150 of 300 prefill workers are set aside: 10.0.0.1:8000 (id 1), 10.0.0.1:8000 (id 3), 10.0.0.1:8000 (id 5), 10.0.0.1:8000 (id 7) and 146 more (connect-failed)", ts[0].What)
	require.Equal(t, "And 293 more like these: see the JSON state", ts[8].What)
	require.Equal(t, trouble.KVEventsSilent, ts[9].Kind)
	require.EqualValues(t, 150, ts[9].Count)
	require.EqualValues(t, 300, trouble.ByKind(ts)["discovery_problem"])
}

func TestHowRequestsEndIsJudgedForAFewSeconds(t *testing.T) {
	j, err := journal.New(64)
	require.NoError(t, err)
	now := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
	add := func(ago, took time.Duration, o decision.Outcome, detail string, status int) {
		h := j.Add(func(r *decision.Record) {
			r.Time, r.ISLTokens, r.Outcome = now.Add(-ago), 100, decision.Routed
			if took == 0 {
				r.TokenReason = "tokenizer failed"
			}
			r.Error = detail
		})
		j.End(h, o, detail, status, now.Add(took-ago))
	}
	add(time.Minute, 55*time.Second, decision.Failed, "prefill_failed", 503)
	add(time.Minute, 10*time.Second, decision.Failed, "too long ago", 503)
	add(4*time.Second, time.Second, decision.OK, "", 200)
	add(4*time.Second, time.Second, decision.Rejected, "the client's", 400)
	add(3*time.Second, time.Second, decision.Rejected, "busy", 429)
	add(2*time.Second, time.Second, decision.Unfinished, "", 200)
	e := lately(j, now)
	ts := e.troubles()
	require.Len(t, ts, 2)
	require.Equal(t, "2 of the 5 attempts that ended in the last 8s did not succeed: failed: prefill_failed, rejected: busy. The latest error: busy", ts[0].What)
	require.Equal(t, trouble.AccessLog, ts[1].Kind)
	e = lately(j, now.Add(10*time.Second))
	require.Empty(t, e.troubles(), "they are over")
}

func TestATroubleIsLoggedOnceAndAtItsEnd(t *testing.T) {
	var b bytes.Buffer
	var w trouble.Watch
	log := slog.New(slog.NewTextHandler(&b, nil))
	now := fine().Now
	for i := range 10 {
		var ts []trouble.Trouble
		if i < 5 {
			ts = []trouble.Trouble{{Kind: trouble.KVEventsSilent, What: "They do not come"}, {Kind: trouble.WorkerAside, What: "Told by health"}}
		}
		begun, over := w.Look(ts, now.Add(time.Duration(i)*troubleEvery))
		logTroubles(log, begun, over, now.Add(time.Duration(i)*troubleEvery))
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], `level=WARN msg=trouble kind=kv_events_silent problem="They do not come" effect="The KV blocks of these workers count for less" do="Compare kv_events`)
	require.Contains(t, lines[1], `level=INFO msg="trouble is over" kind=kv_events_silent problem="They do not come" took=12s`)
}
