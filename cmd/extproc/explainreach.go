package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
)

// This file says what is wrong with the --admin address of `extproc explain`.

const statusPage = "expected the address of the plugin's status page, admin.listen"

// adminHost returns the host:port of an address, which may begin with http://.
func adminHost(at string) (string, error) {
	u, err := url.Parse(at)
	if !strings.Contains(at, "://") {
		u, err = url.Parse("http://" + at)
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("explain: --admin %q: expected host:port", at)
	case u.Scheme != "http":
		return "", fmt.Errorf("explain: --admin %s: the status page speaks http alone: expected host:port, or http://host:port", at)
	case !config.HostPort(u.Host):
		return "", fmt.Errorf("explain: --admin %q: expected host:port, with a port of 0 to 65535", at)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return "", fmt.Errorf("explain: --admin %s: expected http://%s without a path", at, u.Host)
	}
	return u.Host, nil
}

// notReached says why no answer came from the address, and what to change.
func notReached(ctx context.Context, at, host string, err error) error {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("explain: --admin %s: nothing answers there (%w): expected the address of a running plugin's status page, admin.listen", at, op.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("explain: --admin %s: a server accepts connections there and does not answer: %s", at, statusPage)
	case speaksGRPC(ctx, host):
		return fmt.Errorf("explain: --admin %s: the server there speaks gRPC, as the plugin does at listen and at probes.listen: %s", at, statusPage)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("explain: --admin %s: the server there closes the connection without an answer: %s", at, statusPage)
	}
	return fmt.Errorf("explain: --admin %s: the server there does not speak HTTP: %s", at, statusPage)
}

// speaksGRPC reports whether the server begins with the first frame of HTTP/2 (RFC 9113,
// section 3.4: SETTINGS, type 4, on stream 0).
func speaksGRPC(ctx context.Context, host string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", host)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return false
	}
	var frame [9]byte
	_, err = io.ReadFull(conn, frame[:])
	return err == nil && frame[3] == 4 && frame[0] == 0
}

// notTheAdmin says which server answers at the address, if it names itself.
func notTheAdmin(at, by string) error {
	who := "another server"
	switch {
	case by == "envoy":
		who = "Envoy"
	case by != "":
		who = fmt.Sprintf("another server (%.60q)", by)
	}
	return fmt.Errorf("explain: --admin %s: %s answers there: %s", at, who, statusPage)
}
