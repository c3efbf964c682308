package enginesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// These are faults of zmq4's client side, which the event tests use.
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*socket).connReaper"),
	)
}

// start runs a worker until the test ends. Latencies that the test does not set are zero.
func start(t testing.TB, cfg Config) *Sim {
	t.Helper()
	core.OrDefault(&cfg.PrefillPerToken, None)
	core.OrDefault(&cfg.DecodePerToken, None)
	s, err := New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

// pair runs a prefill and a decode worker.
func pair(t testing.TB, cfg Config) (p, d *Sim) {
	t.Helper()
	cfg.Role = worker.Prefill
	p = start(t, cfg)
	cfg.Role = worker.Decode
	return p, start(t, cfg)
}

// reply is an answer as a client saw it.
type reply struct {
	status int
	body   string
	err    error // from the transport, also while the body is read
}

var httpClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func post(ctx context.Context, url, body string, headers ...string) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	b, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, body: string(b), err: err}
}

// later sends a POST in the background.
func later(ctx context.Context, url, body string, headers ...string) <-chan reply {
	out := make(chan reply, 1)
	go func() { out <- post(ctx, url, body, headers...) }()
	return out
}

// pdBody is the body of a completion that meets its other half at p.
func pdBody(p *Sim, room int64, prompt, extra string) string {
	return fmt.Sprintf(`{"model":"sim","prompt":%q,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d%s}`,
		prompt, core.PortOf(p.BootstrapAddr()), room, extra)
}

const completions = "/v1/completions"

// both sends the halves of one request and returns the answers.
func both(t testing.TB, p, d *Sim, room int64, prompt, extra string) (prefill, decode reply) {
	t.Helper()
	body := pdBody(p, room, prompt, extra)
	dec := later(t.Context(), d.URL()+completions, body)
	return post(t.Context(), p.URL()+completions, body), <-dec
}

// Eventually waits until cond holds.
func Eventually(t testing.TB, cond func() bool, msg string) {
	t.Helper()
	require.Eventually(t, cond, 20*time.Second, 2*time.Millisecond, msg)
}

// requireClean checks that nothing is held, that no request waits, and that no rule was
// broken.
func requireClean(t testing.TB, sims ...*Sim) {
	t.Helper()
	for _, s := range sims {
		Eventually(t, func() bool {
			st := s.State(false)
			return st.KVHeldBlocks == 0 && st.Running == 0 && st.Handoff.Held == 0 && st.PrefillAlone+st.PrefillMet+st.DecodeAskers+st.DecodeWaiting == 0
		}, "nothing is held")
		require.Empty(t, s.State(false).Violations)
	}
}

// oai is the part of an OpenAI answer that tests read.
type oai struct {
	Object  string
	Choices []struct {
		Index        int
		Text         string
		Message      struct{ Role, Content string }
		Delta        struct{ Role, Content string }
		FinishReason string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens        int `json:"prompt_tokens"`
		CompletionTokens    int `json:"completion_tokens"`
		TotalTokens         int `json:"total_tokens"`
		PromptTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

func parseOAI(t testing.TB, r reply) oai {
	t.Helper()
	require.NoError(t, r.err)
	require.Equal(t, http.StatusOK, r.status, r.body)
	var o oai
	require.NoError(t, json.Unmarshal([]byte(r.body), &o), r.body)
	return o
}

// sse splits a stream into its chunks. The last must be the end mark.
func sse(t testing.TB, body string) []oai {
	t.Helper()
	var out []oai
	events := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	require.Equal(t, "data: [DONE]", events[len(events)-1])
	for _, e := range events[:len(events)-1] {
		var o oai
		data, ok := strings.CutPrefix(e, "data: ")
		require.True(t, ok, e)
		d := json.NewDecoder(bytes.NewReader([]byte(data)))
		require.NoError(t, d.Decode(&o), e)
		out = append(out, o)
	}
	return out
}
