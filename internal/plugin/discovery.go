package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
)

// Allowed says at which addresses workers may be.
func Allowed(c *config.Config) (*discovery.Addresses, error) {
	var here []netip.Addr
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("which addresses this machine has: %w", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				here = append(here, ip.Unmap())
			}
		}
	}
	return c.Addresses(here)
}

// Namespace is the namespace of pools that name none: that of the environment, else that of
// the pod in which the process runs.
func Namespace(environment string) string {
	return cmp.Or(strings.TrimSpace(environment), strings.TrimSpace(kubernetes.NamespaceHere()), "default")
}

func closeAll(closers []io.Closer) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
