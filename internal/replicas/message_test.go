package replicas

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func rank(id uint64) worker.Rank { return worker.Rank{ID: worker.ID(id), DPRank: 3} }

func whole() *Message {
	return &Message{
		Told: load.Told{Life: 1<<63 + 1, Version: 9, Whole: true, Sum: 1 << 60, Ranks: []load.Booked{{
			Rank: rank(1<<63 + 5), Load: load.Load{PrefillTokens: 900, PrefillBlocks: 60, PrefillRequests: 3, DecodeBlocks: 7, DecodeRequests: 2}, Behind: 5, Waiting: 1,
			Queue: []load.Queued{{ID: 1, Tokens: 500, Age: 3 * time.Second, Had: time.Second}, {ID: 4, Tokens: 400}},
		}, {Rank: rank(2)}}},
		Routed:  []Routed{{Rank: rank(2), Chain: []kvindex.LocalHash{1, 1<<64 - 1}}},
		Aside:   []worker.Rank{rank(3)},
		Learned: []byte(`{"Fleets":null}`),
	}
}

func TestAMessageComesAsItWasSent(t *testing.T) {
	for _, m := range []*Message{whole(), {Told: load.Told{Life: 1, Version: 1}}, {Told: load.Told{Life: 1, Version: 1}, Aside: []worker.Rank{}}} {
		b, err := m.Encode()
		require.NoError(t, err)
		got, err := Decode(b)
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}

func TestWhatNobodyCouldHaveBookedIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *Message)
		says   string
	}{
		"no life":           {func(m *Message) { m.Life = 0 }, "expected a life"},
		"no version":        {func(m *Message) { m.Version = 0 }, "expected a life and a version"},
		"the last version":  {func(m *Message) { m.Version = 1<<64 - 1 }, "no version that large"},
		"a billion legs":    {func(m *Message) { m.Ranks[0].DecodeRequests = 1 << 30 }, "or that large"},
		"below zero":        {func(m *Message) { m.Ranks[0].DecodeBlocks = -1 }, "no number below 0"},
		"far too many":      {func(m *Message) { m.Ranks[0].PrefillTokens = 1 << 50 }, "or that large"},
		"more than all":     {func(m *Message) { m.Ranks[0].Queue[1].Tokens = 401 }, "not more than those"},
		"a prompt of none":  {func(m *Message) { m.Ranks[0].Queue[1].Tokens = 0 }, "expected tokens above 0"},
		"older than a day":  {func(m *Message) { m.Ranks[0].Queue[0].Age = 25 * time.Hour }, "at most a day"},
		"from the future":   {func(m *Message) { m.Ranks[0].Queue[0].Age = -time.Hour }, "an age"},
		"more than its age": {func(m *Message) { m.Ranks[0].Queue[1].Had = time.Second }, "no more computed"},
		"a million prompts": {func(m *Message) { m.Ranks[0].Queue = make([]load.Queued, 1e6) }, "prompts: expected 16"},
		"a million asides":  {func(m *Message) { m.Aside = make([]worker.Rank, 1e6) }, ""},
		"a million ranks":   {func(m *Message) { m.Ranks = make([]load.Booked, 1e6) }, ""},
		"a long chain":      {func(m *Message) { m.Routed[0].Chain = make([]kvindex.LocalHash, MostChain+1) }, "a routed prompt of"},
		"too many chains": {func(m *Message) {
			m.Routed = make([]Routed, 9)
			for i := range m.Routed {
				m.Routed[i].Chain = make([]kvindex.LocalHash, MostChain)
			}
		}, "a routed prompt of"},
	} {
		m := whole()
		c.change(m)
		b, err := m.Encode()
		require.NoError(t, err, name)
		_, err = Decode(b)
		if c.says == "" { // who tells leaves it out
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.says, name)
	}
	for _, garbage := range []string{"", "{", "[]", `{"life":"x"}`, `{"life":1,"version":1}`, `{"life":"1","version":1,"routed":[{"id":"1","chain":"AAAA"}]}`, strings.Repeat("[", 1<<20)} {
		_, err := Decode([]byte(garbage))
		require.Error(t, err, "%.40s", garbage)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := whole().Encode()
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Decode(b); err == nil {
			again, err := m.Encode()
			require.NoError(t, err)
			_, err = Decode(again)
			require.NoError(t, err)
		}
	})
}
