package config

import (
	"fmt"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/seed-60ae5743/baton/internal/extproc"
)

// GatewayConfig is the part of an endpoint picker of the Gateway API inference
// extension.
type GatewayConfig struct {
	// Enabled takes streams without x-baton-filter in their filter's metadata
	// for those of the endpoint picker protocol. Default false: they are
	// refused. The flags of a reference picker turn it on.
	Enabled bool `yaml:"enabled"`
	// Endpoints is how many destinations are named, in order of preference: 1
	// to 8. Default 1; more only where the data plane takes a list.
	Endpoints int `yaml:"endpoints"`
	// ReasonHeader says in an answer of ours why the request was dropped; empty:
	// it is not said. Default x-llm-d-request-dropped-reason.
	ReasonHeader string `yaml:"reason_header"`
	// SelectionHeader obeys test-epp-endpoint-selection, by which a client
	// chooses its endpoints: for the conformance suite alone. Default false.
	SelectionHeader bool `yaml:"selection_header"`
}

func (c *GatewayConfig) validate() (errs []error) {
	if c.Endpoints < 1 || c.Endpoints > extproc.MaxEndpoints {
		errs = append(errs, fmt.Errorf("gateway.endpoints %d: expected 1 to %d", c.Endpoints, extproc.MaxEndpoints))
	}
	if h := c.ReasonHeader; h != "" && !headerName(h) {
		errs = append(errs, fmt.Errorf("gateway.reason_header %q: expected a header name in lower case, or nothing", h))
	}
	return errs
}

// ClientsChoose reports whether a client may choose its endpoint itself.
func (c *GatewayConfig) ClientsChoose() bool { return c.Enabled && c.SelectionHeader }

// gateway converts to the server's settings.
func (c *Config) gateway() extproc.Gateway {
	g := &c.Gateway
	return extproc.Gateway{Enabled: g.Enabled, Endpoints: g.Endpoints, ReasonHeader: g.ReasonHeader, SelectionHeader: g.ClientsChoose()}
}

// headerName reports whether h is a header's name as HTTP/2 writes it.
func headerName(h string) bool {
	return strings.ToLower(h) == h && httpguts.ValidHeaderFieldName(h)
}
