package register

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Resolver looks names up; *net.Resolver is a Resolver.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// advertised returns the host and port that are announced for the worker. An address that
// stands for all addresses of the machine is an error.
func advertised(advertise, engineURL string) (host string, port uint16, err error) {
	host, portText, err := engine.HostPort(engineURL)
	if err != nil {
		return "", 0, err
	}
	if advertise != "" {
		host = unbracketed(advertise)
		if h, p, err := net.SplitHostPort(advertise); err == nil {
			host, portText = h, p
		} else if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
			return "", 0, fmt.Errorf("advertise %q: expected host or host:port with an IPv6 address in brackets", advertise)
		}
	}
	n, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("advertise %q: port %q: expected host:port with a port from 1 to 65535", advertise, portText)
	}
	if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() {
		return "", 0, fmt.Errorf("address %s means all addresses of this machine: expected --advertise with one that other machines can reach", host)
	}
	if err := worker.CheckHost(unbracketed(host)); err != nil {
		return "", 0, fmt.Errorf("advertise %w", err)
	}
	return host, uint16(n), nil
}

// lookup returns the addresses of a host; an IP address stands for itself.
func lookup(ctx context.Context, r Resolver, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	as, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	return as, nil
}

// choose picks the address to advertise from the answers. The present one is kept as long
// as it is among them: a name with several addresses is often answered in another order,
// and each change is a new life. Otherwise it is the first of the preferred family, or,
// without one, the first.
func choose(present netip.Addr, answers []netip.Addr, preferIPv6 bool) (netip.Addr, error) {
	var pick netip.Addr
	for _, a := range answers {
		a = a.Unmap()
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			continue
		}
		if a == present {
			return present, nil
		}
		if !pick.IsValid() || a.Is6() == preferIPv6 && pick.Is6() != preferIPv6 {
			pick = a
		}
	}
	if !pick.IsValid() {
		return netip.Addr{}, errors.New("no address that other machines can reach: expected --advertise with one")
	}
	return pick, nil
}
