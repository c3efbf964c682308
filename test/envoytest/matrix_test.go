//go:build e2e

package envoytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/extproc/matrixtable"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// matrixState is how the prefill workers of a model come into a state of the
// table, and what else that takes.
type matrixState struct {
	standing prefill.State
	says     func(w *worker.Worker) // what is said of its prefill workers
	absent   bool                   // there never were any
	leave    bool                   // they leave before anybody asks
	ext      string                 // what requests say in their nvext
	plugin   string                 // which of matrixPlugins is asked
}

// matrixTaint is carried by the decode workers and by no prefill worker.
const matrixTaint = "gpu=h"

func matrixStates() map[string]matrixState {
	return map[string]matrixState{
		"absent":                     {standing: prefill.DecodeWaiting, absent: true, plugin: "plain"},
		"becoming ready":             {standing: prefill.PrefillPending, says: func(w *worker.Worker) { w.Bootstrap = worker.Bootstrap{} }, plugin: "plain"},
		"ready":                      {standing: prefill.PrefillReady, plugin: "plain"},
		"deactivated":                {standing: prefill.Deactivated, leave: true, plugin: "plain"},
		"saturated":                  {standing: prefill.PrefillReady, plugin: "with a limit"},
		"all ineligible: draining":   {standing: prefill.PrefillReady, says: func(w *worker.Worker) { w.Draining = true }, plugin: "plain"},
		"all ineligible: overloaded": {standing: prefill.PrefillReady, plugin: "with a threshold"},
		"all ineligible: lack a taint": {
			standing: prefill.PrefillReady, plugin: "plain",
			ext: `"routing_constraints":{"required_taints":["` + matrixTaint + `"]}`,
		},
	}
}

// matrixPlugin is what is true of a whole plugin, whatever the model.
type matrixPlugin struct {
	name   string
	limit  int    // the prompt tokens that may be queued
	config string // beside that
	held   bool   // twelve prompt tokens wait at each of its prefill workers
}

func matrixPlugins() []matrixPlugin {
	return []matrixPlugin{
		{name: "plain"},
		{name: "with a limit", limit: 12, held: true},
		{name: "with a threshold", config: "routing: {prefill: {active_prefill_tokens_threshold: 5}}\n", held: true},
	}
}

// TestEachCellOfTheMatrixHoldsThroughEnvoy is docs/behaviour.md#one-worker,
// #becoming-ready, #full-queue and #nobody-eligible whole, with what #named-workers
// adds: the table that internal/extproc asks its server, in both body modes. Which
// worker a pick finds is not the table's to say here, but of which role.
func TestEachCellOfTheMatrixHoldsThroughEnvoy(t *testing.T) {
	t.Parallel()
	cells, err := matrixtable.Read("../../internal/extproc/testdata/matrix")
	require.NoError(t, err)
	states := matrixStates()
	require.Len(t, states, len(matrixtable.States()))
	models := newMatrixModels(t, states)
	asked := map[string]int{}
	for _, plugin := range matrixPlugins() {
		for _, enforced := range []bool{false, true} {
			s := newMatrixSite(t, plugin, enforced, models.of(plugin.name))
			for i := range cells {
				c := &cells[i]
				if states[c.State].plugin != plugin.name || c.Enforced != enforced {
					continue
				}
				for _, duplex := range []bool{false, true} {
					asked[c.Name]++
					t.Run(fmt.Sprintf("%s | full duplex %t", c.Name, duplex), func(t *testing.T) { s.ask(t, c, duplex) })
				}
			}
			s.end()
		}
	}
	require.Len(t, asked, len(cells), "a cell was not asked")
	for name, n := range asked {
		require.Equal(t, 2, n, "%s: once in each body mode", name)
	}
}

