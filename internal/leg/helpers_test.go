package leg

import (
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

var testStart = time.UnixMilli(1_800_000_000_000)

func testRules() *Rules {
	names, _ := prefill.NamesOf(prefill.DialectPlain)
	return &Rules{
		PrefillTimeout: time.Minute, OrphanGrace: 30 * time.Second,
		Hold: true, HoldFirst: true, MaxAttempts: 3, MaxBodyBytes: 1 << 20, PassOther: true, Served: engines.Served,
		DefaultTimeout: 10 * time.Minute, MaxTimeout: time.Hour, Names: names, Buffers: new(wire.Pool), Scans: new(openai.Pool),
	}
}

// mainOf returns the machine of a new attempt.
func mainOf(r *Rules, w Way) *Main {
	m := NewMain(r, w)
	return &m
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

func str(d *datadriven.TestData, key, def string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return def
}

func num(t *testing.T, d *datadriven.TestData, key string, def int) int {
	s := str(d, key, strconv.Itoa(def))
	n, err := strconv.Atoi(s)
	require.NoError(t, err, d.Pos)
	return n
}
