package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// listenAddress splits "unix:///path" and "host:port".
func listenAddress(s string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		if path == "" || strings.HasSuffix(path, "/") {
			return "", "", fmt.Errorf("listen %q: expected unix:///path/of/a/socket", s)
		}
		if !strings.HasPrefix(path, "/") {
			return "", "", fmt.Errorf("listen %q: a unix socket has three slashes: unix:///%s", s, path)
		}
		return "unix", path, nil
	}
	if !hostPort(s) {
		return "", "", fmt.Errorf("listen %q: expected unix:///path or host:port, with a port of 0 to 65535", s)
	}
	return "tcp", s, nil
}

// hostPort reports whether s is an address that can be listened on, by its spelling.
func hostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// listen opens the plugin's socket. A unix socket that a dead process has left
// behind is replaced; one that someone answers on is not.
func listen(s string, mode socketMode) (net.Listener, error) {
	network, address, err := listenAddress(s)
	if err != nil {
		return nil, usageError{err}
	}
	if network != "unix" {
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, notBound("listen (--listen)", address, err)
		}
		return l, nil
	}
	bits, err := mode.bits()
	if err != nil {
		return nil, usageError{err}
	}
	if err := os.MkdirAll(filepath.Dir(address), 0o755); err != nil {
		return nil, fmt.Errorf("listen: %w; choose another place with --listen", err)
	}
	if err := mayBind(address); err != nil {
		return nil, err
	}
	l, err := bindUnix(address, bits)
	if err != nil {
		return nil, fmt.Errorf("listen: %w; choose another place with --listen", err)
	}
	return l, nil
}

// mayBind reports what speaks against a socket at the path: what is there and is none, or
// somebody who answers. One that a dead process has left is replaced.
func mayBind(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("listen: %s exists and is no socket", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return fmt.Errorf("listen: another process answers on %s", path)
	}
	return nil
}
