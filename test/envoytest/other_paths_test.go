//go:build e2e

package envoytest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/extproc/routetable"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// echoing is a worker that answers with what it was asked, byte by byte accounted for. As
// engines do, it redirects a path with a slash too many at its end.
func echoing(t *testing.T, like *worker.Worker, id worker.ID, model string) *stack.Worker {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if path, slash := strings.CutSuffix(r.URL.Path, "/"); slash {
			http.Redirect(w, r, path, http.StatusTemporaryRedirect)
			return
		}
		_, _ = fmt.Fprint(w, model, " ", told(r.Method, r.URL.String(), body))
	}))
	t.Cleanup(s.Close)
	info := *like
	e, err := worker.ParseEndpoint(strings.TrimPrefix(s.URL, "http://"))
	require.NoError(t, err)
	info.ID, info.Role, info.Engine, info.Endpoint, info.Models = id, worker.Aggregated, worker.VLLM, e, []string{model}
	info.KVEvents, info.Bootstrap = worker.KVEvents{}, worker.Bootstrap{}
	return &stack.Worker{Info: &info}
}

func told(method, url string, body []byte) string {
	return fmt.Sprintf("%s %s %d %x", method, url, len(body), sha256.Sum256(body))
}

// TestOtherPathsArePassedOn: to one worker of the model that the body names, as they
// came, booked and counted as any request; in a body of any size, and in a form.
func TestOtherPathsArePassedOn(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, config: "tokens: {mode: estimate}\n"}, func(t *testing.T, f *fleet) {
		whisper := echoing(t, f.decode[0].Info, 901, "whisper")
		f.publishAndWait(append(f.workers, whisper, echoing(t, f.decode[0].Info, 902, "embedder"))...)
		var form bytes.Buffer
		w := multipart.NewWriter(&form)
		file, err := w.CreateFormFile("file", "speech.wav")
		require.NoError(t, err)
		_, err = file.Write(bytes.Repeat([]byte("RIFF\x00\xff\""), 50_000))
		require.NoError(t, err)
		require.NoError(t, w.WriteField("model", "whisper"))
		require.NoError(t, w.Close())
		large := `{"input":"` + strings.Repeat("x", 300_000) + `", "model" : "embedder"}`
		for _, c := range []struct{ path, kind, body, model string }{
			{"/v1/realtime", "application/json", `{"model":"whisper","stream":true,"input":[]}`, "whisper"},
			{"/v1/rerank?beta=true", "application/json", `{"model":"embedder"}`, "embedder"},
			{"/v1/embeddings", "application/json", large, "embedder"},
			{"/v1/audio/transcriptions", w.FormDataContentType(), form.String(), "whisper"},
		} {
			r := f.do(http.MethodPost, c.path, strings.NewReader(c.body), http.Header{"Content-Type": {c.kind}})
			require.Equal(t, http.StatusOK, r.status, "%s: %s", c.path, r.body)
			require.Equal(t, c.model+" "+told(http.MethodPost, c.path, []byte(c.body)), r.body)
		}
		r := f.do(http.MethodPost, "/tokenize", strings.NewReader(`{"model":"m","prompt":"a b"}`), http.Header{"Content-Type": {"application/json"}})
		require.Equal(t, http.StatusOK, r.status, r.body)
		require.Contains(t, r.body, `"tokens"`, "a decode worker counts tokens though it cannot serve alone")
		f.await("the requests to be counted", func() bool { return f.metric("baton_requests_total", `outcome="ok"`) == 5 })
		r = f.do(http.MethodPost, "/v1/embeddings/", strings.NewReader(`{"model":"whisper"}`), nil)
		require.Equal(t, http.StatusTemporaryRedirect, r.status, r.body)
		require.Equal(t, "/v1/embeddings", r.header.Get("Location"))
		f.await("it to be counted as refused by its worker, without a fresh attempt", func() bool {
			return f.metric("baton_requests_total", `outcome="rejected"`, `code="decode_rejected"`) == 1 && f.metric("baton_requests_total") == 6
		})
		f.await("nothing to be booked", func() bool { return f.metric("baton_worker_decode_requests") == 0 })

		for path, want := range map[string]struct {
			status     int
			code, says string
		}{
			"/v1/embeddings":        {501, "needs_aggregated_worker", "On /v1/embeddings its engine serves no request with prefill and decode apart; on /v1/chat/completions it does."},
			"/chat/completions":     {404, "unknown_path", "did you mean /v1/chat/completions?"},
			"/v1/chat/completions/": {404, "unknown_path", "did you mean /v1/chat/completions?"},
			"/anything":             {404, "unknown_path", "/anything is not served here."},
		} {
			r := f.do(http.MethodPost, path, strings.NewReader(`{"model":"m"}`), nil)
			requireError(t, r, want.status, want.code)
			require.Contains(t, r.body, want.says)
			require.Empty(t, r.header.Get("Retry-After"), path)
		}
		for _, body := range []string{
			`{"model":"embedder","kv_transfer_params":{"do_remote_prefill":true}}`, `{"model":"embedder","do_remote_prefill":true}`,
			`{"model":"embedder","a":{"kv_transfer_params":null}}`,
		} {
			requireError(t, f.do(http.MethodPost, "/v1/embeddings", strings.NewReader(body), nil), 400, "forbidden_field")
		}
		// Its worker does not listen: as with any request, told after fresh attempts.
		gone := *whisper.Info
		gone.Endpoint, err = worker.ParseEndpoint("127.0.0.1:1")
		require.NoError(t, err)
		f.publishAndWait(append(f.workers, &stack.Worker{Info: &gone})...)
		r = f.do(http.MethodPost, "/v1/embeddings", strings.NewReader(`{"model":"whisper"}`), nil)
		require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
		require.Equal(t, "1", r.header.Get("Retry-After"))
		require.Contains(t, f.adminGet("/debug/state"), `"state": "aside"`, "it is blamed as others are")
	})
}

