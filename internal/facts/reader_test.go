package facts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

func TestAPublisherShowsItselfByItsFirstBytes(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated})
	pub, _ := sim.EventsAddr(0)
	require.Equal(t, Trial{At: pub, Found: true}, try(t.Context(), pub))

	web := httptest.NewServer(pages{})
	defer web.Close()
	talks, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = talks.Close() })
	go func() {
		if c, err := talks.Accept(); err == nil {
			_, _ = c.Write([]byte("220 mail.example.org"))
			_ = c.Close()
		}
	}()
	got := try(t.Context(), talks.Addr().String())
	require.False(t, got.Found)
	require.Equal(t, "what listens there speaks no ZeroMQ", got.Why)

	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	got = try(t.Context(), free.Addr().String())
	require.False(t, got.Found)
	require.Contains(t, got.Why, "connection refused")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, try(ctx, web.Listener.Addr().String()).Found, "one that waits is left at once when the question ends")
}

// TestAnEngineThatDoesNotSayWhereItPublishesIsTried: an older vLLM has no page for it.
func TestAnEngineThatDoesNotSayWhereItPublishesIsTried(t *testing.T) {
	older := httptest.NewServer(lacking(pages{}, "/kv_event_sources"))
	defer older.Close()
	sim, _ := startSim(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated})
	pub, _ := sim.EventsAddr(0)
	_, port, err := net.SplitHostPort(pub)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)

	w := bare(t, 1, older.Listener.Addr().String())
	s, v := viewOf(t, Config{Inner: listed{w}, Defaults: Defaults{KVEventsPort: n, ReplayPort: 7000}})
	eventually(t, func() bool { return known(v, 1) }, "known")
	require.Equal(t, worker.KVEvents{Host: "127.0.0.1", Port: uint16(n), ReplayPort: 7000}, v.Load().Worker(1).KVEvents)
	require.Contains(t, s.Rows()[0].Events, "a publisher is at "+pub)

	off, v := viewOf(t, Config{Inner: listed{w}, Defaults: Defaults{KVEventsPort: n, KVEvents: EventsOff}})
	eventually(t, func() bool { return known(v, 1) }, "known")
	require.True(t, v.Load().Worker(1).KVEvents.IsZero())
	require.Empty(t, off.Rows()[0].Events, "nothing was tried")
}

func TestTheAPIKeyIsShownAndItsAbsenceTold(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Engine: worker.SGLang, Role: worker.Aggregated, APIKey: "secret"})
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	target := Target{URL: sim.URL(), Kind: engine.Auto}

	_, err := (&Engines{KeySetting: "engines.api_key_file"}).Read(t.Context(), target, "")
	require.ErrorContains(t, err, "expected engines.api_key_file")
	r, err := (&Engines{APIKeyFile: file, KeySetting: "engines.api_key_file"}).Read(t.Context(), target, "")
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

	_, v := viewOf(t, Config{Inner: listed{w}, TLS: &tls.Config{RootCAs: roots, ServerName: "example.com"}})
	eventually(t, func() bool { return known(v, 1) }, "known")

	for name, c := range map[string]struct {
		conf *tls.Config
		want string
	}{
		"another authority": {&tls.Config{RootCAs: x509.NewCertPool()}, "expected a certificate for facts.server_name by facts.ca"},
		"another name":      {&tls.Config{RootCAs: roots, ServerName: "other.org"}, "expected a certificate for facts.server_name by facts.ca"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := Config{TLS: c.conf}
			conf = conf.withDefaults()
			x := &subject{target: conf.targetOf(w)}
			_, err := (&Engines{TLS: c.conf}).Read(t.Context(), x.target, "")
			require.Contains(t, x.reproach(err), c.want)
		})
	}
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
	_, err = (&Engines{}).Read(t.Context(), Target{URL: "http://" + alerts.Addr().String(), Kind: worker.VLLM}, "")
	require.Contains(t, (&subject{}).reproach(err), "expected HTTP there, or facts.https: true")

	plainText := httptest.NewServer(pages{})
	defer plainText.Close()
	_, err = (&Engines{TLS: &tls.Config{RootCAs: roots}}).Read(t.Context(), Target{URL: strings.Replace(plainText.URL, "http:", "https:", 1), Kind: worker.VLLM}, "")
	require.Contains(t, (&subject{}).reproach(err), "expected HTTPS there, or facts.https: false")
}

// TestWhoAnsweredBeforeIsAskedFirst: the questions by which engines are told apart are
// saved, and an engine of another kind at the same address is found all the same.
func TestWhoAnsweredBeforeIsAskedFirst(t *testing.T) {
	vllm, _ := startSim(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated})
	sglang, _ := startSim(t, enginesim.Config{Engine: worker.SGLang, Role: worker.Aggregated})
	trt, _ := startSim(t, enginesim.Config{Engine: worker.TensorRTLLM, Role: worker.Aggregated})
	for _, sim := range []*enginesim.Sim{vllm, sglang, trt} {
		for _, last := range []worker.Engine{"", worker.SGLang, worker.VLLM, worker.TensorRTLLM} {
			r, err := (&Engines{}).Read(t.Context(), Target{URL: sim.URL(), Kind: engine.Auto}, last)
			require.NoError(t, err)
			require.Equal(t, sim.Identity().Engine, r.Facts.Engine, "last %q", last)
		}
	}
}

func TestWhereAWorkerIsAsked(t *testing.T) {
	for _, c := range []struct {
		name, words string
		offset      int
		want        string
	}{
		{"at its endpoint", "", 0, "http://10.0.0.7:8000"},
		{"at its own port", "port=9000", 200, "http://10.0.0.7:9000"},
		{"a decode worker behind a sidecar", "role=decode", 200, "http://10.0.0.7:8200"},
		{"a prefill worker has none", "role=prefill", 200, "http://10.0.0.7:8000"},
		{"no port is above the highest", "role=decode", 60000, "http://10.0.0.7:8000"},
		{"IPv6", "addr=[fd00::7]:8000", 0, "http://[fd00::7]:8000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := bare(t, 7, "10.0.0.7:8000")
			for word := range strings.FieldsSeq(c.words) {
				workerWord(t, w, word)
			}
			conf := Config{PortOffset: c.offset}
			require.Equal(t, c.want, conf.targetOf(w).URL)
		})
	}
}

// lacking answers 404 at a path.
func lacking(h http.Handler, path string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}
