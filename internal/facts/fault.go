package facts

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
)

// reproach is the note on a worker that cannot be read: the question, the address, the
// error and what to change.
func (s *subject) reproach(err error) string {
	kept := "its facts are not known, and it is served without regard to caches"
	if s.known {
		kept = "its facts are those from before"
	}
	text := "it does not answer at " + s.target.URL + " (asked as " + string(s.target.Kind) + "): " + plain(err)
	change := hint(err)
	if change != "" {
		text += ": " + change
	}
	return text + "; " + kept
}

// hint says what an operator may change about an error; "" if the error says so itself.
func hint(err error) string {
	var cert *tls.CertificateVerificationError
	switch {
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"): // net/http has no type for it
		return "expected HTTPS there, or facts.https: false"
	case errors.As(err, &cert):
		return "expected a certificate for facts.server_name by facts.ca"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "expected an engine there; if a sidecar has the endpoint's port, facts.port_offset or a facts port of its own says where the engine is"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "expected an answer within facts.timeout"
	case strings.Contains(err.Error(), "malformed HTTP response"), errors.Is(err, io.EOF):
		return "expected HTTP there, or facts.https: true"
	}
	return ""
}

// plain returns the text of an error without what differs from one question to the next:
// the local port of its connection.
func plain(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	var op *net.OpError
	if errors.As(err, &op) && op.Source != nil {
		text = strings.ReplaceAll(text, op.Source.String()+"->", "")
	}
	const most = 400
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
