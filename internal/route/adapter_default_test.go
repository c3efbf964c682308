package route

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAModelByItsEnginesName: a request that names no model, or the only one by the name that its
// engine has for it, is for that one. With two models it is refused, and so is another engine's
// name.
func TestAModelByItsEnginesName(t *testing.T) {
	for name, c := range map[string]struct {
		engine  worker.Engine
		models  []string // of decode and prefill workers in turn; nil: m of all
		body    string
		refused Reason
	}{
		"no model":                       {engine: worker.VLLM, body: `{"prompt":"a"}`},
		"null":                           {engine: worker.SGLang, body: `{"model":null,"prompt":"a"}`},
		"an empty text":                  {engine: worker.VLLM, body: `{"model":"","prompt":"a"}`},
		"SGLang's own name":              {engine: worker.SGLang, body: `{"model":"default","prompt":"a"}`},
		"which is not vLLM's":            {engine: worker.VLLM, body: `{"model":"default","prompt":"a"}`, refused: UnknownModel},
		"another":                        {engine: worker.SGLang, body: `{"model":"defaults","prompt":"a"}`, refused: UnknownModel},
		"no model of two":                {engine: worker.SGLang, models: []string{"m", "n"}, body: `{"prompt":"a"}`, refused: "missing_field"},
		"the engine's own name of two":   {engine: worker.SGLang, models: []string{"m", "n"}, body: `{"model":"default","prompt":"a"}`, refused: UnknownModel},
		"a model that has the same name": {engine: worker.VLLM, models: []string{"default", "n"}, body: `{"model":"default","prompt":"a"}`},
	} {
		t.Run(name, func(t *testing.T) {
			ws := engineOf(routetest.Workers(), c.engine)
			for i, w := range ws {
				w.KVEvents = worker.KVEvents{}
				if c.models != nil {
					w.Models = []string{c.models[i%2]}
				}
				w.Role, w.Bootstrap = worker.Aggregated, worker.Bootstrap{}
			}
			r := newRig(t, ws, nil)
			_, f := r.ask(c.body, nil)
			require.Equal(t, string(c.refused), reasonIn(f))
		})
	}
}
