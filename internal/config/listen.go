package config

import (
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"strings"
)

// ListenAddress splits unix:///path or host:port into a network and an address of package
// net.
func ListenAddress(s string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		if path == "" || strings.HasSuffix(path, "/") {
			return "", "", fmt.Errorf("listen %q: expected unix:///path/of/a/socket", s)
		}
		if !strings.HasPrefix(path, "/") {
			return "", "", fmt.Errorf("listen %q: a unix socket has three slashes: unix:///%s", s, path)
		}
		return "unix", path, nil
	}
	if !HostPort(s) {
		return "", "", fmt.Errorf("listen %q: expected unix:///path or host:port, with a port of 0 to 65535", s)
	}
	return "tcp", s, nil
}

// HostPort reports whether s has the form of an address that can be listened on.
func HostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// SocketMode is the mode of the unix socket in octal digits, as chmod takes it.
type SocketMode string

// Bits returns the mode as a number.
func (m SocketMode) Bits() (fs.FileMode, error) {
	n, err := strconv.ParseUint(string(m), 8, 32)
	if err != nil || n > 0o777 || n&0o600 != 0o600 {
		return 0, fmt.Errorf("socket_mode %q: expected three octal digits by which at least the owner may read and write, as 0660", string(m))
	}
	return fs.FileMode(n), nil
}
