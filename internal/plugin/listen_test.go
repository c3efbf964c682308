package plugin

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/config"
)

func TestASocketThatADeadProcessLeftIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "er", "x.sock")
	first, err := listen("unix://"+path, "0660")
	require.NoError(t, err, "folders are made")
	require.NoError(t, first.Close())
	_, err = os.Stat(path)
	require.NoError(t, err, "a successor may have bound the path by now, so it is not removed")
	second, err := listen("unix://"+path, "0660")
	require.NoError(t, err)
	defer second.Close()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestASocketThatSomeoneAnswersOnIsNotTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	first, err := listen("unix://"+path, "0660")
	require.NoError(t, err)
	defer first.Close()
	_, err = listen("unix://"+path, "0660")
	require.ErrorContains(t, err, "another process answers on "+path)
	c, err := net.Dial("unix", path)
	require.NoError(t, err, "the first one is still there")
	require.NoError(t, c.Close())
}

func TestASocketThatSystemdPassesOnIsTakenIfItIsTheOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	given, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer given.Close()
	l, err := passed("unix://"+path, []net.Listener{given})
	require.NoError(t, err)
	require.Equal(t, given, l)
	l, err = passed("unix://"+path, nil)
	require.NoError(t, err)
	require.Nil(t, l, "none is passed on")
	for _, wrong := range [][]net.Listener{{given, given}, {nil}} {
		_, err = passed("unix://"+path, wrong)
		require.ErrorContains(t, err, "expected one socket, at the address of listen")
	}
	_, err = passed("unix:///elsewhere", []net.Listener{given})
	require.ErrorContains(t, err, path)
}

func TestAPortAloneIsThatOfSystemd(t *testing.T) {
	for network, at := range map[string]string{"tcp": ":0", "tcp4": "0.0.0.0:0"} {
		given, err := net.Listen(network, at)
		require.NoError(t, err)
		defer given.Close()
		_, port, err := net.SplitHostPort(given.Addr().String())
		require.NoError(t, err)
		l, err := passed(":"+port, []net.Listener{given})
		require.NoError(t, err)
		require.Equal(t, given, l)
		_, err = passed("127.0.0.1:"+port, []net.Listener{given})
		require.ErrorContains(t, err, "expected one socket, at the address of listen")
	}
}

func TestAFileThatIsNoSocketIsNotTouched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err := listen("unix://"+path, "0660")
	require.ErrorContains(t, err, "is no socket")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
}

// authority makes certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	var der []byte
	a.key, der = a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	})
	var err error
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.file = a.write(name+".pem", "CERTIFICATE", der)
	return a
}

func (a *authority) sign(c *x509.Certificate) (*ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	return key, der
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	require.NoError(a.t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}

// leaf makes a certificate for loopback and returns its files.
func (a *authority) leaf(name string) (cert, key string) {
	a.t.Helper()
	k, der := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	kd, err := x509.MarshalECPrivateKey(k)
	require.NoError(a.t, err)
	return a.write(name+".pem", "CERTIFICATE", der), a.write(name+".key", "EC PRIVATE KEY", kd)
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// dialTLS reports whether a client gets past the handshake and a first byte.
func dialTLS(t *testing.T, addr string, conf *tls.Config) error {
	t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", addr, conf)
	if err != nil {
		return err
	}
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1)) // with TLS 1.3 a refused certificate shows here
	return err
}

