package sides

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	p1, p2     worker.ID = 1, 2
	d1, d2, d3 worker.ID = 11, 12, 13
)

var (
	everybody = []worker.ID{p1, p2, d1, d2, d3}
	start     = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
)

func book() *Book {
	b := new(Book)
	b.Keep(everybody, nil)
	return b
}

// step is one prompt that a pair has counted.
type step struct {
	prefill, decode worker.ID
	counts          Counts // Ours, Prefill, Decode
}

func kept(a *Apart) (out [][2]worker.ID) {
	for _, p := range []worker.ID{p1, p2} {
		for _, d := range []worker.ID{d1, d2, d3} {
			if a.Keeps(p, d) {
				out = append(out, [2]worker.ID{p, d})
			}
		}
	}
	return out
}

func TestWhoCountsOtherwiseIsKeptApart(t *testing.T) {
	for name, tt := range map[string]struct {
		steps []step
		kept  [][2]worker.ID
		alone []worker.ID // of each difference
	}{
		"all count alike":                       {steps: []step{{p1, d1, Counts{0, 9, 9}}, {p1, d2, Counts{9, 9, 9}}, {p2, d3, Counts{0, 7, 7}}}},
		"Baton alone counts otherwise":          {steps: []step{{p1, d1, Counts{8, 9, 9}}}},
		"what one has not told":                 {steps: []step{{p1, d1, Counts{9, 0, 9}}, {p1, d1, Counts{9, 9, 0}}, {p1, d1, Counts{9, -1, 9}}}},
		"nobody knows who":                      {[]step{{p1, d1, Counts{0, 9, 10}}}, [][2]worker.ID{{p1, d1}}, []worker.ID{0}},
		"Baton counts as prefill":               {[]step{{p1, d1, Counts{9, 9, 10}}}, [][2]worker.ID{{p1, d1}}, []worker.ID{d1}},
		"Baton counts as decode":                {[]step{{p1, d1, Counts{10, 9, 10}}}, [][2]worker.ID{{p1, d1}}, []worker.ID{p1}},
		"Baton counts as neither":               {[]step{{p1, d1, Counts{11, 9, 10}}}, [][2]worker.ID{{p1, d1}}, []worker.ID{0}},
		"one decode of three":                   {[]step{{p1, d1, Counts{0, 9, 9}}, {p1, d3, Counts{0, 9, 10}}}, [][2]worker.ID{{p1, d3}}, []worker.ID{d3}},
		"the same, with all prefill workers":    {[]step{{p1, d1, Counts{0, 9, 9}}, {p2, d1, Counts{0, 9, 9}}, {p1, d3, Counts{0, 9, 10}}}, [][2]worker.ID{{p1, d3}, {p2, d3}}, []worker.ID{d3}},
		"the same, the others being heard late": {[]step{{p1, d3, Counts{0, 9, 10}}, {p1, d1, Counts{0, 9, 9}}, {p2, d1, Counts{0, 9, 9}}}, [][2]worker.ID{{p1, d3}, {p2, d3}}, []worker.ID{d3}},
		"one prefill of two": {
			[]step{{p2, d1, Counts{0, 9, 9}}, {p2, d2, Counts{0, 9, 9}}, {p1, d1, Counts{0, 8, 9}}},
			[][2]worker.ID{{p1, d1}, {p1, d2}}, []worker.ID{p1},
		},
		"one that cuts long prompts alone": { // backed by short ones: each pair is found by itself
			[]step{{p1, d1, Counts{0, 9, 9}}, {p1, d2, Counts{0, 9, 9}}, {p1, d2, Counts{0, 90, 50}}},
			[][2]worker.ID{{p1, d2}}, []worker.ID{0},
		},
		"a template that is being replaced": { // the two new ones may be a pair
			[]step{{p1, d1, Counts{0, 9, 9}}, {p1, d2, Counts{0, 9, 10}}, {p2, d1, Counts{0, 10, 9}}, {p2, d2, Counts{0, 10, 10}}},
			[][2]worker.ID{{p1, d2}, {p2, d1}}, []worker.ID{0, 0},
		},
		"the same pair twice": {[]step{{p1, d1, Counts{0, 9, 10}}, {p1, d1, Counts{0, 5, 6}}}, [][2]worker.ID{{p1, d1}}, []worker.ID{0}},
	} {
		t.Run(name, func(t *testing.T) {
			b, first := book(), 0
			for _, s := range tt.steps {
				d, is := b.Heard(b.Begin(s.prefill, s.decode), s.counts)
				if is {
					first++
					require.Equal(t, []any{s.prefill, s.decode, s.counts}, []any{d.Prefill, d.Decode, d.Counts})
				}
			}
			require.Equal(t, tt.kept, kept(b.Apart()))
			var alone []worker.ID
			if a := b.Apart(); a != nil {
				for _, d := range a.Differences {
					alone = append(alone, d.Alone)
				}
			}
			require.Equal(t, tt.alone, alone)
			require.Equal(t, len(alone), first, "each pair is told of once")
		})
	}
}

