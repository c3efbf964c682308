package capture

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

const captures = "../testdata/captures"

// maxDeviations bounds the known differences between the simulators and the engines.
const maxDeviations = 10

// simulate runs the simulators of a system, in the way its engines are run.
func simulate(t *testing.T, s System) []Target {
	t.Helper()
	roles := []worker.Role{worker.Aggregated}
	if s.Apart {
		roles = []worker.Role{worker.Prefill, worker.Decode}
	}
	var out []Target
	for _, role := range roles {
		c := enginesim.Config{
			Role: role, Engine: worker.Engine(s.Engine), Models: []string{"tiny"}, PageSize: 32, CapacityBlocks: Blocks, MaxModelLen: 4096,
			PrefillPerToken: enginesim.None, DecodePerToken: enginesim.None,
			NoDecodeEvents: s.Engine == string(worker.SGLang),
		}
		sim, err := enginesim.New(c)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- sim.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		target := Target{URL: sim.URL()}
		if !c.NoDecodeEvents || role != worker.Decode {
			pub, replay := sim.EventsAddr(0)
			target.Events, target.Replay = "tcp://"+pub, "tcp://"+replay
		}
		if addr := sim.BootstrapAddr(); addr != "" {
			host, port, err := net.SplitHostPort(addr)
			require.NoError(t, err)
			target.Host = host
			target.Bootstrap, err = strconv.Atoi(port)
			require.NoError(t, err)
		}
		out = append(out, target)
	}
	return out
}

func TestTheSimulatorsSayWhatTheEnginesSay(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(captures, "deviations"))
	require.NoError(t, err)
	deviations, err := ParseDeviations(string(text))
	require.NoError(t, err)
	require.LessOrEqual(t, len(deviations), maxDeviations)
	var differences []string
	for _, s := range Systems() {
		text, err := os.ReadFile(filepath.Join(captures, s.Name))
		require.NoError(t, err)
		engine := Parse(string(text))
		require.Equal(t, string(text), engine.String(), "the file of %s is as make real-capture writes it", s.Name)
		sim, err := s.Run(t.Context(), simulate(t, s)...)
		require.NoError(t, err)
		differences = append(differences, Differences(s.Name, engine, sim)...)
	}
	left, idle := Unexplained(differences, deviations)
	require.Empty(t, left, "what the simulators do otherwise, with no deviation that names it:\n%s", strings.Join(left, "\n"))
	require.Empty(t, idle, "deviations that concern no difference")
}

// TestEventsOfSeveralChoicesHaveTheOrderOfTheChoices, whichever an engine has made first; the
// order of one choice's events counts.
func TestEventsOfSeveralChoicesHaveTheOrderOfTheChoices(t *testing.T) {
	event := func(choice, text string) []string {
		return []string{`event data, "\n\n"`, ".choices[0].index " + choice, ".choices[0].text " + text}
	}
	usage := []string{`event data, "\n\n"`, ".usage.total 3"}
	of := func(blocks ...[]string) []string { return slices.Concat(append([][]string{{"200"}}, blocks...)...) }
	want := of(event("0", "string"), event("0", "null"), event("1", "string"), usage)
	require.Equal(t, want, merge(of(event("1", "string"), event("0", "string"), event("1", "string"), event("0", "null"), usage)))
	require.Equal(t, want, merge(want))
	require.NotEqual(t, want, merge(of(event("0", "null"), event("0", "string"), event("1", "string"), usage)))
}
