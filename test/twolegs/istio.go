package twolegs

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/seed-60ae5743/baton/envoy"
)

// named is what may stand in the filter as a name: nothing that YAML or Istio reads otherwise.
var named = regexp.MustCompile(`^[A-Za-z0-9_]([-._A-Za-z0-9]*[A-Za-z0-9_])?$`)

// IstioForChart returns the filter of the Helm chart, which puts its values in place of the
// names that begin with THE_, and of both ports.
func IstioForChart() ([]byte, error) {
	return Istio(envoy.IstioParams{
		Params: envoy.Params{
			Title: "Both legs in a gateway of Istio.", PluginHost: "THE_PICKER",
			Notes: []string{"Written by `make envoy-configs` from templates."},
		},
		Name: "THE_FILTER", Namespace: "THE_NAMESPACE", Gateway: "THE_GATEWAY", Route: "THE_ROUTE",
	})
}

// Istio returns the EnvoyFilter. The pool's own filter is not asked on its route; the
// picker, whose certificate nobody verifies, is asked on the legs.
func Istio(p envoy.IstioParams) ([]byte, error) {
	var errs []error
	for _, field := range []struct{ is, value, want string }{
		{"Name", p.Name, "the EnvoyFilter's name"},
		{"Namespace", p.Namespace, "the Gateway's namespace"},
		{"Gateway", p.Gateway, "the Gateway's name"},
		{"Route", p.Route, "a rule of an HTTPRoute, such as prod.models.0"},
		{"PluginHost", p.PluginHost, "the picker's Service, such as baton-epp.prod.svc.cluster.local"},
	} {
		if !named.MatchString(field.value) {
			errs = append(errs, fmt.Errorf("envoy: %s %q: expected %s", field.is, field.value, field.want))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	p.PluginSocket = "-"
	if p.PluginPort == 0 {
		p.PluginPort = 9002
	}
	if p.PrefillPort == 0 {
		p.PrefillPort = 9005
	}
	if p.PrefillHost == "" {
		p.PrefillHost = "0.0.0.0"
	}
	g := envoy.GatewayParams{Params: p.Params, Buffered: !p.FullDuplex, TLS: true}
	v, err := viewOf(g)
	if err != nil {
		return nil, err
	}
	v.Istio = p
	return envoy.Render("istio-two-legs.yaml.tmpl", v)
}
