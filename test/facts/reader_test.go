package facts_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/facts"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestAnEngineThatDoesNotSayWhereItPublishesIsTried: an older vLLM has no page for it.
func TestAnEngineThatDoesNotSayWhereItPublishesIsTried(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated, OlderPages: true})
	pub, _ := sim.EventsAddr(0)
	_, port, err := net.SplitHostPort(pub)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)

	w := bare(t, 1, sim.Addr())
	s, v := viewOf(t, facts.Config{Inner: listed{w}, Defaults: facts.Defaults{KVEventsPort: n, ReplayPort: 7000}})
	eventually(t, func() bool { return known(v, 1) }, "known")
	require.Equal(t, worker.KVEvents{Host: "127.0.0.1", Port: uint16(n), ReplayPort: 7000}, v.Load().Worker(1).KVEvents)
	require.Contains(t, s.Rows()[0].Events, "a publisher is at "+pub)

	off, v := viewOf(t, facts.Config{Inner: listed{w}, Defaults: facts.Defaults{KVEventsPort: n, KVEvents: facts.EventsOff}})
	eventually(t, func() bool { return known(v, 1) }, "known")
	require.True(t, v.Load().Worker(1).KVEvents.IsZero())
	require.Empty(t, off.Rows()[0].Events, "nothing was tried")
}

func TestTheAPIKeyIsShownAndItsAbsenceTold(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Engine: worker.SGLang, Role: worker.Aggregated, APIKey: "secret"})
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	target := facts.Target{URL: sim.URL(), Kind: engine.Auto}

	_, err := (&facts.Engines{KeySetting: "engines.api_key_file"}).Read(t.Context(), target, "")
	require.ErrorContains(t, err, "expected engines.api_key_file")
	r, err := (&facts.Engines{APIKeyFile: file, KeySetting: "engines.api_key_file"}).Read(t.Context(), target, "")
	require.NoError(t, err)
	require.Equal(t, worker.SGLang, r.Facts.Engine)
}

func TestHTTPSWithACertificateAuthority(t *testing.T) {
	srv := httptest.NewUnstartedServer(pages{})
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	w := bare(t, 1, srv.Listener.Addr().String())

	_, v := viewOf(t, facts.Config{Inner: listed{w}, TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}})
	eventually(t, func() bool { return known(v, 1) }, "known")

	reproached := func(c facts.Config, want string) {
		t.Helper()
		c.Retry = 10 * time.Millisecond
		_, v := viewOf(t, c)
		eventually(t, func() bool {
			p := v.Status().Problems
			return len(p) == 1 && strings.Contains(p[0].Text, want)
		}, want)
		require.False(t, known(v, 1))
	}
	const noTrust = "expected a certificate for facts.server_name by facts.ca"
	reproached(facts.Config{Inner: listed{w}, TLS: &tls.Config{RootCAs: x509.NewCertPool()}}, noTrust)
	reproached(facts.Config{Inner: listed{w}, TLS: &tls.Config{RootCAs: roots, ServerName: "other.org"}}, noTrust)

	alerts, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: srv.TLS.Certificates})
	require.NoError(t, err)
	defer alerts.Close()
	go func() {
		for {
			c, err := alerts.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).HandshakeContext(context.Background()) // it sends an alert
			_ = c.Close()
		}
	}()
	vllm := facts.Defaults{Engine: string(worker.VLLM)}
	reproached(facts.Config{Inner: listed{bare(t, 1, alerts.Addr().String())}, Defaults: vllm}, "expected HTTP there, or facts.https: true")

	plainText := httptest.NewServer(pages{})
	defer plainText.Close()
	w = bare(t, 1, plainText.Listener.Addr().String())
	reproached(facts.Config{Inner: listed{w}, Defaults: vllm, TLS: &tls.Config{RootCAs: roots}}, "expected HTTPS there, or facts.https: false")
}

// TestWhoAnsweredBeforeIsAskedFirst: the questions by which engines are told apart are
// saved, and an engine of another kind at the same address is found all the same.
func TestWhoAnsweredBeforeIsAskedFirst(t *testing.T) {
	vllm, _ := startSim(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated})
	sglang, _ := startSim(t, enginesim.Config{Engine: worker.SGLang, Role: worker.Aggregated})
	trt, _ := startSim(t, enginesim.Config{Engine: worker.TensorRTLLM, Role: worker.Aggregated})
	for _, sim := range []*enginesim.Sim{vllm, sglang, trt} {
		for _, last := range []worker.Engine{"", worker.SGLang, worker.VLLM, worker.TensorRTLLM} {
			r, err := (&facts.Engines{}).Read(t.Context(), facts.Target{URL: sim.URL(), Kind: engine.Auto}, last)
			require.NoError(t, err)
			require.Equal(t, sim.Identity().Engine, r.Facts.Engine, "last %q", last)
		}
	}
}
