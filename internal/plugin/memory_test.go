package plugin

import (
	"bytes"
	"log/slog"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
)

func TestBodiesAndTheRuntimeShareTheMemory(t *testing.T) {
	t.Parallel()
	m := memory{bytes: 1 << 30}
	var c config.Config
	require.EqualValues(t, 128<<20, sized(c, m).Request.MaxBodiesBytes)
	require.EqualValues(t, 384<<20+HeapFloor, m.runtime(128<<20))
	c.Request.MaxBodiesBytes = 300 << 20
	require.EqualValues(t, 300<<20, sized(c, m).Request.MaxBodiesBytes)
	require.EqualValues(t, 600<<20+HeapFloor, m.runtime(300<<20), "both legs have room")
	require.EqualValues(t, unknownBodies, memory{}.bodies())
	require.Zero(t, memory{}.runtime(unknownBodies))
	here := memoryHere()
	require.Positive(t, here.bytes, here.source)
}

func TestTheRuntimesMemoryLimitIsSetUnlessItIs(t *testing.T) { //nolint:paralleltest // the process's own
	old := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(old)
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	limit := func(m memory) { limitMemory(sized(config.Config{}, m).Request.MaxBodiesBytes, m, log) }
	limit(memory{bytes: 8 << 30, source: "a test's"})
	require.EqualValues(t, 3<<30+HeapFloor, debug.SetMemoryLimit(-1))
	require.Contains(t, out.String(), "max_bodies_bytes=1073741824")
	t.Setenv("GOMEMLIMIT", "5GiB")
	limit(memory{bytes: 4 << 30, source: "a test's"})
	require.EqualValues(t, 3<<30+HeapFloor, debug.SetMemoryLimit(-1), "who has set it knows better")
}
