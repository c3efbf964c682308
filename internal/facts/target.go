package facts

import (
	"cmp"
	"net"
	"net/url"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// wants reports whether a worker is asked: its source leaves facts open, or says which
// ones it has set.
func wants(w *worker.Worker) bool {
	return w != nil && !w.Fronted && (w.FactsUnknown || w.Fixed != 0)
}

// targetOf says where and as what a worker is asked.
func (c *Config) targetOf(w *worker.Worker) Target {
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	at := w.Endpoint.AddrPort()
	port := int(at.Port())
	switch {
	case w.FactsPort != 0:
		port = int(w.FactsPort)
	case w.Role == worker.Decode && port+c.PortOffset > 0 && port+c.PortOffset <= mostPort:
		port += c.PortOffset
	}
	t := Target{
		Worker: w.ID, URL: scheme + "://" + net.JoinHostPort(at.Addr().String(), strconv.Itoa(port)),
		Kind: c.Defaults.kind(w), Events: eventsAddress(w, c.Defaults), Rank: w.EngineRank,
	}
	if port := engines.Of(t.Kind).Bootstrap; port != 0 && w.Role == worker.Prefill {
		t.Bootstrap = cmp.Or(w.Bootstrap.Port, port)
	}
	return t
}

func hostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL
	}
	return u.Hostname()
}
