package activation

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// poolOf has a worker for each letter: P, D, a decode worker that can do without a
// prefill (A), and in lower case the same with another engine.
func poolOf(t *testing.T, letters string) *worker.Pool {
	t.Helper()
	drains := make1(t, 100, worker.Prefill, func(w *worker.Worker) { w.Draining = true }) // a pool, if an empty one
	return snapshotOf(t, letters, drains).Pool(worker.Key{Model: "m"})
}

func snapshotOf(t *testing.T, letters string, ws ...*worker.Worker) *worker.Snapshot {
	t.Helper()
	for i, c := range letters {
		engine, role := worker.VLLM, worker.Decode
		if c >= 'a' {
			engine, c = worker.SGLang, c-'a'+'A'
		}
		if c == 'P' {
			role = worker.Prefill
		}
		ws = append(ws, make1(t, worker.ID(i+1), role, func(w *worker.Worker) { w.Engine, w.AcceptsAggregated = engine, c == 'A' }))
	}
	return set(t, 1, ws...)
}

// The standing of the prefill workers, who may be picked, the settings, and what comes of
// them: one-worker, becoming-ready, nobody-eligible, prefill-lost and can-serve of
// docs/behaviour.md, as a table.
func TestWhatAModelIsServedWithFollowsFromTheStateOfItsKey(t *testing.T) {
	free := Rules{Listener: true}
	enforced := Rules{Listener: true, Enforced: true}
	fallback := Rules{Listener: true, Fallback: true}
	never := Rules{Listener: true, NeverSplit: true}
	for _, row := range []struct {
		state prefill.State
		pool  string
		rules Rules
		want  Outlook
		says  string
	}{
		{prefill.Absent, "A", free, Outlook{Way: Alone, Reason: NoAggregated}, "one worker: no prefill worker is known"},
		{prefill.Absent, "", free, Outlook{Reason: NoAggregated}, ""},
		{prefill.Absent, "A", enforced, Outlook{Reason: Enforced}, ""},
		{prefill.DecodeWaiting, "DA", free, Outlook{Way: Alone, Reason: NoAggregated}, "one worker: no prefill worker is known"},
		{prefill.DecodeWaiting, "D", free, Outlook{Reason: NoAggregated}, "no prefill worker, and no worker that can do without"},
		{prefill.DecodeWaiting, "DA", enforced, Outlook{Reason: Enforced}, "no prefill worker, and disaggregation is enforced (enforce_disagg)"},
		{prefill.PrefillPending, "DA", free, Outlook{Reason: Pending}, "its prefill workers are known, but not all that is needed of one"},
		{prefill.PrefillPending, "DA", enforced, Outlook{Reason: Pending}, ""},
		{prefill.PrefillPending, "DA", fallback, Outlook{Reason: Pending}, ""}, // becoming ready: it may not fall back
		{prefill.PrefillReady, "PDA", free, Outlook{Way: Apart}, "prefill and decode apart (vllm)"},
		{prefill.PrefillReady, "PDA", enforced, Outlook{Way: Apart}, ""},
		{prefill.PrefillReady, "PDpd", free, Outlook{Way: Apart}, "prefill and decode apart (sglang, vllm)"},
		{prefill.PrefillReady, "DA", free, Outlook{Reason: NoPrefill}, "its prefill workers take no new requests"}, // they drain
		{prefill.PrefillReady, "DA", enforced, Outlook{Reason: NoPrefill}, ""},
		{prefill.PrefillReady, "DA", fallback, Outlook{Way: Alone, Reason: NoPrefill, Fallback: true}, "one worker, as the fallback: its prefill workers take no new requests"},
		{prefill.PrefillReady, "P", free, Outlook{Reason: NoDecode}, "no decode worker takes new requests"}, // never one worker in silence
		{prefill.PrefillReady, "P", enforced, Outlook{Reason: NoDecode}, ""},
		{prefill.Deactivated, "DA", free, Outlook{Way: Alone, Reason: PrefillGone}, "one worker: all prefill workers have left"},
		{prefill.Deactivated, "D", free, Outlook{Reason: PrefillGone}, "all prefill workers have left, and no worker can do without one"},
		{prefill.Deactivated, "DA", enforced, Outlook{Reason: Enforced}, ""},
		{prefill.Deactivated, "D", fallback, Outlook{Reason: PrefillGone}, ""},

		// Whose hand-offs do not fit.
		{prefill.PrefillReady, "Pd", free, Outlook{Reason: NoCommon}, "no common hand-off: its prefill workers are vllm, its decode workers sglang"},
		{prefill.PrefillReady, "Pa", free, Outlook{Reason: NoCommon}, ""},
		{prefill.PrefillReady, "Pa", fallback, Outlook{Way: Alone, Reason: NoCommon, Fallback: true}, "one worker, as the fallback: no common hand-off: its prefill workers are vllm, its decode workers sglang"},
		{prefill.PrefillReady, "pPd", free, Outlook{Way: Apart}, "prefill and decode apart (sglang)"},
		{prefill.PrefillReady, "PD", Rules{}, Outlook{Reason: NoListener}, "its engine needs a prefill listener (prefill.listener), and there is none"},
		{prefill.PrefillReady, "PA", Rules{Fallback: true}, Outlook{Reason: NoListener}, ""},
		{prefill.PrefillReady, "PDpd", Rules{}, Outlook{Way: Apart}, ""},

		// A model that is never split.
		{prefill.PrefillReady, "PDA", never, Outlook{Way: Alone, Reason: Off}, "one worker: its disaggregation is off"},
		{prefill.PrefillPending, "A", never, Outlook{Way: Alone, Reason: Off}, ""},
		{prefill.Deactivated, "A", Rules{NeverSplit: true, Enforced: true}, Outlook{Way: Alone, Reason: Off}, ""},
		{prefill.PrefillReady, "PD", never, Outlook{Reason: NoAggregated}, "its disaggregation is off, and no worker can serve it alone"},
	} {
		pool := poolOf(t, row.pool)
		got := Judge(row.state, pool, row.rules)
		require.Equal(t, row.want, got, "%s, pool %q, %+v", row.state, row.pool, row.rules)
		require.Equal(t, got.Way == Refused, got.Why(pool) != "", "a refusal has a reason, and nothing else has")
		require.Equal(t, got.Way == Refused, got.How(pool) == "")
		if row.says != "" {
			require.Equal(t, row.says, got.Why(pool)+got.How(pool))
		}
	}
	require.Equal(t, "it has no worker", Judge(prefill.Absent, nil, free).Why(nil))
}

