package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Addresses says at which addresses workers may be. Envoy sends requests of clients to
// them, decode workers and the plugin itself connect to them: a record with another
// address would let clients reach what only this machine, or this cloud, is to reach
// (docs/config.md#networks).
type Addresses struct {
	// Networks are those in which workers may be; none: all but loopback. Loopback is
	// allowed only by a network of loopback addresses: whoever writes 0.0.0.0/0 does not
	// think of it.
	Networks []netip.Prefix
	// Own are the addresses of the plugin's own listeners, and of Envoy's, as far as they
	// are known. An address that is unspecified is every address of this machine.
	Own []Own
	// Here are the addresses of this machine.
	Here []netip.Addr
}

// Own is an address at which no worker can be.
type Own struct {
	At   netip.AddrPort
	Name string // whose it is, for whoever reads the refusal
}

// envoyAdmin is the port at which Envoy's own administration listens by custom. Whoever
// reaches it ends Envoy, and reads its secrets.
const envoyAdmin = 9901

// Addresses that no worker has, besides those that are link-local. In some clouds a
// machine asks there for its secrets.
var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
	broadcast   = netip.MustParseAddr("255.255.255.255")
	metadata    = []netip.Addr{
		netip.MustParseAddr("fd00:ec2::254"),   // Amazon
		netip.MustParseAddr("fd20:ce::254"),    // Google
		netip.MustParseAddr("fd00:42::42"),     // Scaleway
		netip.MustParseAddr("100.100.100.200"), // Alibaba
		netip.MustParseAddr("168.63.129.16"),   // Azure
		netip.MustParseAddr("192.0.0.192"),     // Oracle
	}
)

// within are the IPv6 networks whose addresses hold an IPv4 address, from a byte on, and
// reach the machine that has it.
var within = []struct {
	net netip.Prefix
	at  int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // RFC 6052
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // RFC 2765
	{netip.MustParsePrefix("::/96"), 12},           // RFC 4291, 2.5.5.1
	{netip.MustParsePrefix("2002::/16"), 2},        // RFC 3056
}

// spot is an address of a worker, and how many ports there are of it.
type spot struct {
	what  string // the field that has it
	host  string
	port  uint16
	ports uint32
}

// Refuse says why no request may go to the worker, or returns "". operator says that who
// configured the plugin has written the worker: then it may be at any address that a
// worker can have.
func (a *Addresses) Refuse(w *worker.Worker, operator bool) string {
	ip := w.Endpoint.AddrPort().Addr().String()
	spots := []spot{
		{"endpoint", ip, w.Endpoint.AddrPort().Port(), uint32(w.Ports())}, //nolint:gosec // DPSize is bounded
		{"facts_port", ip, w.FactsPort, 1},
		{"model_files", ip, w.ModelFiles.Port, 1},
		{"bootstrap", w.Bootstrap.Host, w.Bootstrap.Port, 1},
		{"kv_events", w.KVEvents.Host, w.KVEvents.Port, max(w.DPSize, 1)},
		{"kv_events replay", w.KVEvents.Host, w.KVEvents.ReplayPort, max(w.DPSize, 1)},
	}
	if len(w.KVEvents.Ranks) > 0 { // each of them has a place of its own
		spots = spots[:len(spots)-2]
	}
	for _, at := range w.KVEvents.Ranks {
		spots = append(spots, spot{"kv_events.ranks", at.Host, at.Port, 1}, spot{"kv_events.ranks replay", at.Host, at.ReplayPort, 1})
	}
	for _, s := range spots {
		if s.port == 0 || s.host == "" {
			continue
		}
		if why := a.refuse(&s, operator); why != "" {
			return fmt.Sprintf("%s %s %s", s.what, hostPort(s.host, s.port), why)
		}
	}
	return ""
}

func hostPort(host string, port uint16) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("%s:%d", host, port)
}

func (a *Addresses) refuse(s *spot, operator bool) string {
	ip, err := netip.ParseAddr(s.host)
	if err != nil {
		return a.refuseName(s, operator)
	}
	ip = ip.Unmap().WithZone("")
	faces := []netip.Addr{ip}
	for _, x := range within {
		if v6 := ip.As16(); ip.Is6() && x.net.Contains(ip) && !ip.IsLoopback() {
			faces = append(faces, netip.AddrFrom4([4]byte(v6[x.at:x.at+4])))
		}
	}
	loopback := false
	for _, f := range faces {
		if why := never(f); why != "" {
			return why
		}
		if o := a.own(f, s.port, s.ports); o != "" {
			return "is " + o + ": no worker can be there"
		}
		loopback = loopback || f.IsLoopback()
	}
	switch {
	case operator:
		return ""
	case loopback:
		return a.refuseLoopback(ip)
	case len(a.Networks) > 0 && !slices.ContainsFunc(a.Networks, func(n netip.Prefix) bool { return n.Contains(ip) }):
		return fmt.Sprintf("is in none of discovery.networks (%v): add its network there, if workers may be in it", a.Networks)
	}
	return ""
}

// refuseName judges a host that is given by its name. Which address a name has is asked by
// others, and may change: names are judged by what they say.
func (a *Addresses) refuseName(s *spot, operator bool) string {
	name := strings.ToLower(strings.TrimSuffix(s.host, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	// Systems read 127.1, 2130706433 and 0x7f.1 as addresses.
	case strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x"):
		return "is an address in another spelling: write it as four decimal numbers"
	case name != "localhost" && last != "localhost" && !slices.Contains([]string{"localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}, name):
		return ""
	}
	for _, ip := range loopbacks {
		if o := a.own(ip, s.port, s.ports); o != "" {
			return "is " + o + ": no worker can be there"
		}
	}
	if operator {
		return ""
	}
	return a.refuseLoopback(loopbacks[0])
}

var loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// refuseLoopback refuses an address of this machine unless a network names it.
func (a *Addresses) refuseLoopback(ip netip.Addr) string {
	named := func(n netip.Prefix) bool { return n.Addr().IsLoopback() && n.Contains(ip) }
	if slices.ContainsFunc(a.Networks, named) {
		return ""
	}
	network := "127.0.0.0/8"
	if !ip.Is4() {
		network = "::1/128"
	}
	return fmt.Sprintf("is on loopback, where workers of etcd and Kubernetes may be only if discovery.networks names it: if engines run on this machine, set it to [%s] (--discovery-networks)", network)
}

// never says why no worker is at the address, wherever it was read, or returns "".
func never(ip netip.Addr) string {
	switch {
	case ip.IsUnspecified(), thisNetwork.Contains(ip):
		return "is no machine's address"
	case ip.IsMulticast(), ip == broadcast:
		return "is the address of many machines"
	case ip.IsLinkLocalUnicast():
		return "is link-local, where clouds tell a machine its secrets: no worker can be there"
	case slices.Contains(metadata, ip):
		return "is where a cloud tells a machine its secrets: no worker can be there"
	}
	return ""
}

// own names who listens at the address, at one of the ports, or returns "".
func (a *Addresses) own(ip netip.Addr, port uint16, ports uint32) string {
	has := func(p uint16) bool { return p >= port && uint32(p)-uint32(port) < max(ports, 1) }
	here := ip.IsLoopback() || slices.Contains(a.Here, ip)
	if here && has(envoyAdmin) {
		return "where Envoy's admin listens by custom"
	}
	for _, o := range a.Own {
		if has(o.At.Port()) && (o.At.Addr() == ip || here && o.At.Addr().IsUnspecified()) {
			return o.Name
		}
	}
	return ""
}
