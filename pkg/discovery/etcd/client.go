package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// DefaultPrefix is the beginning of every key in Baton's own layout.
const DefaultPrefix = "baton/v1"

// ClientConfig says how to reach an etcd cluster.
type ClientConfig struct {
	// Endpoints: host:port, http://host:port or https://host:port, at least one, all
	// with the same scheme. Without a scheme they are https if CA, Cert or ServerName
	// is given, else http.
	Endpoints []string

	// Either Username and one of Password and PasswordFile, or none of them. The file
	// is read again whenever etcd is asked for a token, so that the password can be
	// changed while the client is in use. A line end after the password is ignored.
	Username, Password, PasswordFile string

	// Files in PEM. The CA verifies the servers; without it the roots of the system do.
	// Cert and Key must be given together; the client identifies itself to the servers
	// with them. They are read again at each handshake, so that they can be rotated.
	// The CA is read once.
	CA, Cert, Key string
	ServerName    string // the name that the servers' certificates must have; default: the endpoint's host

	DialTimeout time.Duration // for one connection; default 2 s
}

// Validate returns every fault of c, joined, or nil.
func (c ClientConfig) Validate() error {
	var errs []error
	if len(c.Endpoints) == 0 {
		errs = append(errs, errors.New("endpoints: expected at least one"))
	}
	if _, err := c.urls(); err != nil {
		errs = append(errs, err)
	}
	if (c.Username == "") != (c.Password == "" && c.PasswordFile == "") {
		errs = append(errs, errors.New("expected both user and password, or neither"))
	}
	if c.Password != "" && c.PasswordFile != "" {
		errs = append(errs, errors.New("expected a password or a password file, not both"))
	}
	if (c.Cert == "") != (c.Key == "") {
		errs = append(errs, errors.New("expected both cert and key, or neither"))
	}
	return discovery.Faults("etcd", errs...)
}

// secured reports whether a field is given that only TLS uses.
func (c ClientConfig) secured() bool { return c.CA != "" || c.Cert != "" || c.ServerName != "" }

// urls returns the endpoints with their scheme. It checks them, since clientv3 does
// not: it uses the first scheme for all endpoints, drops certificates for http
// silently, and reads anything else in an endpoint as a name.
func (c ClientConfig) urls() ([]string, error) {
	implied := "http"
	if c.secured() {
		implied = "https"
	}
	var urls, schemes []string
	var errs []error
	for i, e := range c.Endpoints {
		scheme, addr, found := strings.Cut(e, "://")
		if !found {
			scheme, addr = implied, e
		}
		host, port, err := net.SplitHostPort(addr)
		if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || n == 0 || host == "" || strings.ContainsAny(host, "/@ ") || scheme != "http" && scheme != "https" {
			name := strconv.Quote(e)
			if strings.Contains(strings.Join(c.Endpoints, ""), "@") { // a part of a password, which has a comma
				name = strconv.Itoa(i+1) + " of " + strconv.Itoa(len(c.Endpoints))
			}
			errs = append(errs, fmt.Errorf("endpoint %s: expected host:port, http://host:port or https://host:port, and no user", name))
			continue
		}
		urls = append(urls, scheme+"://"+addr)
		if !slices.Contains(schemes, scheme) {
			schemes = append(schemes, scheme)
		}
	}
	switch {
	case len(schemes) > 1:
		errs = append(errs, fmt.Errorf("endpoints %s: expected all with http or all with https", strings.Join(c.Endpoints, ",")))
	case slices.Contains(schemes, "http") && c.secured():
		errs = append(errs, errors.New("endpoints with http://: expected https://, as a CA, a certificate or a server name is given"))
	}
	return urls, errors.Join(errs...)
}

// Client is a client of etcd. It can be closed.
type Client = clientv3.Client

// Dial returns a client. It does not wait for a connection: the client connects when
// the cluster is there. The caller closes the client.
func Dial(c ClientConfig) (*Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if _, err := c.password(); err != nil {
		return nil, err
	}
	urls, err := c.urls()
	if err != nil {
		return nil, err
	}
	c.DialTimeout = cmp.Or(c.DialTimeout, 2*time.Second)
	var conf *tls.Config
	if c.CA != "" || c.Cert != "" {
		info := transport.TLSInfo{TrustedCAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key, ServerName: c.ServerName}
		conf, err = info.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("etcd: tls: %w", err)
		}
	}
	full := clientv3.Config{
		Endpoints: urls, TLS: conf, DialTimeout: c.DialTimeout,
		// A dead connection is closed after 13 s. A shorter time is not possible: gRPC
		// asks at most every 10 s, and etcd refuses clients that ask more often than
		// every 5 s.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second, PermitWithoutStream: true,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(redial(c.DialTimeout))},
		// clientv3 would write a line to stderr for each attempt in an outage. Errors
		// are returned, and the caller logs them.
		Logger: zap.NewNop(),
	}
	if c.ServerName != "" {
		// gRPC verifies the host of the endpoint, whatever the TLS configuration says.
		full.DialOptions = append(full.DialOptions, grpc.WithAuthority(c.ServerName))
	}
	var t *tokens
	if c.Username != "" { // which clientv3 is not told: see tokens
		t = &tokens{user: c.Username, password: c.password, ask: asker(full), jitter: jittered, came: make(chan struct{})}
		full.DialOptions = append(slices.Clip(full.DialOptions), grpc.WithChainUnaryInterceptor(t.sign), grpc.WithChainStreamInterceptor(t.signStream))
	}
	client, err := clientv3.New(full)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if t != nil {
		t.ctx = client.Ctx()
		client.Auth = known{client.Auth, t}
	}
	return client, nil
}

// asker returns what asks for a token with a client like c, of its own.
func asker(c clientv3.Config) func(ctx context.Context, user, password string) (string, error) {
	c.DialKeepAliveTimeout = askSign
	c.DialOptions = append(slices.Clip(c.DialOptions), grpc.WithConnectParams(redial(askConnect)))
	return func(ctx context.Context, user, password string) (string, error) {
		client, err := clientv3.New(c)
		if err != nil {
			return "", err
		}
		defer client.Close()
		res, err := client.Authenticate(ctx, user, password)
		if err != nil {
			return "", err
		}
		return res.Token, nil
	}
}

// jittered returns a duration between half of d and all of it.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// password returns the present password.
func (c ClientConfig) password() (string, error) {
	if c.PasswordFile == "" {
		return c.Password, nil
	}
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("etcd: password file: %w", err)
	}
	word := strings.TrimRight(string(b), "\r\n")
	if word == "" {
		return "", fmt.Errorf("etcd: password file %s: expected a password, it is empty", c.PasswordFile)
	}
	return word, nil
}

// redial says how soon a lost connection is tried again. The pauses of gRPC itself grow
// to two minutes, which is longer than any lease.
func redial(timeout time.Duration) grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
		MinConnectTimeout: timeout,
	}
}
