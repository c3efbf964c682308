//go:build kube

package istiotest

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// TestAGatewayOfIstioCarriesBothLegs: what istiod makes of the EnvoyFilter is accepted by
// Envoy, and serves with prefill and decode apart.
func TestAGatewayOfIstioCarriesBothLegs(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		engine      worker.Engine
		failureMode string
		meets       []string // where prefill hands its KV over
	}{
		{worker.SGLang, "FailClose", []string{"--bootstrap-listen=10.77.0.11:8998"}},
		{worker.VLLM, "FailOpen", []string{"--side-channel-listen=10.77.0.11:5600"}},
	} {
		t.Run(string(c.engine)+" "+c.failureMode, func(t *testing.T) {
			q := *p
			q.t = t
			defer q.stop()
			prefill := q.worker(11, "prefill", "llama", append(c.meets, "--engine="+string(c.engine))...)
			decode := q.worker(21, "decode", "llama", "--engine="+string(c.engine))
			other := q.worker(22, "decode", "llama", "--engine="+string(c.engine), "--decode-us-per-token=5000")
			q.serve(c.failureMode, true)
			t.Run("requests are disaggregated", func(t *testing.T) { q.with(t).disaggregates(prefill, decode, other) })
			t.Run("other routes stay as they are", func(t *testing.T) { q.with(t).passesOthers() })
			t.Run("a leg without a seal goes nowhere", func(t *testing.T) { q.with(t).refusesStrangers(prefill) })
			t.Run("a dead worker costs no request", func(t *testing.T) { q.with(t).picksAfresh(decode, other) })
			t.Run("a dead picker cuts no answer", func(t *testing.T) { q.with(t).losesThePicker(other) })
		})
	}
}

// with is the place for another test.
func (p *place) with(t *testing.T) *place {
	q := *p
	q.t = t
	return &q
}

func (p *place) disaggregates(prefill *stack.Worker, decodes ...*stack.Worker) {
	p.await("the route of the models", func() bool {
		code, _ := complete("is it there?", 1)
		return code == http.StatusOK
	})
	require.Equal(p.t, map[string]int64{}, p.rejected(), "Envoy takes what istiod makes of the filter")
	before, decoded := p.served(prefill), p.served(decodes[0])+p.served(decodes[1])
	for range 20 {
		code, answer := complete("a prompt that is prefilled by one worker and decoded by another", 8)
		require.Equal(p.t, http.StatusOK, code, answer)
		require.Contains(p.t, answer, `"completion_tokens":8`)
	}
	require.Equal(p.t, 20, p.served(prefill)-before)
	require.Equal(p.t, 20, p.served(decodes[0])+p.served(decodes[1])-decoded)
}

// rejected returns the counters of configuration that Envoy has refused.
func (p *place) rejected() map[string]int64 {
	p.t.Helper()
	out := map[string]int64{}
	var page struct {
		Stats []struct {
			Name  string
			Value int64
		}
	}
	require.NoError(p.t, json.Unmarshal([]byte(p.page("http://127.0.0.1:15000/stats?filter=update_rejected$&format=json")), &page))
	require.NotEmpty(p.t, page.Stats)
	for _, s := range page.Stats {
		if s.Value != 0 {
			out[s.Name] = s.Value
		}
	}
	return out
}

// passesOthers asks for a route that is nobody's pool: its Service is asked, at which
// nobody listens. That says Envoy, and not the picker.
func (p *place) passesOthers() {
	code, answer := ask("http://"+gatewayIP+"/other", "")
	require.Equal(p.t, http.StatusServiceUnavailable, code, answer)
	stats := p.page("http://127.0.0.1:15000/clusters?format=json")
	require.Contains(p.t, stats, "outbound|8080||other.infra.svc.cluster.local")
	require.Contains(p.t, stats, "10.77.0.4")
}

// refusesStrangers asks the port of the pickers' own legs, with the destination that they
// would name.
func (p *place) refusesStrangers(prefill *stack.Worker) {
	before := p.served(prefill)
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, "http://"+gatewayIP+":9005/v1/completions", strings.NewReader(`{"model": "sim", "prompt": "a", "max_tokens": 1}`))
	require.NoError(p.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("x-prefill-destination-endpoint", prefill.Info.Endpoint.String())
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(p.t, err)
	require.NoError(p.t, resp.Body.Close())
	require.GreaterOrEqual(p.t, resp.StatusCode, 400)
	require.Less(p.t, resp.StatusCode, 500)
	require.Equal(p.t, before, p.served(prefill))
}

// picksAfresh kills a decode worker whose pod stays in the pool.
func (p *place) picksAfresh(dies, lives *stack.Worker) {
	require.NoError(p.t, dies.Kill())
	before := p.served(lives)
	for range 20 {
		code, answer := complete("a prompt that the other worker decodes", 4)
		require.Equal(p.t, http.StatusOK, code, answer)
	}
	// A request more collects a hand-off that the dead worker was to take.
	require.Contains(p.t, []int{20, 21}, p.served(lives)-before)
}

// losesThePicker kills the picker while answers run.
func (p *place) losesThePicker(decode *stack.Worker) {
	const running = 20
	var answers sync.WaitGroup
	whole := make(chan string, running)
	for range running {
		answers.Go(func() {
			code, answer := complete("a long answer", 1000)
			if code == http.StatusOK && strings.Contains(answer, `"completion_tokens":1000`) {
				whole <- ""
				return
			}
			whole <- answer
		})
	}
	p.await("the answers to run", func() bool {
		st, err := decode.Sim.State(context.Background(), false)
		return err == nil && st.Running == running
	})
	require.NoError(p.t, p.picker.Kill())
	code, answer := complete("who picks?", 4)
	require.Equal(p.t, http.StatusServiceUnavailable, code, answer)
	require.Contains(p.t, answer, "router_unavailable")
	answers.Wait()
	close(whole)
	for answer := range whole {
		require.Empty(p.t, answer, "an answer was cut")
	}
	p.startPicker()
	p.await("requests to be served again", func() bool {
		code, _ := complete("is it back?", 1)
		return code == http.StatusOK
	})
}
