package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
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
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints, Username: c.Username, Password: c.Password, TLS: conf, DialTimeout: c.DialTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return client, nil
}