func TestTLSAsksForAClientsCertificateWhenTold(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cert, key := ours.leaf("server")
	clientCert, clientKey := ours.leaf("client")
	strangerCert, strangerKey := theirs.leaf("stranger")
	load := func(cert, key string) []tls.Certificate {
		c, err := tls.LoadX509KeyPair(cert, key)
		require.NoError(t, err)
		return []tls.Certificate{c}
	}
	h2 := []string{"h2"}
	for name, c := range map[string]struct {
		clientCA string
		client   *tls.Config
		ok       bool
	}{
		"a client without certificate where none is asked": {"", &tls.Config{RootCAs: ours.pool(), NextProtos: h2}, true},
		"a client that does not know the server":           {"", &tls.Config{RootCAs: theirs.pool(), NextProtos: h2}, false},
		"an old protocol":                                  {"", &tls.Config{RootCAs: ours.pool(), NextProtos: h2, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, false},
		"a client of the authority":                        {ours.file, &tls.Config{RootCAs: ours.pool(), NextProtos: h2, Certificates: load(clientCert, clientKey)}, true},
		"a client without certificate":                     {ours.file, &tls.Config{RootCAs: ours.pool(), NextProtos: h2}, false},
		"a client of another authority":                    {ours.file, &tls.Config{RootCAs: ours.pool(), NextProtos: h2, Certificates: load(strangerCert, strangerKey)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPlugin(t, "listen: 127.0.0.1:0\ntls: {cert: "+cert+", key: "+key+", client_ca: \""+c.clientCA+"\"}\n")
			err := dialTLS(t, p.listener.Addr().String(), c.client)
			require.Equal(t, c.ok, err == nil, "%v", err)
		})
	}
}

func TestTLSFilesOfTheWrongKindAreRefused(t *testing.T) {
	a := newAuthority(t, "ours")
	cert, key := a.leaf("server")
	other, otherKey := a.leaf("other")
	none := filepath.Join(a.dir, "none.pem")
	require.NoError(t, os.WriteFile(none, []byte("no certificate"), 0o600))
	for name, c := range map[string]config.TLSConfig{
		"a key of another certificate":  {Cert: cert, Key: otherKey},
		"a certificate in place of key": {Cert: cert, Key: other},
		"an authority without a file":   {Cert: cert, Key: key, ClientCA: filepath.Join(a.dir, "gone.pem")},
		"an authority in no PEM":        {Cert: cert, Key: key, ClientCA: none},
	} {
		_, err := (&certs{log: slog.New(slog.DiscardHandler)}).transport(c)
		require.ErrorContains(t, err, "tls", name)
	}
	creds, err := (&certs{log: slog.New(slog.DiscardHandler)}).transport(config.TLSConfig{})
	require.NoError(t, err)
	require.Nil(t, creds)
}

func TestTheSocketHasItsModeFromTheFirstConnectionOn(t *testing.T) {
	for mode, want := range map[config.SocketMode]fs.FileMode{"0660": 0o660, "600": 0o600, "0666": 0o666} {
		path := filepath.Join(t.TempDir(), "x.sock")
		l, err := listen("unix://"+path, mode)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), mode)
		left, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, left, 1, "nothing else is left in the folder")
		require.NoError(t, l.Close())
	}
	for _, mode := range []config.SocketMode{"", "0", "rw", "0460", "7777", "-660", "0o660", "0880"} {
		_, err := mode.Bits()
		require.ErrorContains(t, err, "socket_mode", "%q", mode)
	}
}

func TestADeletedSocketIsMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	l, err := listen("unix://"+path, "0660")
	require.NoError(t, err)
	all := inTurns(l.Addr())
	all.add(l)
	defer all.Close()
	turn := all.turn()
	answered := make(chan net.Conn)
	go func() {
		for {
			c, err := turn.Accept()
			if err != nil {
				return
			}
			answered <- c
		}
	}()
	reaches := func() {
		t.Helper()
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		require.NoError(t, (<-answered).Close())
		require.NoError(t, c.Close())
	}
	reaches()

	ctx, end := context.WithCancel(t.Context())
	looks, ended := make(chan time.Time), make(chan error, 1)
	var logged bytes.Buffer
	go func() {
		ended <- keepSocket(ctx, path, func() (net.Listener, error) { return bindUnix(path, 0o600) }, all, slog.New(slog.NewTextHandler(&logged, nil)), func(string) {}, looks)
	}()
	look := func() { // the second is taken when the first is done
		looks <- time.Time{}
		looks <- time.Time{}
	}
	was, err := os.Stat(path)
	require.NoError(t, err)
	look()
	is, err := os.Stat(path)
	require.NoError(t, err)
	require.True(t, os.SameFile(was, is), "one that is there is left alone")

	require.NoError(t, os.Remove(path))
	look()
	reaches()
	is, err = os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), is.Mode().Perm())

	require.NoError(t, os.RemoveAll(filepath.Dir(path)))
	look()
	look()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	look()
	reaches()
	end()
	require.NoError(t, <-ended)
	require.Equal(t, 2, strings.Count(logged.String(), "has been made again"))
	require.Equal(t, 1, strings.Count(logged.String(), "cannot be made again"), "it is told once")
}
