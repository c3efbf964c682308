package extproc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// prefillFirst returns routetest.Workers with an engine whose decode needs prefill's answer.
func prefillFirst(t *testing.T, change func(*worker.Worker)) fixed {
	ws := routetest.Workers()
	for _, w := range ws {
		w.Engine, w.Bootstrap = worker.VLLM, worker.Bootstrap{}
		if change != nil {
			change(w)
		}
	}
	return fixed(ws)
}

func TestAPluginWithoutAPrefillListenerSaysSo(t *testing.T) {
	r := newReplicaOf(t, "a", prefillFirst(t, nil), nil)
	require.ErrorContains(t, r.srv.CheckListener(), "prefill.listener")
	p := r.open(filterMain)
	im := p.ask(eightTokens).GetImmediateResponse()
	p.cancel()
	require.EqualValues(t, 501, im.GetStatus().GetCode())
	require.Contains(t, string(im.GetBody()), "no_prefill_listener")
	require.Equal(t, activation.Outlook{Reason: activation.NoListener}, r.srv.Outlook(r.srv.cfg.Board.Load(), worker.Key{Model: "m"}))
	r.requireIdle()

	with := newReplicaOf(t, "b", prefillFirst(t, nil), func(c *Config) { c.PrefillListener = "unix:///nowhere/prefill.sock" })
	require.NoError(t, with.srv.CheckListener())
	without := newReplica(t, "c", nil)
	require.NoError(t, without.srv.CheckListener(), "engines that meet need none")
}

// A request that one hand-off cannot serve is refused by the member that asks for more, and
// told what to do; a worker that can serve it alone gets it.
func TestSeveralGenerationsAtOnceAreNotSplit(t *testing.T) {
	listener := func(c *Config) { c.PrefillListener = "unix:///nowhere/prefill.sock" }
	r := newReplicaOf(t, "a", prefillFirst(t, nil), listener)
	alone := newReplicaOf(t, "b", prefillFirst(t, func(w *worker.Worker) { w.AcceptsAggregated = w.Role == worker.Decode }), listener)
	for body, want := range map[string][2]string{
		`{"model":"m","prompt":[1,2,3,4],"n":2}`:                  {"n", "because of n: leave it out."},
		`{"model":"m","prompt":[[1,2],[3,4]]}`:                    {"prompt", "because of prompt: send a request for each prompt."},
		`{"model":"m","prompt":[1,2,3,4],"prompt_logprobs":0}`:    {"prompt_logprobs", "because of prompt_logprobs: leave it out."},
		`{"model":"m","prompt":"a","echo":true,"logprobs":1}`:     {"echo", "because of echo: leave it out."},
		`{"model":"m","prompt":[1,2,3,4],"use_beam_search":true}`: {"use_beam_search", "because of use_beam_search: leave it out."},
		`{"model":"m","prompt":"a","of_later":{"x":1}}`:           {"of_later", "because of of_later: leave it out, or name it in request.handed_over: it is not known what"},
		`{"model":"m","prompt_embeds":"AAAA","max_tokens":4}`:     {"prompt_embeds", "because of prompt_embeds: send the prompt as text or as token ids."},
	} {
		p := r.open(filterMain)
		m := p.ask(body)
		status, code, param := codeOf(t, m)
		require.Equal(t, "400 not_disaggregable "+want[0], fmt.Sprint(status, " ", code, " ", param))
		require.Contains(t, string(m.GetImmediateResponse().GetBody()), want[1])
		r.accessLog()
		p.cancel()
		r.requireIdle()

		q := alone.open(filterMain)
		require.NotNil(t, q.ask(body).GetRequestBody(), "a worker that can serve it alone gets it")
		alone.accessLog()
		q.cancel()
		alone.requireIdle()
	}
}

// A client whose prompt vLLM may cut to what fits, which no worker can serve alone, learns
// what to change. The same request with a number is served.
func TestAPromptThatMayBeCutToFitIsToldWhatToChange(t *testing.T) {
	const cut = `{"model":"m","prompt":[1,2,3,4,5,6,7,8],"max_tokens":4,"truncate_prompt_tokens":-1}`
	listener := func(c *Config) { c.PrefillListener = "unix:///nowhere/prefill.sock" }
	r := newReplicaOf(t, "a", prefillFirst(t, func(w *worker.Worker) { w.MaxModelLen = 20 }), listener)
	p := r.open(filterMain)
	m := p.ask(cut)
	status, code, param := codeOf(t, m)
	require.Equal(t, "400 not_disaggregable truncate_prompt_tokens", fmt.Sprint(status, " ", code, " ", param))
	require.Contains(t, string(m.GetImmediateResponse().GetBody()), "give the number of tokens to keep")
	p.cancel()
	r.requireIdle()

	alone := newReplicaOf(t, "b", prefillFirst(t, func(w *worker.Worker) {
		w.MaxModelLen, w.AcceptsAggregated = 20, w.Role == worker.Decode
	}), listener)
	for name, row := range map[string]struct {
		headers []string
		want    string
	}{
		"decode alone is named":        {[]string{"x-worker-instance-id", "4"}, "4"},
		"prefill is named, which none": {[]string{"x-prefill-instance-id", "2", "x-worker-instance-id", "4"}, "400 not_disaggregable x-prefill-instance-id"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, row.want, whoServes(t, alone, cut, []string{routingKey, "prerouted"}, row.headers))
			alone.requireIdle()
		})
	}
}

