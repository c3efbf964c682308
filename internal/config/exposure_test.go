package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListenAddresses(t *testing.T) {
	for in, want := range map[string][2]string{
		"unix:///run/x.sock": {"unix", "/run/x.sock"},
		"unix://relative":    {},
		"127.0.0.1:99999":    {},
		"127.0.0.1:9000":     {"tcp", "127.0.0.1:9000"},
		":9000":              {"tcp", ":9000"},
		"[::1]:9000":         {"tcp", "[::1]:9000"},
		"unix://":            {},
		"unix:///run/":       {},
		"localhost":          {},
		"":                   {},
		"::1:9000":           {},
	} {
		network, address, err := ListenAddress(in)
		require.Equal(t, want, [2]string{network, address}, in)
		require.Equal(t, want[0] == "", err != nil, in)
	}
}

func TestWhoMayReachTheListenerIsSaid(t *testing.T) {
	for listen, want := range map[string]exposure{
		"unix:///run/x.sock": {}, "127.0.0.1:9000": {open: true}, "[::1]:9000": {open: true}, "localhost:9000": {open: true},
		"127.8.0.1:9000": {open: true}, "[::ffff:127.0.0.1]:9000": {open: true},
		":9000": {open: true, beyond: true}, "0.0.0.0:9000": {open: true, beyond: true}, "[::]:9000": {open: true, beyond: true},
		"10.0.0.7:9000": {open: true, beyond: true}, "localhost.example:9000": {open: true, beyond: true},
	} {
		c := Default()
		c.Listen, c.Discovery.File = listen, "workers.yaml"
		require.Equal(t, want, c.exposed(), listen)
		require.Equal(t, want.open, c.Warning() != "", listen)
		if err := c.Validate(); want.beyond {
			require.ErrorContains(t, err, "--insecure-listen", listen)
			c.InsecureListen = true
		} else {
			require.NoError(t, err, listen)
		}
		require.NoError(t, c.Validate(), listen)
		c.TLS.ClientCA = "ca.pem"
		require.Zero(t, c.exposed(), "who shows a certificate is known")
	}
}

func TestThePluginAndEnvoysListenerOfLegsCannotHaveOneSocket(t *testing.T) {
	for _, at := range [][3]string{ // listen, prefill.listener, what is said
		{"unix:///run/x.sock", "unix:///run//x.sock", `prefill.listener "unix:///run//x.sock": listen already has that path: expected another path`},
		{"unix:///run/prefill.sock", "", `prefill.listener "unix:///run/prefill.sock": listen already has that path: expected another path`},
		{"unix:///run/x.sock", "unix:///run/y.sock", ""},
		{"unix:///run/x.sock", "", ""},
	} {
		c := Default()
		c.Listen, c.Prefill.Listener, c.Discovery.File = at[0], at[1], "workers.yaml"
		err := c.Validate()
		if at[2] == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, at[2])
	}
}
