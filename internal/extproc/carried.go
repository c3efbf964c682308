package extproc

import (
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/wire"
)

// carried returns the headers for a leg of the plugin's own: those in set, which the plugin
// sets, and those of the client's request that a mirrored leg would carry. The argument all
// is [wire.Headers.All] of the request. Left out are headers whose name is in set, that belong
// to one connection or one message, that only routers may set, or that HTTP/1.1 cannot carry.
func carried(set []wire.Header, all []byte) []wire.Header {
	ours := len(set)
	for key, value := range wire.EachHeader(all) {
		name := strings.ToLower(string(key))
		switch {
		case name == ":authority":
			name = "host"
		case ofOneHop[name], pin.Known([]byte(name)), wire.Strange([]byte(name)), strings.HasPrefix(name, "x-envoy-"),
			slices.Contains(ofRouters, name), !httpguts.ValidHeaderFieldName(name):
			continue
		}
		told := slices.ContainsFunc(set[:ours], func(h wire.Header) bool { return h.Name == name })
		if !told && httpguts.ValidHeaderFieldValue(string(value)) {
			set = append(set, wire.Header{Name: name, Value: string(value)})
		}
	}
	return set
}

// ofOneHop are headers of one connection (RFC 9110, section 7.6.1) or of one message: a leg
// of the plugin's own has another body than the client's request, and another answer.
var ofOneHop = map[string]bool{
	"connection": true, "keep-alive": true, "proxy-connection": true, "proxy-authenticate": true, "proxy-authorization": true,
	"te": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "http2-settings": true, "expect": true,
	"host": true, "content-length": true, "content-encoding": true, "accept-encoding": true,
	// With these Go's transport sends a POST again by itself: a worker would get a leg twice. Engines do not read them.
	"idempotency-key": true, "x-idempotency-key": true,
}

// ofRouters are headers that other routers, and the sidecars of their workers, obey, as far
// as [wire.Strange] does not know them. The edge of Baton's Envoy configurations removes
// them, too.
var ofRouters = []string{
	"x-dp-rank", "x-data-parallel-host-port", "x-gateway-model-name-rewrite", "x-llm-d-model-name-rewrite",
	"epp-profile", "test-epp-endpoint-selection", "target-pod",
}
