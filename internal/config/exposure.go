package config

import (
	"fmt"
	"net"
	"net/netip"
)

// exposure says which processes can speak to the plugin as Envoy does. Each of them may
// have requests decided, book load, and read which workers there are.
type exposure struct {
	open   bool // any process that can connect
	beyond bool // also from other machines
}

// exposed returns the exposure of the listen address. A unix socket is open only to its
// owner and group, and a client certificate proves who connects.
func (c *Config) exposed() exposure {
	network, address, err := ListenAddress(c.Listen)
	if err != nil || network == "unix" || c.TLS.ClientCA != "" {
		return exposure{}
	}
	host, _, _ := net.SplitHostPort(address)
	ip, err := netip.ParseAddr(host)
	local := host == "localhost" || err == nil && ip.Unmap().IsLoopback()
	return exposure{open: true, beyond: !local}
}

// Warning says who can speak to the plugin; "" if only those can who are meant to. It is logged at the
// start, and shown by check and on the page.
func (c *Config) Warning() string {
	switch x := c.exposed(); {
	case x.beyond:
		return fmt.Sprintf("listen %s has no tls.client_ca: any process that can connect, also from other machines, may ask for decisions and read the list of workers", c.Listen)
	case x.open:
		return fmt.Sprintf("listen %s has no tls.client_ca: every process of this machine may have requests decided and read which workers there are", c.Listen)
	}
	return ""
}

func (c *Config) validateExposure() error {
	if c.exposed().beyond && !c.InsecureListen {
		return fmt.Errorf("listen %q: any process that can connect may ask for decisions and read the list of workers: "+
			"set tls.client_ca, listen on a unix socket or on loopback, or accept it with insecure_listen (--insecure-listen)", c.Listen)
	}
	return nil
}
