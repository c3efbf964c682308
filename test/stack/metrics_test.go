package stack

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const idlePage = `# HELP baton_worker_prefill_requests x
baton_worker_prefill_requests{worker="1"} 0
baton_worker_decode_requests{worker="2"} 0
baton_worker_prefill_tokens{worker="1"} 0
baton_worker_decode_blocks{worker="2"} 0
baton_streams_in_flight{leg="main"} 0
baton_streams_in_flight{leg="prefill"} 0
`

func TestAPageOfMetricsIsSummedByNameAndLabels(t *testing.T) {
	m := Metrics(idlePage + "a 1\na{x=\"1\"} 2\na{x=\"2\",y=\"1\"} 3.5\nab 7\nbad{x=\"1\"} word\n")
	sum, found := m.Sum("a")
	require.True(t, found)
	require.InDelta(t, 6.5, sum, 0)
	sum, _ = m.Sum("a", `x="2"`, `y="1"`)
	require.InDelta(t, 3.5, sum, 0)
	for _, name := range []string{"b", "bad"} {
		_, found = m.Sum(name)
		require.False(t, found, name)
	}
}

func TestOnlyAPageThatTellsZeroIsIdle(t *testing.T) {
	require.Empty(t, Metrics(idlePage).Booked())
	require.Equal(t, "baton_worker_decode_blocks 3", Metrics(idlePage+"baton_worker_decode_blocks{worker=\"3\"} 3\n").Booked())
	require.Contains(t, Metrics("").Booked(), "baton_worker_prefill_requests is not told")
}
