package extproc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// A client's selection header allows no endpoint beyond the data plane's hint, and has no
// effect through a filter that does not speak the protocol.
func TestTheSelectionHeaderChoosesNoOneBesideTheDataPlanesHint(t *testing.T) {
	r := newReplicaOf(t, "a", aggregated(routetest.Workers()), func(c *Config) { enabled(c); c.Gateway.SelectionHeader = true })
	p := r.plainly()
	require.Equal(t, "127.0.0.1:40000", setHeaders(p.get(allowing("127.0.0.1:40000"), wire.HeaderSelection, "127.0.0.1:40003"))[prefill.HeaderDestination])
	p.cancel()
	p = r.plainly()
	p.sendGet(allowing(""), wire.HeaderSelection, "127.0.0.1:40003")
	_, code, _ := codeOf(t, p.recv())
	require.Equal(t, leg.FailOutside.Code, code)
	p.cancel()
	p = r.plainly()
	require.Equal(t, "127.0.0.1:40003", setHeaders(p.get(nil, wire.HeaderSelection, "127.0.0.1:40003"))[prefill.HeaderDestination], "alone it counts")
	p.cancel()
	ev := just(leg.Event{Headers: &wire.Headers{Selection: []string{"127.0.0.1:40003"}}})
	require.Nil(t, r.srv.subsetOf(ev, false))
	require.NotNil(t, r.srv.subsetOf(ev, true))
	r.srv.cfg.Gateway.SelectionHeader = false
	require.Nil(t, r.srv.subsetOf(ev, true))
}

// A request that is passed on has no model of its own. If it names a worker, the pick is made
// in the pool of that worker, whatever pool comes first.
func TestAPassingRequestThatNamesAWorkerIsOfItsModel(t *testing.T) {
	for i := range 2 {
		ws := aggregated(routetest.Workers())
		ws[i].Models = []string{"other"}
		r := newReplicaOf(t, "a", ws, enabled)
		for _, id := range []string{"1", "2"} {
			p := r.through(direct(protocolKey, "gateway")...)
			h := setHeaders(p.get(nil, "x-worker-instance-id", id))
			require.Equal(t, id, h["x-worker-instance-id"])
			p.cancel()
			p = r.through(direct(protocolKey, "gateway")...)
			at := map[string]string{"1": "127.0.0.1:40000", "2": "127.0.0.1:40001"}[id]
			h = setHeaders(p.get(nil, prefill.HeaderDestination, at))
			require.Equal(t, at, h[prefill.HeaderDestination])
			p.cancel()
		}
	}
}

// The model of a request that is passed on comes from its body. Only a request that merely
// asks for tokens may go to a decode worker that needs a prefill, and is served although
// disaggregation is enforced.
func TestAPassingRequestIsOfTheModelThatItsBodyNames(t *testing.T) {
	ws := routetest.Workers()
	ws[1].Models, ws[3].Models = []string{"n"}, []string{"n"}
	ws[3].AcceptsAggregated = true
	for _, row := range []struct {
		path, body string
		change     func(*Config)
		want       string // the decode worker, or the code
	}{
		{"/v1/score", `{"model":"n"}`, nil, "4"},
		{"/v1/score", `{"model":"m"}`, nil, "needs_aggregated_worker"},
		{"/score2", `{"model":"m"}`, nil, "unknown_path"},
		{"/v1/score", `{"model":"x"}`, nil, "model_not_found"},
		{"/v1/score", `{"input":"x"}`, nil, "missing_field"},
		{"/tokenize", `{"model":"m"}`, nil, "3"},
		{"/v1/tokenize?x", `{"model":"m"}`, nil, "3"},
		{"/v1/embeddings", `{"model":"n"}`, func(c *Config) { c.EnforceDisagg = true }, "needs_aggregated_worker"},
		{"/v1/embeddings", `{"model":"n"}`, func(c *Config) { c.EnforceDisagg, c.NeverSplit = true, map[string]bool{"n": true} }, "4"},
		{"/tokenize", `{"model":"m"}`, func(c *Config) { c.EnforceDisagg = true }, "3"},
		{"/flush_cache", `{"model":"n"}`, nil, "unknown_path"},
		{"/v1/score", `{"model":"n"}`, func(c *Config) { c.RefuseOther = true }, "unknown_path"},
		{"/v1/rerank", `{"model":"n","kv_transfer_params":{"do_remote_prefill":true}}`, nil, "forbidden_field"},
		{"/v1/rerank", `{"model":"n","a":[{"bootstrap_room":1}]}`, nil, "forbidden_field"},
		{"/v1/rerank", `["n"]`, nil, "not_json"},
	} {
		r := newReplicaOf(t, "a", fixed(ws), row.change)
		for _, filter := range [][]string{{}, {protocolKey, "gateway"}} {
			p := r.through(filter...)
			m := p.askAt(row.path, row.body)
			got := ""
			if im := m.GetImmediateResponse(); im != nil {
				_, got, _ = codeOf(t, m)
			} else {
				set, _ := routed(t, m)
				got = set["x-worker-instance-id"]
				require.Empty(t, set["x-prefill-instance-id"])
			}
			require.Equal(t, row.want, got, "%s %s", row.path, row.body)
			r.accessLog()
			p.cancel()
		}
		r.requireIdle()
	}
}
