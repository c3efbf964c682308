package twolegs

import (
	"errors"

	"github.com/seed-60ae5743/baton/envoy"
)

// errNotOfAGateway says that a parameter of Standalone has no place here.
var errNotOfAGateway = errors.New("envoy: routing, another picker and tracing are not parts of the gateway's form")

// viewOf is what the templates of a gateway read.
func viewOf(p envoy.GatewayParams) (envoy.View, error) {
	if p.Routing != "" || p.PickerPort != 0 || p.TracingHost != "" {
		return envoy.View{}, errNotOfAGateway
	}
	if p.PluginSocket == "" && p.PluginPort == 0 {
		p.PluginSocket, p.PluginHost, p.PluginPort = "-", "127.0.0.1", 9002
	}
	if p.PluginSocket == "-" && p.PrefillPort == 0 && p.PrefillSocket == "" {
		p.PrefillPort = 9005
	}
	if len(p.Pool) == 0 {
		p.Pool = []string{"192.0.2.1:8000", "192.0.2.2:8000"}
	}
	if p.Notes == nil {
		p.Notes = []string{"Written by `make envoy-configs` from templates: edit those, not this."}
	}
	p.FullDuplex = !p.Buffered
	p.Params = p.WithDefaults()
	return envoy.View{GatewayParams: p, Protocol: true}, nil
}

// GatewayAPI returns the configuration of an Envoy as a Gateway API implementation
// makes it: the endpoint picker protocol's data plane, which knows one leg.
func GatewayAPI(p envoy.GatewayParams) ([]byte, error) {
	v, err := viewOf(p)
	if err != nil {
		return nil, err
	}
	return envoy.Render("gateway-api.yaml.tmpl", v)
}

// GatewayPatch returns the patch that makes GatewayAPI(p) carry both legs, as a
// list of RFC 6902 operations in YAML.
func GatewayPatch(p envoy.GatewayParams) ([]byte, error) {
	v, err := viewOf(p)
	if err != nil {
		return nil, err
	}
	return envoy.Render("gateway-api-two-legs.patch.yaml.tmpl", v)
}

// committedGateway adds the gateway's files of the folder envoy.
func committedGateway(out map[string][]byte) (err error) {
	const picker = "The data plane of an InferencePool, as a Gateway API implementation configures it; Baton picks."
	for name, p := range map[string]envoy.GatewayParams{
		"gateway-api.yaml":              {Params: envoy.Params{Title: picker}},
		"gateway-api-original-dst.yaml": {Params: envoy.Params{Title: picker + " Without endpoints of its own."}, OriginalDst: true},
	} {
		out[name], err = GatewayAPI(p)
		if err != nil {
			return err
		}
	}
	istio := envoy.IstioParams{
		Params: envoy.Params{
			Title: "Baton with both legs in a gateway of Istio.", PluginHost: "baton-epp.prod.svc.cluster.local",
			Notes: []string{
				"Written by `make envoy-configs` from templates: edit those, not this. Change namespace, gateway-name, service_name",
				"(the picker's Service) and the route's name: NAMESPACE.HTTPROUTE.INDEX of the rule, or the rule's own name.",
			},
		},
		Name: "baton-two-legs", Namespace: "prod", Gateway: "my-gateway", Route: "prod.baton-epp.0",
	}
	out["istio-two-legs.yaml"], err = Istio(istio)
	if err != nil {
		return err
	}
	out["gateway-api-two-legs.patch.yaml"], err = GatewayPatch(envoy.GatewayParams{Params: envoy.Params{
		Title: "Baton with both legs in an Envoy that a Gateway API implementation configures: a patch on gateway-api.yaml.",
	}})
	return err
}