// TestEnvoysAdminIsForItsOwnUser: it is a socket, and no request is passed on to a path of
// it, should one of the workers be another Envoy's admin. Envoy itself says which these are.
func TestEnvoysAdminIsForItsOwnUser(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{noCheck: true})
	at, err := os.Stat(f.envoy.Admin)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, at.Mode())
	help, err := f.envoy.Ask(t.Context(), http.MethodGet, "/help")
	require.NoError(t, err)
	paths := regexp.MustCompile(`(?m)^  (/[a-z_/]+)`).FindAllStringSubmatch(help, -1)
	require.Greater(t, len(paths), 25, help)
	for _, path := range paths {
		if path[1] == "/ready" { // an engine may have one, and it changes nothing
			continue
		}
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			requireError(t, f.do(method, path[1], strings.NewReader(`{"model":"m"}`), nil), 404, "unknown_path")
		}
	}
}

// A key turns it off.
func TestOtherPathsAreRefusedWhereTheyAreNotToPass(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, config: "request: {pass_other_paths: false}\n"})
	requireError(t, f.do(http.MethodPost, "/tokenize", strings.NewReader(`{"model":"m","prompt":"a"}`), nil), 404, "unknown_path")
}

// routerOnly are bodies that say what only a router may, at the places where an engine
// might read it.
var routerOnly = []string{
	`{"model":"embedder","do_remote_prefill":true}`,
	`{"model":"embedder","messages":[],"prompt":"a","text":"a","kv_transfer_params":{"do_remote_prefill":true}}`,
	`{"vllm_xargs":{"kv_transfer_params":{"do_remote_prefill":true}},"model":"embedder"}`,
}

// deepRouterOnly are those of which the paths that are read here have no such place.
var deepRouterOnly = []string{
	`{"model":"embedder","sampling_params":{"extra_args":{"kv_transfer_params":{"do_remote_prefill":true}}}}`,
	`{"model":"embedder","instances":[{"text":"a","do_remote_prefill":true}]}`,
}

// TestEachPathOfTheEnginesIsTreatedAsItsClassSays, by our own edge and by gateways, in
// both body modes: what is passed on reaches a worker as it came, what controls an engine
// reaches none, and no path lets a client say what only a router may.
func TestEachPathOfTheEnginesIsTreatedAsItsClassSays(t *testing.T) {
	t.Parallel()
	classes, err := routetable.Classes("../../internal/extproc/testdata/routes")
	require.NoError(t, err)
	test := func(t *testing.T, f *fleet) {
		f.publishAndWait(echoing(t, f.decode[0].Info, 902, "embedder"))
		ask := func(path, body string) *reply {
			return f.do(http.MethodPost, path, strings.NewReader(body), http.Header{"Content-Type": {"application/json"}})
		}
		for route, class := range classes {
			path := routetable.Concrete(route)
			forbidden := routerOnly
			switch class {
			case routetable.Never:
				requireError(t, ask(path, `{"model":"embedder"}`), 404, "unknown_path")
				continue
			case routetable.Passed:
				forbidden = slices.Concat(routerOnly, deepRouterOnly)
				r := ask(path, `{"model":"embedder"}`)
				require.Equal(t, http.StatusOK, r.status, "%s: %s", path, r.body)
				require.Equal(t, "embedder "+told(http.MethodPost, path, []byte(`{"model":"embedder"}`)), r.body)
			case routetable.Ours:
				continue
			}
			for _, body := range forbidden {
				requireError(t, ask(path, body), 400, "forbidden_field")
			}
		}
	}
	t.Run("own edge", func(t *testing.T) {
		t.Parallel()
		both(t, layout{decode: 1}, test)
	})
	l := layout{decode: 1, gateway: &envoy.GatewayParams{OriginalDst: true}}
	eachGateway(t, l, func(t *testing.T, f *fleet, _ bool) { test(t, f) })
}
