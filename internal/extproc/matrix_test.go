package extproc

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/extproc/matrixtable"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// matrixTaint is carried by the decode workers and by no prefill worker.
const matrixTaint = "gpu=h"

// matrixState is one state of the prefill workers in testdata/matrix.
type matrixState struct {
	standing prefill.State
	set      func(prefill []*worker.Worker) // sets what the state changes about the workers
	absent   bool                           // there never were any
	leave    bool                           // they leave before the request comes
	queued   bool                           // twelve tokens wait at each of them
	config   func(*Config)
	ext      string // nvext of the request
}

var matrixStates = map[string]matrixState{
	"absent":         {standing: prefill.DecodeWaiting, absent: true},
	"becoming ready": {standing: prefill.PrefillPending, set: func(p []*worker.Worker) { p[0].Bootstrap, p[1].Bootstrap = worker.Bootstrap{}, worker.Bootstrap{} }},
	"ready":          {standing: prefill.PrefillReady},
	"deactivated":    {standing: prefill.Deactivated, leave: true},
	"saturated":      {standing: prefill.PrefillReady, queued: true, config: func(c *Config) { c.MaxQueuedISLTokens = 12 }},
	"all ineligible: draining": {standing: prefill.PrefillReady, set: func(p []*worker.Worker) {
		p[0].Draining, p[1].Draining = true, true
	}},
	"all ineligible: overloaded": {standing: prefill.PrefillReady, queued: true, config: func(c *Config) { c.Prefill.PrefillTokensThreshold = 5 }},
	"all ineligible: lack a taint": {
		standing: prefill.PrefillReady,
		ext:      `"routing_constraints":{"required_taints":["` + matrixTaint + `"]}`,
	},
}

// leaving is a discovery source of which, on a signal, one worker or all prefill workers
// leave.
type leaving struct {
	workers []*worker.Worker
	now     chan struct{}
	leaver  worker.ID // 0: all prefill workers
}

