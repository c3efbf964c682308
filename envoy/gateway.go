package envoy

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

// IstioParams are the values of the EnvoyFilter by which a gateway of Istio carries both
// legs. Of Params it uses the limits, FullDuplex, PluginHost and PluginPort (the picker's
// Service, as its whole name; 9002 where nothing is said) and PrefillPort (9005).
type IstioParams struct {
	Params

	Name      string // of the EnvoyFilter
	Namespace string // of the Gateway, and so of the EnvoyFilter
	Gateway   string // the Gateway's name

	// Route is the HTTPRoute's rule by the name that Istio gives it: NAMESPACE.NAME.INDEX,
	// or the rule's own name if it has one.
	Route string
}
