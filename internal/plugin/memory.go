package plugin

import (
	"log/slog"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// HeapFloor is how much the command allocates at the start and never touches, so that the
// first garbage collection comes when it is cheap
// (docs/decisions/0005-codec-and-heap-floor.md).
const HeapFloor = 64 << 20

// memory is the memory that this process and those beside it may use together, as the
// system reports it.
type memory struct {
	bytes  int64  // 0: not known
	source string // in words, for the log
}

// memoryHere reads the limit of this process's cgroup, and the memory of the machine.
func memoryHere() memory {
	m := memory{source: "the size of the memory is not known"}
	if n, err := memlimit.FromSystem(); err == nil && n > 0 && n < math.MaxInt64 {
		m = memory{int64(n), "the machine's memory"}
	}
	if n, err := memlimit.FromCgroup(); err == nil && n > 0 && n < math.MaxInt64 && (m.bytes == 0 || int64(n) < m.bytes) {
		m = memory{int64(n), "the cgroup's memory limit"}
	}
	return m
}

// unknownBodies is the bound for bodies if the memory is not known.
const unknownBodies = 1 << 30

// bodies is the default of request.max_bodies_bytes. Envoy, which may share the memory,
// holds a body in flight several times: docs/decisions/0012-memory.md has the figures.
func (m memory) bodies() int64 {
	if m.bytes == 0 {
		return unknownBodies
	}
	return m.bytes / 8
}

// runtime returns the memory from which the garbage collector works harder, if bodies may
// take the given bytes. It is twice those bytes, for both legs, or three eighths of the
// memory if that is more, plus the heap's floor, of which nothing is resident. 0: no
// limit.
func (m memory) runtime(bodies int64) int64 {
	if m.bytes == 0 {
		return 0
	}
	return max(m.bytes/8*3, 2*bodies) + HeapFloor
}

// sized returns c with the default of request.max_bodies_bytes filled in.
func sized(c config.Config, m memory) config.Config {
	if c.Request.MaxBodiesBytes <= 0 {
		c.Request.MaxBodiesBytes = m.bodies()
	}
	return c
}

// Sized returns c with the default of request.max_bodies_bytes for this machine filled
// in.
func Sized(c config.Config) config.Config { return sized(c, memoryHere()) }

// limitMemory sets the runtime's memory limit, unless GOMEMLIMIT is set, and logs the
// bounds. bodies is request.max_bodies_bytes.
func limitMemory(bodies int64, m memory, log *slog.Logger) {
	limit := m.runtime(bodies)
	if set := os.Getenv("GOMEMLIMIT"); set != "" {
		log.Info("memory", logkey.Bytes, m.bytes, logkey.Source, m.source, logkey.MaxBodiesBytes, bodies, logkey.GoMemLimit, set)
		return
	}
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	log.Info("memory", logkey.Bytes, m.bytes, logkey.Source, m.source, logkey.MaxBodiesBytes, bodies, logkey.RuntimeLimit, limit)
}
