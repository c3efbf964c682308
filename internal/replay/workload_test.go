package replay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tiny is two conversations whose second turns come in the other order.
const tiny = `{"timestamp": 1000, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]}
{"timestamp": 1100, "input_length": 1030, "output_length": 1, "hash_ids": [3, 4, 9]}

{"timestamp": 6000, "input_length": 1536, "output_length": 1, "hash_ids": [3, 4, 6]}
{"timestamp": 6100, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 5]}
{"timestamp": 12000, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 5]}
`

func TestATraceIsReadWithWholeBlocksAndItsBound(t *testing.T) {
	w, err := ParseTrace([]byte(tiny), 4, 2)
	require.NoError(t, err)
	require.Len(t, w.Requests, 4)
	require.Equal(t, Request{Tokens: 1024, Blocks: []Block{2, 3}, Answer: 7}, w.Requests[0])
	require.Equal(t, Request{At: ms(50), Tokens: 1030, Blocks: []Block{4, 5}, Tail: 10, Answer: 1, Session: 1}, w.Requests[1])
	require.InDelta(t, 2048.0/(1024+1030+2*1536), w.Bound(), 1e-12)
	w, err = ParseTrace([]byte(tiny), 0, 1)
	require.NoError(t, err)
	require.InDelta(t, 3072.0/(1024+1030+3*1536), w.Bound(), 1e-12, "the last block is always computed")
}

func TestATraceThatCannotBeUsedIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "no requests",
		`{"timestamp": 0, "input_length": 512, "hash_ids": [1]}` + "\n{": "line 2",
		`{"timestamp": 0, "input_length": 1024, "hash_ids": [1]}`:        "line 1: input_length 1024 with 1 hash_ids",
		`{"timestamp": 0, "input_length": 0, "hash_ids": []}`:            "line 1: input_length 0",
		`{"timestamp": 9, "input_length": 1, "hash_ids": []}
{"timestamp": 8, "input_length": 1, "hash_ids": []}`: "line 2: timestamps: expected them in order",
	} {
		_, err := ParseTrace([]byte(text), 0, 1)
		require.ErrorContains(t, err, want, text)
	}
}

func TestTheCacheDropsTheEndOfWhatWasUsedLeastRecently(t *testing.T) {
	chain := func(b ...Block) []Block { return b }
	c := newCache(4)
	from, evicted := c.put(chain(1, 2, 3))
	require.Equal(t, 0, from)
	require.Empty(t, evicted)
	from, evicted = c.put(chain(1, 8, 9))
	require.Equal(t, 1, from)
	require.Equal(t, chain(3), evicted)
	require.Equal(t, 2, c.held(chain(1, 2, 3)))
	from, evicted = c.put(chain(20, 21, 22, 23, 24))
	require.Equal(t, 0, from)
	require.Equal(t, chain(2, 9, 8, 1, 24), evicted)
	require.Equal(t, 4, c.held(chain(20, 21, 22, 23, 24)))
}

func arrivals(requests []Request) (out []time.Duration) {
	for _, r := range requests {
		out = append(out, r.At)
	}
	return out
}

func TestArrivalsAreSpreadAndScaled(t *testing.T) {
	of := func(at ...float64) (out []Request) {
		for _, x := range at {
			out = append(out, Request{At: ms(x)})
		}
		return out
	}
	r := of(0, 0, 0, 3000, 3000, 6000)
	Spread(r)
	require.Equal(t, arrivals(of(0, 1000, 2000, 3000, 4500, 6000)), arrivals(r))
	Scale(r, 2)
	require.Equal(t, arrivals(of(0, 500, 1000, 1500, 2250, 3000)), arrivals(r))
	r[4].Follows = 1
	Scale(r, 2)
	require.Equal(t, ms(2250), r[4].At, "a pause is no arrival")
}