// What the workers of a pool differ in is told with how many are what, and without what is
// the same in all.
func TestAMixedPoolIsToldWithItsCounts(t *testing.T) {
	of := func(text string) func(*worker.Worker) {
		return func(w *worker.Worker) {
			w.Pair[worker.Weights] = "/models/m"
			w.Pair[worker.KVGroup], w.Pair[worker.KVDType], _ = strings.Cut(text, " ")
		}
	}
	pool := func(prefill, decode []string) *worker.Pool {
		var ws []*worker.Worker
		for i, text := range prefill {
			ws = append(ws, make1(t, worker.ID(1+i), worker.Prefill, of(text)))
		}
		for i, text := range decode {
			ws = append(ws, make1(t, worker.ID(101+i), worker.Decode, of(text)))
		}
		return set(t, 1, ws...).Pool(worker.Key{Model: "m"})
	}
	alike := pool([]string{"a", "a"}, []string{"a", ""})
	require.Empty(t, Mixed(alike))
	require.Empty(t, Unpaired(alike))

	mixed := pool([]string{"a", "a", "a"}, []string{"a", "b", "a", ""})
	require.Equal(t, []string{"its workers differ in kv_group (prefill: 3 a; decode: 2 a, 1 b, 1 unknown): those that differ are no pair"}, Mixed(mixed))
	require.Equal(t, []string{"decode workers 102 are sglang with blocks of 16 tokens, kv_group b, and the prefill workers are sglang with blocks of 16 tokens, kv_group a: " +
		"no two of them are a pair; start them alike"}, Unpaired(mixed))

	apart := pool([]string{"b auto"}, []string{"a auto", "a auto"})
	require.Equal(t, "prefill workers are sglang with blocks of 16 tokens, kv_group b, its decode workers sglang with blocks of 16 tokens, kv_group a", NoPair(apart))
	require.Equal(t, Outlook{Reason: NoCommon}, Judge(prefill.PrefillReady, apart, Rules{Listener: true}))

	many := make([]string, 50)
	for i := range many {
		many[i] = string(rune('A' + i))
	}
	crowd := pool(many, []string{"a"})
	require.Contains(t, Mixed(crowd)[0], ", 42 more texts; decode: 1 a)")
	require.Len(t, Unpaired(crowd), mostNamed+1)
	require.Empty(t, Mixed(pool([]string{"a", "b"}, nil)), "no pair is awaited")
}