func TestANewLifeClearsWhatWasKnown(t *testing.T) {
	for name, renew := range map[string]func(*Book){
		"the process is dead": func(b *Book) { b.Renew(d1) },
		"the record changes":  func(b *Book) { b.Keep(everybody, []worker.ID{d1}) },
		"it leaves":           func(b *Book) { b.Keep([]worker.ID{p1, p2, d2, d3}, nil) },
		"its partner leaves":  func(b *Book) { b.Keep([]worker.ID{p2, d1, d2, d3}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			b := book()
			was := b.Begin(p1, d1)
			_, first := b.Heard(was, Counts{0, 9, 10})
			require.True(t, first)
			b.Keep(everybody, []worker.ID{d3})
			require.True(t, b.Apart().Keeps(p1, d1), "others' lives are theirs")
			renew(b)
			require.Nil(t, b.Apart())
			_, first = b.Heard(was, Counts{0, 9, 10})
			require.False(t, first, "an attempt of the life before tells nothing")
			require.False(t, b.Due(was, start))
		})
	}
	b := book()
	b.Renew(99)
	require.False(t, b.Due(b.Begin(p1, 99), start), "of unknown workers nothing is known")
}

func TestATokenizerIsAskedAtFirstAndRarelyAfter(t *testing.T) {
	b, now := book(), start
	asked := func(p, d worker.ID, told bool) bool {
		pair := b.Begin(p, d)
		if !b.Due(pair, now) {
			return false
		}
		require.False(t, b.Due(b.Begin(p2, d), now), "one question at a time")
		b.Answered(pair, told, now)
		if told {
			b.Heard(pair, Counts{0, 9, 9})
		}
		return true
	}
	for range firstCompared {
		require.True(t, asked(p1, d1, true))
	}
	require.False(t, asked(p1, d1, true))
	require.True(t, asked(p2, d1, true), "the other one is new")
	require.True(t, asked(p1, d2, false))
	require.False(t, asked(p1, d2, true), "it has not answered")
	now = now.Add(askAgain)
	require.True(t, asked(p1, d1, true))
	require.False(t, asked(p1, d1, true))
	require.True(t, asked(p1, d2, true))
	require.True(t, asked(p1, d2, true), "few of its counts are compared")

	for range firstCompared { // what passes by itself needs no question
		b.Heard(b.Begin(p1, d3), Counts{0, 9, 9})
	}
	require.True(t, asked(p1, d3, true), "one question is free")
	require.False(t, asked(p1, d3, true))
}

func TestNoMoreThanMostPairsAreKept(t *testing.T) {
	b := new(Book)
	var ids []worker.ID
	for i := range worker.ID(mostPairs + 9) {
		ids = append(ids, i+1)
	}
	b.Keep(ids, nil)
	for _, d := range ids[1:] {
		b.Heard(b.Begin(ids[0], d), Counts{0, 9, 10})
	}
	require.Len(t, b.Apart().Differences, mostPairs)
}

func TestTheRanksOfWhoIsKeptApartAreLeftOut(t *testing.T) {
	b := book()
	b.Heard(b.Begin(p1, d2), Counts{0, 9, 10})
	ranks := []worker.Rank{{ID: d1}, {ID: d2}, {ID: d2, DPRank: 1}, {ID: d3}}
	require.Equal(t, ranks[1:3], b.Apart().Among(ranks, worker.Prefill, p1))
	require.Empty(t, b.Apart().Among(ranks, worker.Prefill, p2))
	require.Equal(t, []worker.Rank{{ID: p1}}, b.Apart().Among([]worker.Rank{{ID: p1}, {ID: p2}}, worker.Decode, d2))
	require.Empty(t, new(Book).Apart().Among(ranks, worker.Prefill, p1))
}
