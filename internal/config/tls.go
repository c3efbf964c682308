package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
)

// TLSConfig names PEM files, and sets the terms of a handshake.
type TLSConfig struct {
	Cert     string `yaml:"cert"`
	Key      string `yaml:"key"`
	ClientCA string `yaml:"client_ca"` // clients must have a certificate that this authority has signed
	// SelfSigned makes a certificate at the start if no certificate is named. Default
	// false: then the listener speaks plain text.
	SelfSigned bool `yaml:"self_signed"`
	// MinVersion is VersionTLS12 or VersionTLS13. Default VersionTLS12, the least that
	// HTTP/2 allows.
	MinVersion string `yaml:"min_version"`
	// CipherSuites are the suites for TLS 1.2, by Go's names. Default: Go's own choice.
	CipherSuites []string `yaml:"cipher_suites"`
}

// On reports whether the listener speaks TLS.
func (c *TLSConfig) On() bool { return c.Cert != "" || c.SelfSigned }

func (c *TLSConfig) validate() (errs []error) {
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if (c.Cert == "") != (c.Key == "") {
		bad("tls: expected both cert and key, or neither")
	}
	if c.ClientCA != "" && !c.On() {
		bad("tls.client_ca: expected cert and key, or self_signed, too")
	}
	if _, err := c.minVersion(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.suites(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

func (c *TLSConfig) minVersion() (uint16, error) {
	switch c.MinVersion {
	case "", "VersionTLS12":
		return tls.VersionTLS12, nil
	case "VersionTLS13":
		return tls.VersionTLS13, nil
	default:
		return 0, fmt.Errorf("tls.min_version %q: expected VersionTLS12 or VersionTLS13", c.MinVersion)
	}
}

// suites returns nil for Go's own choice.
func (c *TLSConfig) suites() ([]uint16, error) {
	var ids []uint16
	var errs []error
	for _, name := range c.CipherSuites {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("tls.cipher_suites: %q: expected the name of one that Go's crypto/tls calls secure, as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", name))
			continue
		}
		ids = append(ids, tls.CipherSuites()[i].ID)
	}
	return ids, errors.Join(errs...)
}

// Handshake returns the terms of a handshake, without the certificates: the process reads
// those.
func (c *TLSConfig) Handshake() (*tls.Config, error) {
	conf := &tls.Config{NextProtos: []string{"h2"}}
	var err error
	conf.MinVersion, err = c.minVersion()
	if err != nil {
		return nil, err
	}
	conf.CipherSuites, err = c.suites()
	return conf, err
}
