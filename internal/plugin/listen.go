package plugin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
)

// listen opens the plugin's socket. It replaces a unix socket that a dead process has
// left behind, but not one on which a process answers.
func listen(s string, mode config.SocketMode) (net.Listener, error) {
	network, address, err := config.ListenAddress(s)
	if err != nil {
		return nil, config.Usage(err)
	}
	if network != "unix" {
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, notBound("listen (--listen)", address, err)
		}
		return l, nil
	}
	bits, err := mode.Bits()
	if err != nil {
		return nil, config.Usage(err)
	}
	if err := os.MkdirAll(filepath.Dir(address), 0o755); err != nil {
		return nil, fmt.Errorf("listen: %w; choose another path with --listen", err)
	}
	if err := mayBind(address); err != nil {
		return nil, err
	}
	l, err := bindUnix(address, bits)
	if err != nil {
		return nil, fmt.Errorf("listen: %w; choose another path with --listen", err)
	}
	return l, nil
}

// mayBind returns what prevents a socket at the path: a file that is no socket, or a
// process that answers on the socket. The socket of a dead process prevents nothing: it
// is replaced.
func mayBind(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen: %w; choose another path with --listen", err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("listen: %s exists and is no socket: remove it, or choose another path with --listen", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return fmt.Errorf("listen: another process answers on %s: end it, or choose another path with --listen", path)
	}
	return nil
}
