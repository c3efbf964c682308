package plugin

import (
	"fmt"
	"slices"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mixed describes the pools whose workers cut prompts into different blocks. Baton cuts a
// prompt once, as the first worker does. The blocks that the others hold are then never
// found, without any failure; and a prefill and a decode worker of different blocks, or of
// different pair facts, are no pair.
func (p *plugin) mixed(world *activation.World) []string {
	var out []string
	for _, k := range world.Keys() {
		pool := world.Pool(k)
		if pool == nil || k.Namespace != p.cfg.Namespace || k.Model == worker.NoModel {
			continue
		}
		for _, x := range []struct {
			role worker.Role
			ws   []*worker.Worker
		}{{worker.Prefill, pool.Prefill}, {worker.Aggregated, pool.Aggregated}} {
			if why := unlike(x.ws); why != "" {
				out = append(out, fmt.Sprintf("model %s, %s: %s", k.Model, x.role, why))
			}
		}
		for _, why := range append(activation.Mixed(pool), activation.Unpaired(pool)...) {
			out = append(out, fmt.Sprintf("model %s: %s", k.Model, why))
		}
	}
	return out
}

// unheard describes the prefill workers that get no requests because no listener for the
// plugin's own legs is configured.
func unheard(workers []*worker.Worker, listener bool) []string {
	var out []string
	for _, w := range workers {
		if w.Role == worker.Prefill && engines.HandOff(w.Engine).PrefillFirst() && !listener {
			out = append(out, fmt.Sprintf("worker %s (%s %s) gets no requests: it is %s, whose decode needs prefill's answer: set prefill.listener",
				w.ID, w.Role, w.Endpoint, w.Engine))
		}
	}
	return out
}

func unlike(ws []*worker.Worker) string {
	others := slices.DeleteFunc(slices.Clone(ws), func(w *worker.Worker) bool {
		return w.BlockSize == ws[0].BlockSize && w.Eagle == ws[0].Eagle || w.BlockSize == 0 // 0: not known yet
	})
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d workers have other blocks than worker %s (%s), as %s (%s): what they hold of a prompt is never found; give all of them the same block size and speculation",
		len(others), len(ws), ws[0].ID, blocksOf(ws[0]), others[0].ID, blocksOf(others[0]))
}

func blocksOf(w *worker.Worker) string {
	if w.Eagle {
		return fmt.Sprintf("%d tokens, in pairs", w.BlockSize)
	}
	return fmt.Sprintf("%d tokens", w.BlockSize)
}