// Who is set aside is no change of what discovery knows: the outlook is that of requests
// while it lasts.
func TestWhoIsSetAsideIsLeftOutOfTheOutlookForPeople(t *testing.T) {
	free := Rules{Listener: true}
	for _, row := range []struct {
		workers, aside string // by role, as letters of poolOf; aside in the same places
		rules          Rules
		want           Outlook
		says           string
	}{
		{"PDD", "...", free, Outlook{Way: Apart}, "prefill and decode apart (vllm)"},
		{"PDD", "..x", free, Outlook{Way: Apart}, "prefill and decode apart (vllm)"},
		{"PDD", ".xx", free, Outlook{Reason: NoDecode, Aside: true}, "all its decode workers (2) are set aside"},
		{"PDA", "x..", free, Outlook{Reason: NoPrefill, Aside: true}, "all its prefill workers (1) are set aside"},
		{"PDA", "x..", Rules{Listener: true, Fallback: true}, Outlook{Way: Alone, Reason: NoPrefill, Fallback: true, Aside: true}, "one worker, as the fallback: all its prefill workers (1) are set aside"},
		{"AD", "x.", free, Outlook{Reason: NoAggregated, Aside: true}, "all its workers that can serve it alone (1) are set aside"},
		{"PdDp", "x..x", free, Outlook{Reason: NoPrefill, Aside: true}, "all its prefill workers (2) are set aside"},
		{"PDdp", "x.x.", free, Outlook{Reason: NoCommon, Aside: true}, "all its workers that could serve it as a pair (4) are set aside"},
		{"PD", "xx", Rules{Listener: true, NeverSplit: true}, Outlook{Reason: NoAggregated}, "its disaggregation is off, and no worker can serve it alone"},
	} {
		b := New()
		key := worker.Key{Model: "m"}
		b.Follow(snapshotOf(t, row.workers), discovery.Change{}, noon)
		policy := Policy{Rules: row.rules}
		if row.rules.NeverSplit {
			policy.NeverSplit = map[string]bool{"m": true}
		}
		got := policy.Now(b.Load(), key, func(w *worker.Worker) bool { return row.aside[w.ID-1] != 'x' })
		require.Equal(t, row.want, got, "%s %s", row.workers, row.aside)
		pool := b.Load().Pool(key)
		require.Equal(t, row.says, got.Why(pool)+got.How(pool))
	}
	require.Equal(t, Outlook{Reason: NoWorker}, (&Policy{}).Now(New().Load(), worker.Key{Model: "x"}, nil))
}

// An adapter is served as the model that its workers serve it with; another model of
// the same workers is not.
func TestAModelThatIsNeverSplitTakesItsAdaptersAlong(t *testing.T) {
	b := New()
	loaded := func(w *worker.Worker) {
		w.Models, w.Adapters, w.AcceptsAggregated = []string{"m", "m-lora", "other"}, []string{"m-lora"}, true
	}
	b.Follow(set(t, 1, make1(t, 1, worker.Prefill, loaded), make1(t, 2, worker.Decode, loaded)), discovery.Change{}, noon)
	policy := Policy{NeverSplit: map[string]bool{"m": true, "nobody's": true}}
	for model, want := range map[string]Outlook{
		"m": {Way: Alone, Reason: Off}, "m-lora": {Way: Alone, Reason: Off}, "other": {Way: Apart}, "nobody's": {Reason: NoWorker},
	} {
		require.Equal(t, want, policy.Outlook(b.Load(), worker.Key{Model: model}), model)
	}
	policy.Namespace = "blue"
	foreign := policy.Outlook(b.Load(), worker.Key{Model: "m"})
	require.Equal(t, Outlook{Reason: Foreign}, foreign)
	require.Contains(t, foreign.Why(b.Load().Pool(worker.Key{Model: "m"})), "another namespace")
}
