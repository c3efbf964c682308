package stack

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAWorkersAddressesAreHeldUnlessTheyAreNamed(t *testing.T) {
	for args, want := range map[string]string{
		"--role decode":                               "listen kv-events-port replay-port",
		"--role=prefill":                              "listen bootstrap-listen kv-events-port replay-port",
		"--role prefill -engine vllm":                 "listen side-channel-listen kv-events-port replay-port",
		"--role=prefill --engine=trtllm --dp-size 2":  "listen side-channel-listen",
		"--role decode --listen a:1 --replay-port=-1": "kv-events-port",
	} {
		more, err := addresses(t.Context(), strings.Fields(args))
		require.NoError(t, err)
		var names []string
		for _, f := range more {
			name, at, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
			require.NotEmpty(t, at, f)
			names = append(names, name)
		}
		require.Equal(t, want, strings.Join(names, " "), args)
	}
}

func TestTheLastValueOfAFlagHolds(t *testing.T) {
	v, ok := flagOf([]string{"--dp-size", "2", "-dp-size=3", "dp-size=4"}, "dp-size")
	require.True(t, ok)
	require.Equal(t, "3", v)
	_, ok = flagOf([]string{"--dp-size-x=2", "--dp-size"}, "dp-size")
	require.False(t, ok)
}
