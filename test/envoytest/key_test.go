//go:build e2e

package envoytest

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestEnginesThatAskForAKey: a client's key reaches both legs, its lack is the engine's own
// answer, and the plugin's questions show the key of its file, which may change.
func TestEnginesThatAskForAKey(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "key")
			require.NoError(t, os.WriteFile(file, []byte("wrong\n"), 0o600))
			l := layoutOf(layout{prefill: 1, decode: 1, simArgs: []string{"--api-key", "sesame"},
				config: "tokens: {wait: 3s}\nengines: {api_key_file: " + file + "}\n"}, engine)
			f := newFleet(t, l)

			r := f.send(t.Context(), "/v1/completions", completion("who are you", 2, false))
			require.NoError(t, r.err)
			require.Equal(t, 401, r.status, r.body)
			require.Contains(t, r.body, "Unauthorized")

			f.forget()
			r = f.send(t.Context(), "/v1/completions", completion("open up", 2, false), "authorization", "Bearer sesame")
			requireAnswer(t, r, "open up", 2)
			prefill, decode := f.legs()
			require.Equal(t, []string{"Bearer sesame"}, prefill.Headers["Authorization"])
			require.Equal(t, []string{"Bearer sesame"}, decode.Headers["Authorization"])
			if engine == worker.VLLM { // its /tokenize asks for none
				require.Equal(t, "engine tokenize", f.decisions()[0].TokenSource)
				return
			}
			require.Equal(t, "byte estimate", f.decisions()[0].TokenSource)
			require.Contains(t, f.plugin.Log(), "an engine refuses the API key")

			require.NoError(t, os.WriteFile(file, []byte("sesame\n"), 0o600))
			f.await("the tokenizer to be asked again", func() bool {
				r := f.send(t.Context(), "/v1/completions", completion("open up again", 2, false), "authorization", "Bearer sesame")
				requireAnswer(t, r, "open up again", 2)
				return f.decisions()[0].TokenSource == "engine tokenize"
			})
		})
	}
}

// TestEnginesThatServeTLS: both legs, and all that the plugin itself asks, go over it by one setting.
func TestEnginesThatServeTLS(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			one := httptest.NewTLSServer(nil) // for its certificate
			t.Cleanup(one.Close)
			ca := filepath.Join(t.TempDir(), "ca.pem")
			require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one.Certificate().Raw}), 0o600))
			l := layoutOf(layout{prefill: 1, decode: 2, prefillArgs: shortLease, envoy: envoy.Params{WorkerCA: ca}, workers: bareFile}, engine)
			l.config = "health: {probe_interval: 50ms}\nrouting: {decode: {mode: round-robin}}\ntokens: {wait: 3s}\nengines: {report_interval: 100ms, ca: " + ca + "}\n"
			l.describe = func(f *fleet) {
				for _, w := range f.workers {
					w.Info.Endpoint = overTLS(f.t, one.TLS, w.Info.Endpoint)
				}
				describeBare(f)
			}
			both(t, l, func(t *testing.T, f *fleet) {
				f.await("the facts of all to be in the view", func() bool {
					ws := look(t, f.plugin).Workers
					return len(ws) == 3 && len(ws[0].Models) == 1 && len(ws[1].Models) == 1 && len(ws[2].Models) == 1
				})
				ask := func() {
					requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("hidden on the way", 2, true)), "hidden on the way", 2)
					require.Positive(t, f.received(f.prefill[0]), "its prefill leg")
				}
				ask()
				require.Equal(t, "engine tokenize", f.decisions()[0].TokenSource)
				f.await("a report of what decode runs", func() bool { return f.metric("baton_engine_reports_total", `outcome="ok"`) > 0 })
				for _, line := range f.series("baton_engine_reports_total") {
					require.Contains(t, line, `outcome="ok"`)
				}
				f.faultAll(f.decode[:1], enginesim.Fault{Mode: enginesim.FaultError, Status: http.StatusBadGateway})
				f.await("one to be set aside", func() bool {
					f.send(t.Context(), "/v1/completions", completion("hidden on the way", 2, true))
					return f.setAside() > 0
				})
				f.faultAll(f.decode, enginesim.Fault{})
				f.await("its page of health to let it back", func() bool {
					f.send(t.Context(), "/v1/completions", completion("hidden on the way", 2, true))
					return f.metric("baton_workers", `state="healthy"`) == 3
				})
				ask()
			})
		})
	}
}

// overTLS serves what serves at the address over TLS, and returns where.
func overTLS(t *testing.T, conf *tls.Config, to worker.Endpoint) worker.Endpoint {
	l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				there, err := net.Dial("tcp", to.String())
				if err != nil {
					return
				}
				defer there.Close()
				go func() {
					_, _ = io.Copy(there, from)
					_ = there.Close()
				}()
				_, _ = io.Copy(from, there)
			}()
		}
	}()
	at, err := worker.ParseEndpoint(l.Addr().String())
	require.NoError(t, err)
	return at
}
