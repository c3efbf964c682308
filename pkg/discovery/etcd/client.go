package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// DefaultPrefix is what every key of Baton's own layout begins with.
const DefaultPrefix = "baton/v1"

// ClientConfig says how to reach an etcd cluster.
type ClientConfig struct {
	Endpoints []string // host:port or http(s)://host:port; at least one

	Username, Password string // both or neither

	// Files in PEM. CA alone verifies the servers; Cert and Key, given
	// together, are also shown to them. They are read again at each handshake,
	// so that they may be rotated.
	CA, Cert, Key string
	ServerName    string // what the servers' certificates must be for; default: the endpoint's host

	DialTimeout time.Duration // of one connection; default 2 s
}

// Validate returns every fault of c, joined, or nil.
func (c ClientConfig) Validate() error {
	var errs []error
	if len(c.Endpoints) == 0 {
		errs = append(errs, errors.New("endpoints: expected at least one"))
	}
	if (c.Username == "") != (c.Password == "") {
		errs = append(errs, errors.New("expected both user and password, or neither"))
	}
	if (c.Cert == "") != (c.Key == "") {
		errs = append(errs, errors.New("expected both cert and key, or neither"))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("etcd: %w", errors.Join(errs...))
}

// Dial returns a client. It does not wait for a connection: a cluster that is
// away is found again when it returns. The caller closes it.
func Dial(c ClientConfig) (*clientv3.Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 2 * time.Second
	}
	var conf *tls.Config
	if c.CA != "" || c.Cert != "" {
		info := transport.TLSInfo{TrustedCAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key, ServerName: c.ServerName}
		var err error
		if conf, err = info.ClientConfig(); err != nil {
			return nil, fmt.Errorf("etcd: tls: %w", err)
		}
	}
	full := clientv3.Config{
		Endpoints: c.Endpoints, TLS: conf, DialTimeout: c.DialTimeout,
		// A connection that is dead without a word is closed after 13 s; etcd
		// refuses clients that ask more often than each 5 s, gRPC asks at most
		// each 10 s.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second, PermitWithoutStream: true,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(redial(c.DialTimeout))},
		// It would write a line to stderr for each try of an outage. What fails
		// is returned, and told by who asked for it.
		Logger: zap.NewNop(),
	}
	if c.Username != "" {
		full.Token = unasked
	}
	if c.ServerName != "" {
		// gRPC verifies the endpoint's host, whatever the TLS configuration says.
		full.DialOptions = append(full.DialOptions, grpc.WithAuthority(c.ServerName))
	}
	client, err := clientv3.New(full)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if c.Username != "" {
		client.Token, client.Username, client.Password = "", c.Username, c.Password
	}
	return client, nil
}

// unasked is a token that no server has given. clientv3 asks for one with the
// first call that is refused for it; given the user's name at once it would ask
// in New, which then fails while etcd is away.
const unasked = "not asked for yet"

// redial says how soon a lost connection is tried again. gRPC's own pauses grow
// to two minutes, which would outlast every lease.
func redial(timeout time.Duration) grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
		MinConnectTimeout: timeout,
	}
}
