package envoy

import (
	"errors"
)

// GatewayParams are the values of a data plane that a Gateway API implementation
// configures for an InferencePool. Of Params it uses the addresses and limits; the
// plugin is at 127.0.0.1:9002 where nothing is said.
type GatewayParams struct {
	Params

	// Pool is the endpoints of the pool, each ip:port. The protocol's fallback goes
	// to them alone. Default: two addresses that are nobody's.
	Pool []string

	// OriginalDst sends requests to whatever address the picker's header has, in
	// place of the pool's endpoints: no list, no fallback, nothing said of who served.
	OriginalDst bool

	// Buffered sends whole request bodies to the picker, and no answers' bodies,
	// as implementations did before the protocol asked for full duplex.
	Buffered bool

	FailOpen bool // the pool's failureMode; the protocol's default is FailClose
	TLS      bool // to the plugin, whose certificate nobody verifies

	// NoServed leaves out what Envoy before 1.38 does not know: the override policy's
	// own word of who served. upstream.address is sent all the same.
	NoServed bool

	// SubsetHeader names a request header whose value, a google.protobuf.Value in
	// base64, becomes the subset hint of its request: for tests, which so send any
	// form of it. Empty: no hint. Clients must not reach such a gateway.
	SubsetHeader string
}

// errNotOfAGateway says that a parameter of Standalone has no place here.
var errNotOfAGateway = errors.New("envoy: routing, another picker and tracing are not parts of the gateway's form")

func (p GatewayParams) view() (view, error) {
	if p.Routing != "" || p.PickerPort != 0 || p.TracingHost != "" {
		return view{}, errNotOfAGateway
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
	p.Params = p.withDefaults()
	return view{GatewayParams: p, Protocol: true}, nil
}

// GatewayAPI returns the configuration of an Envoy as a Gateway API implementation
// makes it: the endpoint picker protocol's data plane, which knows one leg.
func GatewayAPI(p GatewayParams) ([]byte, error) {
	v, err := p.view()
	if err != nil {
		return nil, err
	}
	return render("gateway-api.yaml.tmpl", v)
}

// GatewayPatch returns the patch that makes GatewayAPI(p) carry both legs, as a
// list of RFC 6902 operations in YAML.
func GatewayPatch(p GatewayParams) ([]byte, error) {
	v, err := p.view()
	if err != nil {
		return nil, err
	}
	return render("gateway-api-two-legs.patch.yaml.tmpl", v)
}

// committedGateway adds the gateway's files of this folder.
func committedGateway(out map[string][]byte) (err error) {
	const picker = "The data plane of an InferencePool, as a Gateway API implementation configures it; Baton picks."
	for name, p := range map[string]GatewayParams{
		"gateway-api.yaml":              {Params: Params{Title: picker}},
		"gateway-api-original-dst.yaml": {Params: Params{Title: picker + " Without endpoints of its own."}, OriginalDst: true},
	} {
		if out[name], err = GatewayAPI(p); err != nil {
			return err
		}
	}
	istio := IstioParams{
		Params: Params{
			Title: "Baton with both legs in a gateway of Istio.", PluginHost: "baton-epp.prod.svc.cluster.local",
			Notes: []string{
				"Written by `make envoy-configs` from templates: edit those, not this. Change namespace, gateway-name, service_name",
				"(the picker's Service) and the route's name: NAMESPACE.HTTPROUTE.INDEX of the rule, or the rule's own name.",
			},
		},
		Name: "baton-two-legs", Namespace: "prod", Gateway: "my-gateway", Route: "prod.baton-epp.0",
	}
	if out["istio-two-legs.yaml"], err = Istio(istio); err != nil {
		return err
	}
	out["gateway-api-two-legs.patch.yaml"], err = GatewayPatch(GatewayParams{Params: Params{
		Title: "Baton with both legs in an Envoy that a Gateway API implementation configures: a patch on gateway-api.yaml.",
	}})
	return err
}
