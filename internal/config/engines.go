package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"github.com/seed-60ae5743/baton/internal/sources"
)

// EnginesConfig says how the plugin asks engines.
type EnginesConfig struct {
	// APIKeyFile holds the API key that the engines ask for (their --api-key). It is read
	// again for each question, so that writing the file changes the key. Default: no key
	// is sent.
	APIKeyFile string `yaml:"api_key_file"`
	// CA is a PEM file with the authorities of the engines' certificates. The plugin then
	// asks them over HTTPS, and so does Envoy by `extproc envoy`. Default: plain HTTP.
	CA string `yaml:"ca"`
	// ReportInterval is how often each decode engine is asked what it runs; the reports
	// correct what is booked on it. Default 2s; 0: no engine is asked.
	ReportInterval time.Duration `yaml:"report_interval"`
}

// leastReportInterval is the shortest interval that costs an engine little: it takes
// milliseconds to make its metrics page.
const leastReportInterval = 100 * time.Millisecond

// TLS is how the plugin asks engines; nil: over plain HTTP. A worker is an address, for
// which few have a certificate: as in Envoy's clusters, the authority has to be right, and
// no name.
func (c *EnginesConfig) TLS() (*tls.Config, error) {
	if c.CA == "" {
		return nil, nil
	}
	roots, err := Roots("engines.ca", c.CA)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies all but the name
		VerifyConnection: func(s tls.ConnectionState) error {
			o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
			for _, c := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(o)
			return err
		},
	}, nil
}

// Roots reads a PEM file of certificate authorities.
func Roots(setting, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w: expected a PEM file that this user may read", setting, file, sources.Reason(err))
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s %q: expected a PEM file with at least one certificate", setting, file)
	}
	return roots, nil
}
