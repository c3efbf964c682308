//go:build e2e

package envoytest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// dialing returns a client of whoever listens at a unix socket.
func dialing(t *testing.T, socket string) *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// knock sends a leg to the listener that takes the plugin's own.
func knock(t *testing.T, c *http.Client, path, body string, h http.Header) *reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://baton"+path, strings.NewReader(body))
	require.NoError(t, err)
	maps.Copy(req.Header, h)
	return roundTrip(c, req)
}

// requireLegRefused checks an answer of the plugin to a leg.
func requireLegRefused(t *testing.T, r *reply, status int, code string) {
	t.Helper()
	require.NoError(t, r.err)
	require.Equal(t, status, r.status, r.body)
	require.Contains(t, r.body, fmt.Sprintf("%q", code))
}

// tap stands between the plugin and Envoy's listener for legs, and keeps what
// went by.
type tap struct {
	mu   sync.Mutex
	legs []http.Header
	body string
	held chan struct{} // until it is closed no answer goes by; nil: they do
}

func newTap(t *testing.T, socket, envoySocket string) *tap {
	k := &tap{}
	c := dialing(t, envoySocket)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		k.mu.Lock()
		k.legs, k.body = append(k.legs, r.Header.Clone()), string(b)
		held := k.held
		k.mu.Unlock()
		out := knock(t, c, r.URL.Path, string(b), r.Header)
		if held != nil {
			<-held
		}
		maps.Copy(w.Header(), out.header)
		w.WriteHeader(max(out.status, 502*map[bool]int{true: 1}[out.status == 0]))
		_, _ = io.WriteString(w, out.body)
	})}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	return k
}

func (k *tap) last() (http.Header, string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.legs[len(k.legs)-1], k.body
}

// holdAnswers keeps the answers of legs that come from now on, until the function
// that it returns is called.
func (k *tap) holdAnswers() (goOn func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := make(chan struct{})
	k.held = held
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.held = nil
		close(held)
	}
}

// TestTheListenerOfOurLegsTakesNothingWithoutASeal is docs/behaviour.md#seal with
// prefill first.
func TestTheListenerOfOurLegsTakesNothingWithoutASeal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	between := filepath.Join(dir, "tap.sock")
	l := layoutOf(layout{prefill: 1, decode: 1, envoy: mirrors, config: fmt.Sprintf("prefill: {listener: %q}\n", "unix://"+between)}, worker.VLLM)
	f := newFleet(t, l)
	socket := filepath.Join(f.dir, "prefill.sock")
	tapped := newTap(t, between, socket)
	c := dialing(t, socket)
	body := completion("let me in", 2, false)

	for name, token := range map[string]string{
		"no token": "", "a text": forgedMark, "not base64": "%%%", "far too long": strings.Repeat("A", 4000),
	} {
		t.Run(name, func(t *testing.T) {
			for _, addr := range []string{f.prefill[0].Info.Endpoint.String(), f.decode[0].Info.Endpoint.String()} {
				h := http.Header{"X-Prefill-Destination-Endpoint": {addr}, "X-Gateway-Destination-Endpoint": {addr}}
				if token != "" {
					h["X-Baton-Leg"] = []string{token}
				}
				requireLegRefused(t, knock(t, c, "/v1/completions", body, h), http.StatusForbidden, "leg_refused")
			}
		})
	}
	require.Empty(t, f.gotAll(f.workers), "a leg without a seal reached a worker")

	requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("a good one", 2, false)), "a good one", 2)
	leg, sent := tapped.last()
	require.NotEmpty(t, leg.Get("X-Baton-Leg"))
	f.forget()
	t.Run("a token is good for one leg", func(t *testing.T) {
		requireLegRefused(t, knock(t, c, "/v1/completions", sent, leg), http.StatusGone, "leg_late")
	})
	t.Run("a token of ours is none of the mirror's", func(t *testing.T) {
		k := f.talk("prefill")
		k.headers(map[string]string{":method": "POST", ":path": "/v1/completions", "x-baton-leg": leg.Get("X-Baton-Leg")})
		k.requireRefused(http.StatusForbidden, "leg_refused")
	})
	t.Run("a seal that was changed", func(t *testing.T) {
		bad := leg.Clone()
		token := []byte(bad.Get("X-Baton-Leg"))
		token[len(token)-4] ^= 1
		bad.Set("X-Baton-Leg", string(token))
		requireLegRefused(t, knock(t, c, "/v1/completions", sent, bad), http.StatusForbidden, "leg_refused")
	})
	require.Empty(t, f.gotAll(f.workers))
}

