package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fit is SGLang's with blocks of 16 tokens and the given facts; "-" is not known.
func fit(facts string) worker.Fit {
	f := worker.Fit{Engine: worker.SGLang, BlockSize: 16}
	for i, text := range strings.Fields(facts) {
		if text != "-" {
			f.Pair[i] = text
		}
	}
	return f
}

func TestWhatIsNotKnownKeepsNobodyApart(t *testing.T) {
	for _, c := range []struct{ a, b, differ string }{
		{"-", "-", ""},
		{"a 1 w auto", "a 1 w auto", ""},
		{"a", "-", ""},
		{"- 1 - auto", "a - w -", ""},
		{"a", "b", "kv_group, a and b"},
		{"a 1", "a 2", "engine_version, 1 and 2"},
		{"- 1 w", "a - v", "weights, w and v"},
		{"a 1 w auto", "a 1 w fp8", "kv_dtype, auto and fp8"},
	} {
		a, b := fit(c.a), fit(c.b)
		require.Equal(t, c.differ, a.Difference(b), "%+v", c)
		require.Equal(t, c.differ == "", a.Fits(b), "%+v", c)
		require.Equal(t, c.differ == "", b.Fits(a), "%+v", c)
	}
	a, other := fit("a"), fit("a")
	other.BlockSize = 32
	require.False(t, a.Fits(other))
	require.Equal(t, "block sizes, 16 and 32 tokens", a.Difference(other))
	other.Engine = worker.VLLM
	require.False(t, a.Fits(other))
	require.Equal(t, "engines", a.Difference(other))
	require.True(t, fit("a").Fits(fit("-")) && fit("-").Fits(fit("b")) && !fit("a").Fits(fit("b")), "fits are not transitive")
	require.Equal(t, "sglang with blocks of 16 tokens, kv_group a, kv_dtype auto", fit("a - - auto").String())
	require.Equal(t, "kv_group a, engine_version unknown, weights unknown, kv_dtype unknown", fit("a").Pair.String())
}

// pooled returns the pool of prefill workers 1, 2 … and decode workers 101, 102 …, each
// with the facts of its text, and two ranks.
func pooled(t *testing.T, prefill, decode []string) *worker.Pool {
	t.Helper()
	var ws []*worker.Worker
	add := func(role worker.Role, first int, facts []string) {
		for i, text := range facts {
			w := good(t, worker.ID(first+i), role, fmt.Sprintf("10.0.%d.%d:%d", int(role), i%250, 1000+i/250))
			w.DPSize, w.Pair = 2, fit(text).Pair
			ws = append(ws, w)
		}
	}
	add(worker.Prefill, 1, prefill)
	add(worker.Decode, 101, decode)
	s, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	return s.Pool(worker.Key{Model: "m"})
}

// idsOf are the workers of ranks, each of which must have both.
func idsOf(t *testing.T, ranks []worker.Rank) (out []worker.ID) {
	t.Helper()
	for i, r := range ranks {
		require.Equal(t, worker.DPRank(i%2), r.DPRank)
		if i%2 == 0 {
			out = append(out, r.ID)
		}
	}
	return out
}

func TestAPoolKnowsThePartnersOfEachFit(t *testing.T) {
	p := pooled(t, []string{"a", "b", "-", "c"}, []string{"a", "a", "-", "b"})
	ofDecode := func(facts string) []worker.ID { return idsOf(t, p.DecodeRanksOf(fit(facts))) }
	ofPrefill := func(facts string) []worker.ID { return idsOf(t, p.PrefillRanksOf(fit(facts))) }
	require.Equal(t, []worker.ID{101, 102, 103}, ofDecode("a"))
	require.Equal(t, []worker.ID{103, 104}, ofDecode("b"))
	require.Equal(t, []worker.ID{103}, ofDecode("c"))
	require.Equal(t, []worker.ID{101, 102, 103, 104}, ofDecode("-"))
	require.Equal(t, []worker.ID{1, 3}, ofPrefill("a"))
	require.Equal(t, []worker.ID{103}, ofDecode("d"), "a fit that no worker has, as of one that drains")
	require.Equal(t, p.PrefillRanks, p.PairedRanks)

	p = pooled(t, []string{"a", "b", "c"}, []string{"b", "a"})
	require.Equal(t, []worker.ID{1, 2}, idsOf(t, p.PairedRanks), "nobody is left for worker 3")
	require.Len(t, p.Paired, 2)
	require.Equal(t, []worker.Engine{worker.SGLang}, p.PairedEngines)

	p = pooled(t, []string{"a", "a"}, []string{"b"})
	require.Empty(t, p.Paired)
	require.Empty(t, p.PairedRanks)
	require.Empty(t, p.PairedEngines)
}

// Of a pool whose workers are all alike nothing is kept beside its lists.
func TestAlikeWorkersShareOneList(t *testing.T) {
	p := pooled(t, []string{"a 1", "a 1"}, []string{"a 1", "a 1"})
	require.Same(t, &p.DecodeRanks[0], &p.DecodeRanksOf(fit("a 1"))[0])
	require.Same(t, &p.PrefillRanks[0], &p.PairedRanks[0])
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = p.DecodeRanksOf(p.Prefill[0].Fit()) }))
	seen := map[*worker.Rank]bool{}
	for _, l := range p.RankLists() {
		if len(l) > 0 {
			seen[&l[0]] = true
		}
	}
	require.Len(t, seen, 2)
}

// What a pool keeps of fits is what a look at all workers finds.
func TestAPoolsPartnersAreThoseThatFit(t *testing.T) {
	texts := []string{"-", "a", "b", "a 1", "b 2", "- 1", "a 2 w", "- - w", "- - v fp8"}
	for i := range 300 {
		n := func(k int) []string {
			return []string{texts[i%len(texts)], texts[(i/k)%len(texts)], texts[(i*7/k)%len(texts)]}
		}
		p := pooled(t, n(3), n(11))
		for _, text := range texts {
			var want []worker.ID
			for _, w := range p.Decode {
				if w.Fit().Fits(fit(text)) {
					want = append(want, w.ID)
				}
			}
			require.Equal(t, want, idsOf(t, p.DecodeRanksOf(fit(text))), "%d %s", i, text)
		}
		for _, w := range p.Prefill {
			require.Equal(t, len(p.DecodeRanksOf(w.Fit())) > 0, slices.Contains(p.Paired, w))
		}
	}
}

func TestAFactOfAPairIsABoundedText(t *testing.T) {
	w := good(t, 1, worker.Decode, "127.0.0.1:1")
	w.Pair[worker.KVGroup] = strings.Repeat("x", worker.MaxNameBytes)
	require.NoError(t, w.Validate())
	w.Pair[worker.KVGroup] += "x"
	w.Pair[worker.Weights] = "a\nb"
	require.ErrorContains(t, w.Validate(), "kv_group \"xxx")
	require.ErrorContains(t, w.Validate(), "weights \"a\\nb\": expected at most 256 bytes of printable text")
}
