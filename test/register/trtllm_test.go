package register_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/internal/register/registertest"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestTensorRTLLMIsAnnouncedWithWhatItDoesNotTell: the simulated engine is an
// older one, which tells no block size.
func TestTensorRTLLMIsAnnouncedWithWhatItDoesNotTell(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    engine.Kind
		role    worker.Role
		block   uint32
		missing []string
	}{
		{"prefill", engine.Auto, worker.Prefill, 32, nil},
		{"decode", worker.TensorRTLLM, worker.Decode, 64, nil},
		{"nothing was said", engine.Auto, 0, 0, []string{"TensorRT-LLM tells no role: expected --role", "the engine tells no block size: expected --block-size"}},
		{"no block size", worker.TensorRTLLM, worker.Prefill, 0, []string{"the engine tells no block size: expected --block-size"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sim, _ := startSim(t, enginesim.Config{Engine: worker.TensorRTLLM, Role: worker.Prefill, Models: []string{"m"}})
			reg := &registertest.Registry{}
			conf := registertest.Quick(sim.URL())
			conf.Engine.Kind = c.kind
			conf.Override = register.Override{Role: c.role, BlockSize: c.block}
			r, _ := registertest.StartRunner(t, conf, reg)
			if c.missing != nil {
				for _, want := range c.missing {
					eventually(t, func() bool { return strings.Contains(r.State().Why, want) }, want)
				}
				_, ok := reg.Record()
				require.False(t, ok)
				return
			}
			eventually(t, r.Ready, "ready")
			got, ok := reg.Record()
			require.True(t, ok)
			require.Equal(t, worker.TensorRTLLM, got.Engine)
			require.Equal(t, c.role, got.Role)
			require.Equal(t, []string{"m"}, got.Models)
			require.Equal(t, [2]uint32{1, c.block}, [2]uint32{got.DPSize, got.BlockSize})
			require.True(t, got.Bootstrap.IsZero(), "its halves do not meet")
			require.Zero(t, got.KVEvents)
			require.False(t, got.AcceptsAggregated, "a decode worker may be set up for short steps")
		})
	}
}

// A drain that believed a zero would cut what still runs.
func TestADrainOfTensorRTLLMTakesAllOfItsTime(t *testing.T) {
	t.Parallel()
	sim, _ := startSim(t, enginesim.Config{Engine: worker.TensorRTLLM, Role: worker.Decode})
	conf := registertest.Quick(sim.URL())
	conf.Override = register.Override{Role: worker.Decode, BlockSize: 32}
	conf.DrainTimeout = 2 * time.Second // three zeros come sooner
	r, run := registertest.StartRunner(t, conf, &registertest.Registry{})
	eventually(t, r.Ready, "ready")
	run.Stop()
	require.NoError(t, run.Wait(t))
	require.Equal(t, "1", metric(t, r, `withdrawals_total{reason="drain_timeout"}`))
}
