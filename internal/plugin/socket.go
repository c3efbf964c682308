package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/trouble"
)

// bindUnix makes the socket under another name and moves it to path, so that no process
// can connect before it has its mode.
func bindUnix(path string, mode fs.FileMode) (net.Listener, error) {
	made := filepath.Join(filepath.Dir(path), "."+strconv.Itoa(os.Getpid())) // short: the system's limit for the path is some 107 bytes
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // path may belong to a successor by then
	err = os.Chmod(made, mode)
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(made)
		return nil, err
	}
	return socket{l, net.UnixAddr{Name: path, Net: "unix"}}, nil
}

// socket is a listener that was moved after it was bound: its address is the new one.
type socket struct {
	net.Listener
	at net.UnixAddr
}

func (s socket) Addr() net.Addr { return &s.at }

// socketEvery is how often keepSocket looks for the socket's file.
const socketEvery = 2 * time.Second

// keepOwnSocket is keepSocket for the socket at which the plugin listens, if it is one.
func keepOwnSocket(ctx context.Context, p *plugin, main *turns, isGiven bool) error {
	network, path, _ := config.ListenAddress(p.cfg.Listen)
	if network != "unix" {
		return nil
	}
	mode, _ := p.cfg.SocketMode.Bits() // Validate has checked it before
	look := time.NewTicker(socketEvery)
	defer look.Stop()
	lost := func(why string) { p.told.Set(trouble.SocketLost, "", why, time.Now()) }
	bind := func() (net.Listener, error) { return bindUnix(path, mode) }
	if isGiven { // one of our own would be lost to the next process
		bind = func() (net.Listener, error) { return nil, errors.New("systemd holds it: restart its socket unit") }
	}
	return keepSocket(ctx, path, bind, main, p.log, lost, look.C)
}

// keepSocket looks at each tick for the socket's file, and makes it again if it was
// deleted, by a program that clears temporary folders for example. Without the file, open
// connections go on, and no new one could be made. A file that is there is left alone: it
// may be a successor's. It tells lost why the socket cannot be made again, and "" once it can.
func keepSocket(ctx context.Context, path string, bind func() (net.Listener, error), to *turns, log *slog.Logger, lost func(why string), look <-chan time.Time) error {
	for told := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-look:
		}
		if _, err := os.Lstat(path); err == nil {
			if told {
				lost("")
			}
			told = false
			continue
		}
		l, err := bind()
		if err != nil {
			if !told {
				log.Error("the socket was deleted and cannot be made again, so no new connection reaches the plugin: check that the socket's folder is there, and that this user may write to it", logkey.File, path, logkey.Err, err)
			}
			told = true
			lost(fmt.Sprintf("The socket %s was deleted, and cannot be made again: %v", path, err))
			continue
		}
		told = false
		lost("")
		to.add(l)
		log.Warn("the socket was deleted and has been made again: see which process clears the socket's folder, and exclude the folder there", logkey.File, path)
	}
}
