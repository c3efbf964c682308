package envoy

import (
	"cmp"
	"fmt"
	"path/filepath"
)

// Params are the values that differ between deployments. The zero value of
// each field gives what the committed files say.
type Params struct {
	ClientPort int // where clients reach Envoy, at 127.0.0.1; default 10000

	// Where the plugin listens: a unix socket, or host and port when
	// PluginSocket is "-". Default /run/baton/extproc.sock.
	PluginSocket string
	PluginHost   string
	PluginPort   int

	// PluginTLS says that the plugin serves TLS. The templates have plain text: only Envoy's owner
	// knows the certificates. He gives the cluster extproc a transport_socket.
	PluginTLS bool

	// Replicas are the addresses, host:port, of further plugins behind the same Envoy.
	Replicas []string

	// Where Envoy takes the legs that the plugin begins itself: a unix socket,
	// or host and port when PrefillPort is set. Default: prefill.sock beside the
	// plugin's socket; none where the plugin listens on a port. Envoy makes the
	// socket, for its own user and group alone (mode 0660).
	PrefillSocket string
	PrefillHost   string
	PrefillPort   int

	// Mirrors has Envoy mirror the prefill legs of engines whose two legs begin together,
	// as up to version 0.1. Where the plugin or those legs have no unix socket, Envoy does
	// so in any case.
	Mirrors bool

	// AdminSocket is where Envoy's admin listens, for its own user alone (mode 0600).
	// Default: envoy.sock beside the plugin's socket, or in /run/baton.
	AdminSocket string

	// FullDuplex streams bodies through the plugin (FULL_DUPLEX_STREAMED) as
	// Gateway API implementations do. The buffered form is cheaper, and its
	// running answers survive the plugin's death at any moment. It streams bodies
	// over 4 MiB, or of unknown size, too.
	FullDuplex bool

	// Routing says whether requests may name their workers: "", no; "prerouted",
	// those that they do not name are picked; "direct", nothing is picked. Without
	// a picker the client listener then lets routing headers pass and must be
	// reached by those alone who may choose workers.
	Routing string

	// PickerPort is where another endpoint picker listens at 127.0.0.1, an ext_proc server
	// asked before the plugin on each attempt. It makes Routing "direct" where that
	// is empty. Clients' routing headers stay stripped, and of what requests say
	// headers alone are believed.
	PickerPort int

	// TracingHost and TracingPort name an OTLP gRPC collector. Empty: Envoy
	// makes no spans of its own.
	TracingHost string
	TracingPort int

	// CORS are the origins whose web pages may call Envoy; "*" for all. Empty: none may.
	CORS []string

	// WorkerCA is a file of certificates by which Envoy knows its workers, which then
	// serve TLS. Empty: they serve plain HTTP.
	WorkerCA string

	// Before137 is for Envoy before 1.37, which by itself shows the plugin none of
	// its own replies: a refused connection would get no fresh attempt. Envoy from 1.37
	// on complains of it. Nor does a filter keep more than a connection's buffer there.
	Before137 bool
	// Before139 is for Envoy before 1.39, which cannot read the usage of streamed
	// answers: no time for each token is measured then.
	Before139 bool

	MaxBodyBytes int // bodies over this are refused with 413; default 64 MiB
	// MaxHeapBytes is what Envoy's heap may come to; default 2 GiB. From 80 % of it on
	// Envoy gives memory back, from 90 % closes connections after their request, from
	// 95 % refuses new requests with 503. Set it to what Envoy may use, less a tenth.
	MaxHeapBytes   int64
	Retries        int    // fresh attempts after the first one; default 2
	DefaultTimeout string // of one attempt where the plugin sets none; default 600s

	Title string
	Notes []string
}

// WithDefaults returns p with the default of each field that says nothing.
func (p Params) WithDefaults() Params {
	const socket = "/run/baton/extproc.sock"
	p.ClientPort = cmp.Or(p.ClientPort, 10000)
	p.PluginSocket = cmp.Or(p.PluginSocket, socket)
	if p.PluginSocket == "-" {
		p.PluginSocket = ""
	}
	p.AdminSocket = cmp.Or(p.AdminSocket, filepath.Join(filepath.Dir(cmp.Or(p.PluginSocket, socket)), "envoy.sock"))
	p.PrefillHost = cmp.Or(p.PrefillHost, "127.0.0.1")
	if p.PluginSocket != "" && p.PrefillPort == 0 {
		p.PrefillSocket = cmp.Or(p.PrefillSocket, filepath.Join(filepath.Dir(p.PluginSocket), "prefill.sock"))
	}
	p.MaxBodyBytes = cmp.Or(p.MaxBodyBytes, 64<<20)
	p.MaxHeapBytes = cmp.Or(p.MaxHeapBytes, 2<<30)
	p.Retries = cmp.Or(p.Retries, 2)
	p.DefaultTimeout = cmp.Or(p.DefaultTimeout, "600s")
	if p.PickerPort > 0 {
		p.Routing = cmp.Or(p.Routing, "direct")
	}
	title := "Baton in your own Envoy, bodies buffered. One plugin per Envoy, over a unix socket."
	if p.FullDuplex {
		title = "Baton in your own Envoy, bodies streamed through the plugin (FULL_DUPLEX_STREAMED)."
	}
	p.Title = cmp.Or(p.Title, title)
	if p.Notes == nil {
		p.Notes = []string{"Written by `make envoy-configs` from standalone.yaml.tmpl: edit that, not this."}
	}
	return p
}

// Standalone returns the configuration of one Envoy with both legs in it.
func Standalone(p Params) ([]byte, error) {
	if p.Routing != "" && p.Routing != "prerouted" && p.Routing != "direct" {
		return nil, fmt.Errorf("envoy: routing %q: expected prerouted, direct or nothing", p.Routing)
	}
	return Render("standalone.yaml.tmpl", View{GatewayParams: GatewayParams{Params: p.WithDefaults()}})
}
