package plugin

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry"
)

// bindUnix makes the socket under another name and moves it into place, so that nobody can
// connect before it has its mode.
func bindUnix(path string, mode fs.FileMode) (net.Listener, error) {
	made := filepath.Join(filepath.Dir(path), "."+strconv.Itoa(os.Getpid())) // short: the system's limit for the path is some 107 bytes
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // a successor may have bound the path by the time we end
	if err = os.Chmod(made, mode); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(made)
		return nil, err
	}
	return socket{l, net.UnixAddr{Name: path, Net: "unix"}}, nil
}

// socket is a listener that has been moved since it was bound.
type socket struct {
	net.Listener
	at net.UnixAddr
}

func (s socket) Addr() net.Addr { return &s.at }

// socketEvery is how often it is looked whether the socket's file is still there.
const socketEvery = 2 * time.Second

// keepSocket looks at each tick whether the socket's file is there, and makes it again where
// something has deleted it, as what clears temporary folders does: connections that are open go on, and no new one could be made. A
// file that is there is left alone, whosesoever it is: a successor's may be it.
func keepSocket(ctx context.Context, path string, mode fs.FileMode, to *turns, log *slog.Logger, look <-chan time.Time) error {
	for told := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-look:
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		l, err := bindUnix(path, mode)
		if err != nil {
			if !told {
				log.Error("the socket was deleted, and cannot be made again: no new connection reaches the plugin", telemetry.KeyFile, path, telemetry.KeyErr, err)
			}
			told = true
			continue
		}
		told = false
		to.add(l)
		log.Warn("the socket was deleted, and has been made again", telemetry.KeyFile, path)
	}
}
