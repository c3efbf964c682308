package config

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// Addresses says at which addresses workers may be, on a machine with the addresses here:
// not where the plugin itself listens, nor where Envoy takes the plugin's own legs.
func (c *Config) Addresses(here []netip.Addr) (*discovery.Addresses, error) {
	networks, err := c.Discovery.InNetworks()
	if err != nil {
		return nil, err
	}
	out := &discovery.Addresses{Networks: networks, Here: here}
	for _, o := range []struct{ key, at string }{
		{"listen", c.Listen}, {"admin.listen", c.Admin.Listen}, {"probes.listen", c.Probes.Listen}, {"metrics.listen", c.Metrics.Listen},
		{"leg.advertise", c.Leg.Advertise}, {"prefill.listener", strings.TrimPrefix(c.Prefill.Listener, "http://")},
	} {
		host, text, err := net.SplitHostPort(o.at)
		port, perr := strconv.ParseUint(text, 10, 16)
		if err != nil || perr != nil || port == 0 || strings.HasPrefix(o.at, "unix:") {
			continue
		}
		for _, ip := range hosts(host) {
			out.Own = append(out.Own, discovery.Own{At: netip.AddrPortFrom(ip, uint16(port)), Name: "this plugin's own address (" + o.key + ")"})
		}
	}
	return out, nil
}

// hosts returns the addresses that the host of a listener stands for. No other name than
// localhost is looked up.
func hosts(host string) []netip.Addr {
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "":
		return []netip.Addr{netip.IPv4Unspecified()}
	case host == "localhost":
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	case err != nil:
		return nil
	}
	return []netip.Addr{ip.Unmap().WithZone("")}
}

// KeyWarning says to whose workers the key of engines.api_key_file is not shown, and why;
// "" if it is shown to all.
func (c *Config) KeyWarning() string {
	e := &c.Discovery.Etcd
	if c.Engines.APIKeyFile == "" || len(e.Endpoints) == 0 || e.Vouches() {
		return ""
	}
	return "the key of engines.api_key_file is not shown to the workers of etcd: whoever reaches etcd may add one, and would be told the key; " +
		"have etcd ask for users or for client certificates, and set discovery.etcd.username or discovery.etcd.cert"
}
