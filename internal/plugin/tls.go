package plugin

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// certs makes what the plugin shows and asks for in TLS.
type certs struct {
	log   *slog.Logger
	pairs []*keyPair
}

// transport returns the credentials of the gRPC listener; nil: plain text.
func (x *certs) transport(c config.TLSConfig) (credentials.TransportCredentials, error) {
	if !c.On() {
		return nil, nil
	}
	conf, err := c.Handshake()
	if err != nil {
		return nil, err
	}
	if err := x.certify(&c, conf); err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	if c.ClientCA != "" {
		conf.ClientCAs, err = config.Roots("tls.client_ca", c.ClientCA)
		if err != nil {
			return nil, err
		}
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return credentials.NewTLS(conf), nil
}

// toReplicas returns the credentials with which other replicas are called, which listen as
// this process does; nil: plain text. They are not verified, as no gateway verifies them: a
// report's token says that its caller has the leg, and the owner's address is sealed. To
// replicas that ask for a certificate this process shows its own.
func (x *certs) toReplicas(c config.TLSConfig) (credentials.TransportCredentials, error) {
	if !c.On() {
		return nil, nil
	}
	conf, err := c.Handshake()
	if err != nil {
		return nil, err
	}
	conf.InsecureSkipVerify = true //nolint:gosec // see above
	if c.ClientCA == "" {
		return credentials.NewTLS(conf), nil
	}
	own := &tls.Config{}
	if err := x.certify(&c, own); err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	conf.Certificates = own.Certificates
	if own.GetCertificate != nil {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.GetCertificate(nil) }
	}
	return credentials.NewTLS(conf), nil
}

// certify sets the certificate that the listener shows.
func (x *certs) certify(c *config.TLSConfig, conf *tls.Config) error {
	if c.Cert == "" {
		cert, err := selfSigned(c.CipherSuites)
		if err != nil {
			return fmt.Errorf("self_signed: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
		return nil
	}
	pair, err := newKeyPair(c.Cert, c.Key, x.log)
	if err != nil {
		return err
	}
	x.pairs = append(x.pairs, pair)
	conf.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.at(time.Now()), nil }
	return nil
}

// selfSigned makes a certificate that clients cannot verify, for those that only want the
// bytes hidden. Its key is of a kind that the cipher suites can use.
func selfSigned(suites []string) (tls.Certificate, error) {
	var key crypto.Signer
	var err error
	usage := x509.KeyUsageDigitalSignature
	fits := func(name string) bool { return strings.Contains(name, "_ECDSA_") }
	if len(suites) == 0 || slices.ContainsFunc(suites, fits) {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
		usage |= x509.KeyUsageKeyEncipherment
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"Baton"}, CommonName: "self-signed"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0), // longer than any process is expected to live
		KeyUsage: usage, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// keyPair is a certificate and its key, which are read again when their files have
// changed. Safe for concurrent use.
type keyPair struct {
	// Set at construction, read-only.
	files [2]string
	log   *slog.Logger

	// Guarded by mu. No other lock is taken while it is held.
	mu     sync.Mutex
	cert   *tls.Certificate
	read   [2]os.FileInfo // the state of the files from which cert was read
	looked time.Time
	fault  string // the fault that was logged last
}

// lookEvery bounds how often handshakes look at the files.
const lookEvery = time.Second

func newKeyPair(cert, key string, log *slog.Logger) (*keyPair, error) {
	k := &keyPair{files: [2]string{cert, key}, log: log, looked: time.Now()}
	return k, k.load()
}

// at returns the certificate in the files. If the files do not match, as while they are
// being written, it returns the last one that could be read.
func (k *keyPair) at(now time.Time) *tls.Certificate {
	cert, again, err := k.look(now)
	switch {
	case err != nil:
		k.log.Warn("the new TLS certificate cannot be read, so the old one stays in use: check that tls.cert and tls.key belong together and that this user may read them", logkey.Err, err)
	case again:
		k.log.Info("the TLS certificate was read again", logkey.Cert, k.files[0])
	}
	return cert
}

// look is at without its log. The error is of files that cannot be read, unless it was returned before.
func (k *keyPair) look(now time.Time) (cert *tls.Certificate, again bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Sub(k.looked) < lookEvery {
		return k.cert, false, nil
	}
	k.looked = now
	if k.changed() {
		err = k.load()
		again = err == nil
	}
	before := k.fault
	k.fault = ""
	if err != nil {
		k.fault = err.Error()
	}
	if k.fault == before {
		err = nil
	}
	return k.cert, again, err
}

// wrong says why the files cannot be read again; "": they can.
func (k *keyPair) wrong(now time.Time) string {
	k.at(now)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fault
}

func (k *keyPair) changed() bool {
	for i, file := range k.files {
		now, err := os.Stat(file)
		if err != nil || !os.SameFile(now, k.read[i]) || !now.ModTime().Equal(k.read[i].ModTime()) || now.Size() != k.read[i].Size() {
			return true
		}
	}
	return false
}

// load reads both files. It notes their state before it reads them, so that a change
// between the two is seen at the next look.
func (k *keyPair) load() error {
	var read [2]os.FileInfo
	for i, file := range k.files {
		var err error
		read[i], err = os.Stat(file)
		if err != nil {
			return err
		}
	}
	cert, err := tls.LoadX509KeyPair(k.files[0], k.files[1])
	if err != nil {
		return err
	}
	k.cert, k.read = &cert, read
	return nil
}