func (l leaving) Run(ctx context.Context, sink discovery.Sink) error {
	if err := sink.Send(discovery.Begin{}); err != nil {
		return err
	}
	for revision := uint64(1); ; revision++ {
		list := discovery.List{Revision: revision}
		for _, w := range l.workers {
			if revision == 1 || l.leaver == 0 && w.Role != worker.Prefill || l.leaver != 0 && w.ID != l.leaver {
				list.Entries = append(list.Entries, discovery.Entry{Key: w.ID.String(), Worker: w, Revision: 1, Version: 1})
			}
		}
		if err := sink.Send(list); err != nil {
			return err
		}
		select {
		case <-l.now:
			l.now = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// replicaIn starts a replica whose key is in the state.
func replicaIn(t *testing.T, st *matrixState, enforced, accepts bool) *replica {
	t.Helper()
	ws := routetest.Workers()
	if st.set != nil {
		st.set(ws[:2])
	}
	for _, w := range ws[2:] {
		w.AcceptsAggregated, w.Taints = accepts, []string{matrixTaint}
	}
	if st.absent {
		ws = ws[2:]
	}
	source := leaving{ws, make(chan struct{}), 0}
	r := newReplicaOf(t, "a", source, func(c *Config) {
		c.Prefill.Mode, c.Decode.Mode, c.Aggregated.Mode = picker.RoundRobin, picker.RoundRobin, picker.RoundRobin
		c.EnforceDisagg, c.StartTimeout = enforced, time.Minute
		if st.config != nil {
			st.config(c)
		}
	})
	if st.leave {
		told := make(chan discovery.Change, 2)
		defer r.srv.cfg.View.Subscribe(func(old, _ *worker.Snapshot, c discovery.Change) {
			r.srv.OnChange(old, c)
			told <- c
		})()
		<-told
		close(source.now)
		require.Equal(t, []worker.ID{1, 2}, (<-told).Left)
	}
	require.Equal(t, st.standing, r.srv.cfg.Board.Load().Standing(worker.Key{Model: "m"}).State)
	return r
}

// matrixCell returns what became of a request, in the form of a cell of the table. It requires
// what must be true for each answer of that kind.
func matrixCell(t *testing.T, m *extprocv3.ProcessingResponse) string {
	t.Helper()
	im := m.GetImmediateResponse()
	if im == nil {
		set, _ := routed(t, m)
		pair := set["x-prefill-instance-id"]
		require.Equal(t, pair != "", set[prefill.HeaderLeg] != "", "a leg is there where a prefill worker is")
		require.Equal(t, pair != "", set["x-bootstrap-room"] != "", "none goes to decode without its parameters")
		require.Equal(t, "127.0.0.1:4000"+string(set["x-worker-instance-id"][0]-1), set[prefill.HeaderDestination])
		return cellOf(pair, set["x-worker-instance-id"])
	}
	if im.GetStatus().GetCode() == 200 {
		var got struct {
			NVExt struct {
				WorkerID map[string]json.Number `json:"worker_id"`
			}
		}
		require.NoError(t, json.Unmarshal(im.GetBody(), &got))
		return cellOf(got.NVExt.WorkerID["prefill_worker_id"].String(), got.NVExt.WorkerID["decode_worker_id"].String())
	}
	var body struct{ Error map[string]any }
	require.NoError(t, json.Unmarshal(im.GetBody(), &body))
	set := setHeaders(im.GetHeaders())
	require.NotContains(t, set, prefill.HeaderRetry, "a refusal is no failure: Envoy must not try again by itself")
	status := int(im.GetStatus().GetCode())
	require.Equal(t, status == 429 || status == 503, set["retry-after"] != "", "%d: retry-after", status)
	if status == 429 {
		require.Equal(t, []any{"prefill_queue_full", 24.0, 12.0}, []any{body.Error["reason"], body.Error["queued_isl_tokens"], body.Error["max_queued_isl_tokens"]})
	}
	if status == 400 {
		require.Equal(t, "x-prefill-instance-id", body.Error["param"], "it names the header")
	}
	return fmt.Sprint(status, " ", body.Error["code"])
}

func cellOf(prefill, decode string) string {
	if prefill == "" {
		return decode
	}
	return prefill + " > " + decode
}

// matrixRoutes are the metadata of the main filters through which requests come.
var matrixRoutes = map[string][]string{"": nil, "prerouted": {routingKey, "prerouted"}, "direct": direct()}

// matrixAsk starts a replica, sends it the request of a cell, and returns what becomes of the
// request.
func matrixAsk(t *testing.T, st *matrixState, c *matrixtable.Cell) string {
	t.Helper()
	r := replicaIn(t, st, c.Enforced, c.Accepts)
	var ext, headers []string
	if st.ext != "" {
		ext = append(ext, st.ext)
	}
	if c.Query {
		ext = append(ext, `"annotations":["query_instance_id:"]`)
	}
	body := eightTokens
	if len(ext) > 0 {
		body = withExt(strings.Join(ext, ","))
	}
	if c.Prefill != 0 {
		headers = append(headers, "x-prefill-instance-id", strconv.Itoa(c.Prefill))
	}
	if c.Decode != 0 {
		headers = append(headers, "x-worker-instance-id", strconv.Itoa(c.Decode))
	}
	var held []*load.Reservation
	if st.queued {
		held = r.queue(12, 12)
	}
	p := r.through(matrixRoutes[c.Routing]...)
	got := matrixCell(t, p.ask(body, headers...))
	booked := r.book.Totals().Held - len(held)
	switch {
	case c.Query || strings.Contains(got, "_"):
		require.Zero(t, booked, "nothing runs, nothing is booked")
	case strings.Contains(got, ">"):
		require.Equal(t, 2, booked, got)
	default:
		require.Equal(t, 1, booked, got)
	}
	p.cancel()
	for _, h := range held {
		h.Release(time.Now())
	}
	r.forgetLegs()
	r.requireIdle()
	return got
}

// docs/behaviour.md#one-worker, #becoming-ready, #full-queue and #nobody-eligible, complete,
// with what #named-workers adds. Each cell has a replica of its own. test/envoytest sends
// the same requests through Envoy.
func TestWhoServesARequestIsWhatTheMatrixSays(t *testing.T) {
	t.Parallel()
	cells, err := matrixtable.Read("testdata/matrix")
	require.NoError(t, err)
	require.Len(t, matrixStates, len(matrixtable.States()))
	for i := range cells {
		c := &cells[i]
		st, known := matrixStates[c.State]
		require.True(t, known, c.State)
		t.Run(c.Name, func(t *testing.T) {
			require.Equal(t, c.Want.String(), matrixAsk(t, &st, c))
		})
	}
}

// A request that names a draining worker is refused with the name, also if no decode worker
// can be picked, or if one worker could serve instead. It is never served by another worker.
func TestWhoNamesAWorkerThatDrainsIsToldWhich(t *testing.T) {
	t.Parallel()
	for _, fallback := range []bool{false, true} {
		ws := routetest.Workers()
		ws[2].Draining, ws[3].Draining = true, true
		alone := *ws[3]
		alone.ID, alone.Role, alone.Draining = 5, worker.Aggregated, false
		alone.Endpoint, _ = worker.ParseEndpoint("127.0.0.1:40004")
		r := newReplicaOf(t, "a", fixed(append(ws, &alone)), func(c *Config) { c.FallbackAggregated = fallback })
		for _, row := range []struct {
			filter  []string
			headers []string
			want    string
		}{
			{direct(), []string{"x-prefill-instance-id", "2", "x-worker-instance-id", "4"}, "worker_draining x-worker-instance-id"},
			{direct(), []string{"x-worker-instance-id", "4"}, "worker_not_named x-prefill-instance-id"},
			{direct(), []string{"x-prefill-instance-id", "2"}, "worker_not_named x-worker-instance-id"},
			{direct(), []string{"x-prefill-instance-id", "2", "x-worker-instance-id", "5"}, "worker_wrong_role x-worker-instance-id"},
			{[]string{routingKey, "prerouted"}, []string{"x-prefill-instance-id", "2"}, "no_decode_worker "},
		} {
			p := r.through(row.filter...)
			_, code, param := codeOf(t, p.ask(eightTokens, row.headers...))
			require.Equal(t, row.want, code+" "+param, "%v, fallback %t", row.headers, fallback)
			p.cancel()
		}
		p := r.open(filterMain)
		m := p.ask(eightTokens)
		p.cancel()
		if fallback {
			set, _ := routed(t, m)
			require.Equal(t, "5", set["x-worker-instance-id"])
		} else {
			_, code, _ := codeOf(t, m)
			require.Equal(t, "no_decode_worker", code)
		}
		r.requireIdle()
	}
}
