package plugin

import (
	"context"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
)

// handshake calls over a fresh connection and returns how it was secured.
func handshake(t *testing.T, addr string, conf *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var p peer.Peer
	if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: "liveness"}, grpc.Peer(&p)); err != nil {
		return tls.ConnectionState{}, err
	}
	return p.AuthInfo.(credentials.TLSInfo).State, nil
}

// TestACertificateMadeAtTheStart hides the bytes from all but the caller, with
// each version and suite that was allowed and no other.
func TestACertificateMadeAtTheStart(t *testing.T) {
	t.Parallel()
	const ecdsaSuite, rsaSuite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
	anyone := func(most uint16, suites ...uint16) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, MaxVersion: most, CipherSuites: suites}
	}
	for name, x := range map[string]struct {
		config string
		client *tls.Config
		suite  uint16 // 0: refused
	}{
		"TLS 1.3":                                {"", anyone(tls.VersionTLS13), tls.TLS_AES_128_GCM_SHA256},
		"TLS 1.2":                                {"", anyone(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384), tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384},
		"TLS 1.2 where 1.3 is the least":         {"min_version: VersionTLS13", anyone(tls.VersionTLS12), 0},
		"a suite that is allowed":                {"cipher_suites: [" + ecdsaSuite + "]", anyone(tls.VersionTLS12), tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
		"a suite that is not":                    {"cipher_suites: [" + ecdsaSuite + "]", anyone(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384), 0},
		"suites that need another kind of key":   {"cipher_suites: [" + rsaSuite + "]", anyone(tls.VersionTLS12), tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256},
		"a caller that wants to know who it is":  {"", &tls.Config{RootCAs: x509.NewCertPool()}, 0},
		"a caller that speaks no TLS that we do": {"", &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := startPlugin(t, "listen: 127.0.0.1:0\ntls: {self_signed: true, "+x.config+"}\n")
			s, err := handshake(t, r.listener.Addr().String(), x.client)
			if x.suite == 0 {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			if x.client.MaxVersion == tls.VersionTLS13 {
				require.EqualValues(t, tls.VersionTLS13, s.Version)
				return // which suite is the machine's choice
			}
			require.Equal(t, tls.CipherSuiteName(x.suite), tls.CipherSuiteName(s.CipherSuite))
		})
	}
}

// TestEachStartMakesItsOwnCertificate, for years, with a key that the suites
// can be used with.
func TestEachStartMakesItsOwnCertificate(t *testing.T) {
	parse := func(suites ...string) *x509.Certificate {
		made, err := selfSigned(suites)
		require.NoError(t, err)
		cert, err := x509.ParseCertificate(made.Certificate[0])
		require.NoError(t, err)
		require.NoError(t, cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature))
		require.True(t, cert.NotBefore.Before(time.Now()))
		require.True(t, cert.NotAfter.After(time.Now().AddDate(9, 0, 0)))
		return cert
	}
	a, b := parse(), parse()
	require.NotEqual(t, a.SerialNumber, b.SerialNumber)
	require.IsType(t, &ecdsa.PublicKey{}, a.PublicKey)
	require.IsType(t, &rsa.PublicKey{}, parse("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256").PublicKey)
	require.IsType(t, &ecdsa.PublicKey{}, parse("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256").PublicKey)
	client := config.TLSConfig{SelfSigned: true, ClientCA: "gone.pem"}
	_, err := (&certs{log: slog.New(slog.DiscardHandler)}).transport(client)
	require.ErrorContains(t, err, "gone.pem")
}

// TestReplicasCallEachOtherAsTheyListen, in plain text or with certificates, also where
// they ask their callers for one.
func TestReplicasCallEachOtherAsTheyListen(t *testing.T) {
	t.Parallel()
	m := newMounted(t)
	ca := m.a.write("ca.pem", "CERTIFICATE", m.a.cert.Raw)
	pair := "cert: " + filepath.Join(m.dir, "tls.crt") + ", key: " + filepath.Join(m.dir, "tls.key")
	for name, terms := range map[string]string{
		"plain text":             "",
		"self-signed":            "self_signed: true, min_version: VersionTLS13",
		"a certificate":          pair,
		"certificates both ways": pair + ", client_ca: " + ca,
	} {
		t.Run(name, func(t *testing.T) {
			r := startPlugin(t, "listen: 127.0.0.1:0\ntls: {"+terms+"}\n")
			creds, err := (&certs{log: slog.New(slog.DiscardHandler)}).toReplicas(r.plugin.cfg.TLS)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err = healthv1.NewHealthClient(dialGRPC(t, r.listener.Addr().String(), creds)).Check(ctx, &healthv1.HealthCheckRequest{Service: "liveness"})
			require.NoError(t, err)
		})
	}
}

