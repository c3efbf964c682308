package config

import (
	"fmt"

	"github.com/seed-60ae5743/baton/internal/extproc"
)

// GatewayConfig makes the plugin an endpoint picker of the Gateway API inference
// extension.
type GatewayConfig struct {
	// Enabled serves a stream without x-baton-filter in its filter's metadata as one of
	// the endpoint picker protocol. Default false: such a stream is refused. The flags of
	// a reference picker turn it on.
	Enabled bool `yaml:"enabled"`
	// Endpoints is how many destinations an answer names, in order of preference: 1 to 8.
	// Default 1; choose more only if the data plane takes a list.
	Endpoints int `yaml:"endpoints"`
	// UnknownModels says what becomes of a request for a model that no worker is known to
	// serve: pass (to the workers whose models are not known, while there are such) or
	// refuse (503 while there are such, 404 after that). Default refuse; the flags of a reference picker set pass.
	UnknownModels string `yaml:"unknown_models"`
	// SelectionHeader obeys the header test-epp-endpoint-selection, in which a client
	// chooses its endpoints: only for the conformance suite. Default false.
	SelectionHeader bool `yaml:"selection_header"`
}

// reasonHeader is the header in which a refusal says to a gateway why the request was dropped: the
// reference pickers' own.
const reasonHeader = "x-llm-d-request-dropped-reason"

// The values of UnknownModels.
const (
	unknownPass   = "pass"
	unknownRefuse = "refuse"
)

func (c *GatewayConfig) validate() (errs []error) {
	if c.Endpoints < 1 || c.Endpoints > extproc.MaxEndpoints {
		errs = append(errs, fmt.Errorf("gateway.endpoints %d: expected 1 to %d", c.Endpoints, extproc.MaxEndpoints))
	}
	if u := c.UnknownModels; u != unknownPass && u != unknownRefuse {
		errs = append(errs, fmt.Errorf("gateway.unknown_models %q: expected %s or %s", u, unknownPass, unknownRefuse))
	}
	return errs
}

// ClientsChoose reports whether a client may choose its endpoints.
func (c *GatewayConfig) ClientsChoose() bool { return c.Enabled && c.SelectionHeader }

// gateway converts to the server's settings.
func (c *Config) gateway() extproc.Gateway {
	g := &c.Gateway
	return extproc.Gateway{Enabled: g.Enabled, Endpoints: g.Endpoints, ReasonHeader: reasonHeader, PassUnknown: g.UnknownModels == unknownPass, SelectionHeader: g.ClientsChoose()}
}
