package plugin

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The key goes to workers whose source knows who has written them, at each of their ports,
// and to nobody else.
func TestTheEnginesKeyGoesToWorkersThatAreVouchedFor(t *testing.T) {
	known, stranger := testWorker(t, 1, worker.Decode, "1001"), testWorker(t, 2, worker.Decode, "2001")
	known.DPSize, known.PortPerRank, stranger.Unvouched = 2, true, true
	snap, err := worker.NewSnapshot(1, []*worker.Worker{known, stranger})
	require.NoError(t, err)
	for host, want := range map[string]bool{
		"127.0.0.1:1001": true, "127.0.0.1:1002": true, "127.0.0.1:1003": false, "127.0.0.1:2001": false, "127.0.0.1": false, "localhost:1001": false,
	} {
		require.Equal(t, want, vouched(snap, host), host)
	}
	require.False(t, vouched(nil, "127.0.0.1:1001"))
}

// An etcd that asks nobody who he is vouches for nobody: that is said once and shown.
func TestAnEtcdThatAsksNobodyVouchesForNobody(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("secret"), 0o600))
	x := newTold(t, "engines: {api_key_file: "+key+"}\n")
	hidden := func() string {
		for _, t := range x.state().Troubles {
			if t.Kind == trouble.KeyHidden {
				return t.What
			}
		}
		return ""
	}
	require.Empty(t, hidden())
	x.cfg.Discovery.Etcd.Endpoints = []string{"127.0.0.1:1"}
	require.Contains(t, hidden(), "is not shown to the workers of etcd: whoever reaches etcd may add one")
	x.cfg.Discovery.Etcd.Username = "baton"
	require.Empty(t, hidden())
	x.cfg.Discovery.Etcd.Username, x.cfg.Discovery.Etcd.Cert = "", "cert.pem"
	require.Empty(t, hidden())
	x.cfg.Engines.APIKeyFile, x.cfg.Discovery.Etcd.Cert = "", ""
	require.Empty(t, hidden(), "there is no key")
}

// A worker is asked over TLS, and its authority has to be right; what is no worker's endpoint,
// such as a bootstrap server, is asked over plain HTTP.
func TestEnginesAreAskedOverTLS(t *testing.T) {
	own, other := newAuthority(t, "own"), newAuthority(t, "other")
	pair, err := tls.LoadX509KeyPair(own.leaf("engine"))
	require.NoError(t, err)
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS != nil) })
	engine, plain := httptest.NewUnstartedServer(serve), httptest.NewServer(serve)
	engine.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	engine.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	engine.StartTLS()
	t.Cleanup(engine.Close)
	t.Cleanup(plain.Close)
	at := engine.Listener.Addr().(*net.TCPAddr)
	snap, err := worker.NewSnapshot(1, []*worker.Worker{testWorker(t, 1, worker.Prefill, strconv.Itoa(at.Port))})
	require.NoError(t, err)
	get := func(ca, host string) (string, error) {
		around, err := toEngines(&config.EnginesConfig{CA: ca}, func() *worker.Snapshot { return snap }, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		resp, err := health.NewClient(around).Get("http://" + host + "/health")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	for host, want := range map[string]string{at.String(): "true", plain.Listener.Addr().String(): "false"} {
		got, err := get(own.file, host)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err = get(other.file, at.String())
	require.ErrorContains(t, err, "certificate signed by unknown authority")
	around, err := toEngines(&config.EnginesConfig{CA: own.file}, func() *worker.Snapshot { return snap }, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	kept := &http.Client{Transport: around(&http.Transport{})}
	var reused atomic.Bool
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused.Store(c.Reused) }})
	for _, again := range []bool{false, true, false} {
		if !again {
			kept.CloseIdleConnections()
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/health", nil)
		require.NoError(t, err)
		resp, err := kept.Do(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, again, reused.Load(), "its connections are kept, and closed when a client says so")
	}
	kept.CloseIdleConnections()
	_, err = (&config.EnginesConfig{CA: filepath.Join(t.TempDir(), "none")}).TLS()
	require.ErrorContains(t, err, `engines.ca "`)
	require.ErrorIs(t, err, syscall.ENOENT)
}