// mounted is a folder with tls.crt and tls.key that are replaced as Kubernetes
// replaces a mounted secret: by a link.
type mounted struct {
	t    *testing.T
	a    *authority
	dir  string
	next int
}

func newMounted(t *testing.T) *mounted {
	m := &mounted{t: t, a: newAuthority(t, "ours"), dir: t.TempDir()}
	m.put()
	for _, f := range []string{"tls.crt", "tls.key"} {
		require.NoError(t, os.Symlink(filepath.Join("..data", f), filepath.Join(m.dir, f)))
	}
	return m
}

// put shows another certificate.
func (m *mounted) put() {
	m.t.Helper()
	cert, key := m.a.leaf("server")
	folder := filepath.Join(m.dir, "v"+strconv.Itoa(m.next))
	m.next++
	require.NoError(m.t, os.Mkdir(folder, 0o700))
	require.NoError(m.t, os.Rename(cert, filepath.Join(folder, "tls.crt")))
	require.NoError(m.t, os.Rename(key, filepath.Join(folder, "tls.key")))
	link := filepath.Join(m.dir, "..new")
	require.NoError(m.t, os.Symlink(folder, link))
	require.NoError(m.t, os.Rename(link, filepath.Join(m.dir, "..data")))
}

func (m *mounted) shown() []byte {
	m.t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(m.dir, "tls.crt"), filepath.Join(m.dir, "tls.key"))
	require.NoError(m.t, err)
	return pair.Certificate[0]
}

// TestACertificateThatIsReplacedIsShownToTheNextCaller: its files are read again.
func TestACertificateThatIsReplacedIsShownToTheNextCaller(t *testing.T) {
	t.Parallel()
	m := newMounted(t)
	c := readEPP(t, "--cert-path", m.dir)
	r := startPlugin(t, "listen: 127.0.0.1:0\ntls: {cert: "+c.TLS.Cert+", key: "+c.TLS.Key+"}\n")
	shown := func() []byte {
		s, err := handshake(t, r.listener.Addr().String(), &tls.Config{RootCAs: m.a.pool()})
		require.NoError(t, err)
		return s.PeerCertificates[0].Raw
	}
	first := m.shown()
	require.Equal(t, first, shown())
	m.put()
	require.NotEqual(t, first, m.shown())
	require.Eventually(t, func() bool { return string(shown()) == string(m.shown()) }, 30*time.Second, 50*time.Millisecond)
	require.Contains(t, r.log.String(), "the TLS certificate was read again")
}

// TestTheFilesOfACertificateAreLookedAtOnceASecond: at says when. While they do
// not fit, the pair before is shown, and that is told once.
func TestTheFilesOfACertificateAreLookedAtOnceASecond(t *testing.T) {
	m := newMounted(t)
	var log syncbuf.Buffer
	k, err := newKeyPair(filepath.Join(m.dir, "tls.crt"), filepath.Join(m.dir, "tls.key"), slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	now := time.Now().Add(time.Minute)
	shown := func(after time.Duration) []byte {
		now = now.Add(after)
		return k.at(now).Certificate[0]
	}
	first := m.shown()
	require.Equal(t, first, shown(0))
	same := k.cert
	require.Same(t, same, k.at(now.Add(time.Hour)), "what has not changed is not read again")
	now = now.Add(time.Hour)

	m.put()
	require.Equal(t, first, shown(999*time.Millisecond))
	second := shown(time.Millisecond)
	require.Equal(t, m.shown(), second)

	// A writer between the two files.
	cert, key := m.a.leaf("other")
	require.NoError(t, os.Rename(cert, filepath.Join(m.dir, "tls.crt")))
	require.Equal(t, second, shown(time.Second))
	require.Equal(t, second, shown(time.Second))
	require.NoError(t, os.Remove(filepath.Join(m.dir, "tls.key")))
	require.Equal(t, second, shown(time.Second))
	require.NoError(t, os.Rename(key, filepath.Join(m.dir, "tls.key")))
	require.NotEqual(t, second, shown(time.Second))
	require.Equal(t, m.shown(), shown(0))
	told := log.String()
	require.Equal(t, 2, strings.Count(told, "the new TLS certificate cannot be read"), told)
	require.Equal(t, 2, strings.Count(told, "was read again"), told)
}

// readEPP reads a reference picker's command line.
func readEPP(t *testing.T, args ...string) config.Config {
	t.Helper()
	c, _, err := config.EPP(config.NewFlagSet("epp", "", t.Output()), append([]string{"--workers", "workers.yaml"}, args...))
	require.NoError(t, err)
	return c
}