// ask sends what the cell asks and checks that it holds.
func (s *matrixSite) ask(t *testing.T, c *matrixtable.Cell, duplex bool) {
	f := *s.fleets[door{c.Routing, duplex}]
	f.t = t
	m := s.model(c)
	s.asked++
	prompt := fmt.Sprintf("%-32s", fmt.Sprintf("question %d of the matrix", s.asked)) // eight tokens, by estimate
	var headers []string
	if c.Prefill != 0 {
		headers = append(headers, "x-prefill-instance-id", m.id(c.Prefill).String())
	}
	if c.Decode != 0 {
		headers = append(headers, "x-worker-instance-id", m.id(c.Decode).String())
	}
	require.Equal(t, s.waiting, s.booked(t), "left by the question before")
	r := f.send(t.Context(), "/v1/completions", m.body(prompt, c.Query), headers...)
	f.await("nothing to be booked but what waits", func() bool { return s.booked(t) == s.waiting })
	legs, decodes := s.heard(t, m.workers[:2]), s.heard(t, m.workers[2:])
	switch {
	case c.Want.Status != 0:
		requireRefusal(t, r, c)
		require.Empty(t, append(legs, decodes...), "a refused request reached a worker")
	case c.Query:
		require.Equal(t, http.StatusOK, r.status, r.body)
		var got struct {
			NVExt struct {
				WorkerID map[string]json.Number `json:"worker_id"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(r.body), &got))
		m.requireIs(t, c.Want.Prefill, c.Prefill, got.NVExt.WorkerID["prefill_worker_id"].String())
		m.requireIs(t, c.Want.Decode, c.Decode, got.NVExt.WorkerID["decode_worker_id"].String())
		require.Empty(t, append(legs, decodes...), "nothing runs")
	default:
		requireAnswer(t, r, prompt, 2)
		requireLegs(t, m, c, legs, decodes)
	}
}

// requireRefusal checks that r is the refusal of the cell.
func requireRefusal(t *testing.T, r *reply, c *matrixtable.Cell) {
	t.Helper()
	requireError(t, r, c.Want.Status, c.Want.Code)
	retry := ""
	switch c.Want.Status {
	case http.StatusTooManyRequests:
		requireSaturated(t, r, 12)
		retry = "1"
	case http.StatusServiceUnavailable:
		retry = "1"
	case http.StatusBadRequest:
		require.Contains(t, r.body, `"param":"x-prefill-instance-id"`, "it names the header")
	}
	require.Equal(t, retry, r.header.Get("Retry-After"))
}

// requireLegs checks that the workers of the cell have served, and that decode had
// the parameters of its prefill, or none where it served alone.
func requireLegs(t *testing.T, m *matrixModel, c *matrixtable.Cell, legs, decodes []heard) {
	t.Helper()
	require.Len(t, decodes, 1)
	d := decodes[0]
	m.requireIs(t, c.Want.Decode, c.Decode, d.by)
	require.Equal(t, d.by, d.Headers.Get("X-Worker-Instance-Id"))
	if c.Want.Prefill == 0 {
		require.Empty(t, legs, "a prefill worker was reached")
		require.Empty(t, d.Leg)
		require.Empty(t, d.Headers.Get("X-Prefill-Instance-Id"))
		return
	}
	require.Len(t, legs, 1)
	p := legs[0]
	m.requireIs(t, c.Want.Prefill, c.Prefill, p.by)
	require.Equal(t, []string{"prefill", "decode"}, []string{p.Leg, d.Leg})
	require.Equal(t, p.by, d.Headers.Get("X-Prefill-Instance-Id"))
	require.Equal(t, p.Room, d.Room)
	require.Equal(t, p.Bootstrap, d.Bootstrap)
}

// matrixModel is the model of one state whose decode workers accept aggregated
// requests, or need a prefill. Its workers are 1 to 4 of the table.
type matrixModel struct {
	name    string
	state   matrixState
	base    worker.ID
	workers []*stack.Worker
}

func (m *matrixModel) id(n int) worker.ID { return m.base + worker.ID(n) }

// requireIs checks that got is the worker that the table wants: the very one where
// the request names it, else either of its role; "" where it wants none.
func (m *matrixModel) requireIs(t *testing.T, want, named int, got string) {
	t.Helper()
	switch {
	case want == 0:
		require.Empty(t, got)
	case named != 0:
		require.Equal(t, m.id(want).String(), got)
	default:
		first := (want-1)/2*2 + 1
		require.Contains(t, []string{m.id(first).String(), m.id(first + 1).String()}, got)
	}
}

// body is a completion that asks for two tokens, or who would serve it.
func (m *matrixModel) body(prompt string, query bool) string {
	var ext []string
	if m.state.ext != "" {
		ext = append(ext, m.state.ext)
	}
	if query {
		ext = append(ext, `"annotations":["query_instance_id:"]`)
	}
	body := completion(prompt, 2, false)
	if len(ext) > 0 {
		body = with(prompt, 2, `"nvext":{`+strings.Join(ext, ",")+"}")
	}
	return strings.Replace(body, `"model":"m"`, `"model":"`+m.name+`"`, 1)
}