// TestAMirrorsTokenIsRefusedAtTheListenerOfOurLegs: each kind has its listener.
func TestAMirrorsTokenIsRefusedAtTheListenerOfOurLegs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, envoy: mirrors})
	body := completion("hello", 2, false)
	main := f.talk("main")
	main.headers(map[string]string{":method": "POST", ":path": "/v1/completions", "content-type": "application/json"})
	require.NotNil(t, main.recv().GetRequestHeaders())
	main.body(body)
	token := injected(main.recv())["x-baton-leg"]
	require.NotEmpty(t, token)
	r := knock(t, dialing(t, filepath.Join(f.dir, "prefill.sock")), "/v1/completions", body, http.Header{"X-Baton-Leg": {token}})
	requireLegRefused(t, r, http.StatusForbidden, "leg_refused")
	require.NoError(t, main.stream.CloseSend())
	require.Empty(t, f.gotAll(f.workers))
}

// TestALegOfOursMayBeAdmittedByAnotherReplica: it knows nothing but the seal, and
// the owner hears that the leg has started. One with another key refuses it, and
// that is no fault of the worker.
func TestALegOfOursMayBeAdmittedByAnotherReplica(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("the key is the same %t", same), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			keys := [2]string{filepath.Join(dir, "a.key"), filepath.Join(dir, "b.key")}
			for i, text := range []string{"a key that both replicas have", "a key of another deployment"} {
				require.NoError(t, os.WriteFile(keys[i], []byte(text), 0o600))
			}
			if same {
				keys[1] = keys[0]
			}
			ports, err := stack.FreePorts(t.Context(), 1)
			require.NoError(t, err)
			owner := fmt.Sprintf("127.0.0.1:%d", ports[0])
			other, legs := filepath.Join(dir, "b.sock"), filepath.Join(dir, "prefill.sock")
			prefill := fmt.Sprintf("prefill: {listener: %q}\n", "unix://"+legs)
			l := layoutOf(layout{
				prefill: 2, decode: 2, listen: owner, patch: admittedBy(other),
				config: prefill + fmt.Sprintf("leg: {key_file: %q, advertise: %q}\n", keys[0], owner),
			}, worker.VLLM)
			l.envoy.PluginSocket, l.envoy.PluginHost, l.envoy.PluginPort, l.envoy.PrefillSocket = "-", "127.0.0.1", ports[0], legs
			l.beforeEnvoy = func(f *fleet) {
				b, err := stack.StartPlugin(f.ctx, stack.PluginOptions{
					BinDir: binDir, Dir: dir, Workers: filepath.Join(f.dir, "workers.yaml"),
					Config: prefill + fmt.Sprintf("leg: {key_file: %q}\n", keys[1]), Listen: "unix://" + other,
				})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, b.Kill()) })
			}
			f := newFleet(t, l)
			if !same {
				r := f.send(t.Context(), "/v1/completions", completion("refused by our own", 4, false))
				requireError(t, r, http.StatusServiceUnavailable, "prefill_failed")
				require.Empty(t, f.gotAll(f.workers))
				require.Zero(t, f.metric("baton_aside_transitions_total", `to="aside"`))
				return
			}
			for i, q := range ask("another replica admits", 4) {
				if i == 2 {
					f.fault(f.prefill[0], enginesim.Fault{Mode: enginesim.FaultError, Count: 1})
					f.fault(f.prefill[1], enginesim.Fault{Mode: enginesim.FaultError, Count: 1})
				}
				q.require(t, f.send(t.Context(), q.path, q.body))
			}
			require.EqualValues(t, 2, f.metric("baton_fresh_picks_total"))
		})
	}
}

// admittedBy lets another replica of the plugin admit its legs.
func admittedBy(socket string) func(string) string {
	return func(y string) string {
		patched := apart(fmt.Sprintf("pipe: {path: %q}", socket))(y)
		at := strings.Index(patched, "  - name: prefill_leg\n    internal_listener")
		patched = patched[:at] + strings.Replace(patched[at:], "envoy_grpc: {cluster_name: extproc_b}", "envoy_grpc: {cluster_name: extproc}", 1)
		at = strings.Index(patched, "  - name: sync_leg\n")
		return patched[:at] + strings.Replace(patched[at:], "envoy_grpc: {cluster_name: extproc}", "envoy_grpc: {cluster_name: extproc_b}", 1)
	}
}