// TestSGLangsHalvesServeOneChoiceEach: asked for more choices, a real decode worker (0.5.23)
// never answers. A list of prompts is served.
func TestSGLangsHalvesServeOneChoiceEach(t *testing.T) {
	r := newReplica(t, "a", nil)
	p := r.open(filterMain)
	im := p.ask(`{"model":"m","prompt":[1,2,3,4],"n":2}`).GetImmediateResponse()
	p.cancel()
	require.EqualValues(t, 400, im.GetStatus().GetCode())
	require.Contains(t, string(im.GetBody()), "not_disaggregable")
	q := r.open(filterMain)
	require.NotNil(t, q.ask(`{"model":"m","prompt":[[1,2,3,4],[5,6]]}`).GetRequestBody())
	q.cancel()
	r.forgetLegs()
	r.requireIdle()
}

func TestANamedPrefillWorkerIsNotDroppedWhereARequestCannotBeSplit(t *testing.T) {
	const two = `{"model":"m","prompt":[1,2,3,4],"n":2%}`
	r := newReplicaOf(t, "a", prefillFirst(t, func(w *worker.Worker) { w.AcceptsAggregated = w.Role == worker.Decode }), func(c *Config) {
		c.PrefillListener = "unix:///nowhere/prefill.sock"
	})
	for name, row := range map[string]struct {
		filter, headers []string
		ext             string
		param           string // empty: worker 4 serves the request
	}{
		"direct, both named":          {direct(), []string{"x-prefill-instance-id", "2", "x-worker-instance-id", "4"}, "", "x-prefill-instance-id"},
		"pre-routed, by header":       {[]string{routingKey, "prerouted"}, []string{"x-prefill-instance-id", "2"}, "", "x-prefill-instance-id"},
		"pre-routed, by address":      {[]string{routingKey, "prerouted"}, []string{"x-prefiller-host-port", "127.0.0.1:40001"}, "", "x-prefiller-host-port"},
		"pre-routed, by the body":     {[]string{routingKey, "prerouted"}, nil, `,"nvext":{"prefill_worker_id":2}`, "nvext.prefill_worker_id"},
		"direct, decode alone":        {direct(), []string{"x-worker-instance-id", "4"}, "", ""},
		"pre-routed, decode alone":    {[]string{routingKey, "prerouted"}, []string{"x-worker-instance-id", "4"}, "", ""},
		"nobody's word counts for it": {nil, []string{"x-prefill-instance-id", "2"}, "", ""},
		"a question, by header":       {[]string{routingKey, "prerouted"}, []string{"x-prefill-instance-id", "2"}, `,"nvext":{"annotations":["query_instance_id:"]}`, "x-prefill-instance-id"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.through(row.filter...)
			m := p.ask(strings.Replace(two, "%", row.ext, 1), row.headers...)
			if row.param == "" {
				set, removed := routed(t, m)
				require.NotContains(t, set, "x-prefill-instance-id")
				if row.filter != nil {
					require.Equal(t, "4", set["x-worker-instance-id"])
				} else {
					require.Contains(t, removed, "x-prefill-instance-id")
				}
			} else {
				status, code, param := codeOf(t, m)
				require.Equal(t, "400 not_disaggregable "+row.param, fmt.Sprint(status, " ", code, " ", param))
			}
			r.accessLog()
			p.cancel()
			r.requireIdle()
		})
	}
}

func TestListenersAreUnixSocketsOrHTTPAddresses(t *testing.T) {
	for in, want := range map[string][2]string{
		"unix:///run/baton/prefill.sock":   {"unix", "/run/baton/prefill.sock"},
		"unix:///run/#1/100%/prefill.sock": {"unix", "/run/#1/100%/prefill.sock"},
		"http://127.0.0.1:10001":           {"tcp", "127.0.0.1:10001"},
		"http://[::1]:10001/":              {"tcp", "[::1]:10001"},
	} {
		network, address, err := ParseListener(in)
		require.NoError(t, err, in)
		require.Equal(t, want, [2]string{network, address})
	}
	for _, in := range []string{"", "127.0.0.1:80", "https://a:1", "http://a", "http://a:1/path", "unix://relative", "http://"} {
		_, _, err := ParseListener(in)
		require.ErrorContains(t, err, "expected unix:///path or http://host:port", in)
	}
}
