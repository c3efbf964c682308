package extproc

import (
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/seed-60ae5743/baton/internal/pin"
)

// carried appends to what we set on a leg of our own the headers of its request, all is a
// HeaderMap, that a mirrored leg would carry: all but those that are set, that belong to
// one connection or one message, that only routers may set, or that HTTP/1.1 cannot say.
func carried(set []kv, all []byte) []kv {
	ours := len(set)
	// The decoder has read it before: it is no worse now.
	_ = each(all, func(num protowire.Number, _ uint64, sub []byte) error {
		if num != fieldMapHeaders || sub == nil {
			return nil
		}
		key, value, err := headerOf(sub)
		if err != nil {
			return err
		}
		name := strings.ToLower(string(key))
		switch {
		case name == ":authority":
			name = "host"
		case ofOneHop[name], pin.Known([]byte(name)), strange([]byte(name)), strings.HasPrefix(name, "x-envoy-"),
			slices.Contains(ofRouters, name), !httpguts.ValidHeaderFieldName(name):
			return nil
		}
		told := slices.ContainsFunc(set[:ours], func(h kv) bool { return h.name == name })
		if !told && httpguts.ValidHeaderFieldValue(string(value)) {
			set = append(set, kv{name, string(value)})
		}
		return nil
	})
	return set
}

// ofOneHop are headers of one connection (RFC 9110, section 7.6.1), and of one message: a
// leg of ours has a body and takes an answer of its own.
var ofOneHop = map[string]bool{
	"connection": true, "keep-alive": true, "proxy-connection": true, "proxy-authenticate": true, "proxy-authorization": true,
	"te": true, "trailer": true, "transfer-encoding": true, "upgrade": true, "http2-settings": true, "expect": true,
	"host": true, "content-length": true, "content-encoding": true, "accept-encoding": true,
}

// ofRouters are what other routers, and the sidecars of their workers, obey, besides what
// strange knows. The edge of our own Envoy configurations removes them, too.
var ofRouters = []string{
	"x-dp-rank", "x-data-parallel-host-port", "x-gateway-model-name-rewrite", "x-llm-d-model-name-rewrite",
	"epp-profile", "test-epp-endpoint-selection", "target-pod",
}
