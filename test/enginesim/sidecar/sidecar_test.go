package sidecar

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pod is a server that keeps what it is asked and answers each time with the same.
type pod struct {
	*httptest.Server
	got    []string
	header []http.Header
}

func newPod(t *testing.T, status int, answer string) *pod {
	p := new(pod)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		p.got, p.header = append(p.got, r.Method+" "+r.URL.Path+" "+string(b)), append(p.header, r.Header)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *pod) addr() string { return strings.TrimPrefix(p.URL, "http://") }

func ask(t *testing.T, s *Sidecar, path, body string, named ...string) (int, string) {
	t.Helper()
	srv := httptest.NewServer(s)
	defer srv.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	for _, n := range named {
		r.Header.Add(Header, n)
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

const client = `{"model":"m","prompt":"x","max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"big":12345678901234567890}`

func TestTheNamedWorkerPrefillsFirst(t *testing.T) {
	prefill, engine := newPod(t, 200, `{"kv_transfer_params":{"remote_engine_id": "e", "later":1.50}}`), newPod(t, 200, "data: 1\n\n")
	s := New(engine.addr())
	status, answer := ask(t, s, "/v1/completions", client, prefill.addr()+",192.0.2.1:1")
	require.Equal(t, 200, status)
	require.Equal(t, "data: 1\n\n", answer)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(prefill.got[0], "POST /v1/completions ")), &got))
	require.EqualValues(t, 1, got["max_tokens"])
	require.Equal(t, false, got["stream"])
	require.NotContains(t, got, "stream_options")
	require.Equal(t, true, got["kv_transfer_params"].(map[string]any)["do_remote_decode"])
	require.Contains(t, prefill.got[0], "12345678901234567890")
	clear(got)
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(engine.got[0], "POST /v1/completions ")), &got))
	require.EqualValues(t, 9, got["max_tokens"])
	require.Contains(t, engine.got[0], `"kv_transfer_params":{"remote_engine_id": "e", "later":1.50}`, "as prefill wrote it")
	for _, h := range []http.Header{prefill.header[0], engine.header[0]} {
		require.Empty(t, h.Values(Header))
	}
	require.Equal(t, []string{prefill.addr() + ",192.0.2.1:1"}, s.Seen())
}

func TestWithoutTheHeaderTheEngineServesAlone(t *testing.T) {
	engine := newPod(t, 200, "{}")
	s := New(engine.addr())
	for _, named := range [][]string{nil, {""}} {
		status, _ := ask(t, s, "/v1/chat/completions", client, named...)
		require.Equal(t, 200, status)
	}
	status, _ := ask(t, s, "/v1/models", "")
	require.Equal(t, 200, status)
	require.Equal(t, []string{"POST /v1/chat/completions " + client, "POST /v1/chat/completions " + client, "POST /v1/models "}, engine.got)
	require.Equal(t, []string{"", ""}, s.Seen())
}

func TestAPrefillThatFailsIsTheAnswer(t *testing.T) {
	prefill, engine := newPod(t, 503, "busy"), newPod(t, 200, "{}")
	s := New(engine.addr())
	status, answer := ask(t, s, "/v1/completions", client, prefill.addr())
	require.Equal(t, 503, status)
	require.Equal(t, "busy", answer)
	prefill.Close()
	status, _ = ask(t, s, "/v1/completions", client, prefill.addr())
	require.Equal(t, 502, status)
	require.Empty(t, engine.got)
	status, _ = ask(t, s, "/v1/completions", "{", prefill.addr())
	require.Equal(t, 400, status)
}
