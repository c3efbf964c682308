package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// explainCommand asks a running plugin what it would decide for a request. Nothing is
// routed and nothing is booked.
func explainCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := config.NewFlagSet("explain", "Asks a running plugin what it would decide for a request body, and why.\nThe body is read from the file named, or from standard input where none is (or -).", stderr)
	at := fs.String("admin", "http://"+config.Default().Admin.Listen, "admin `address` of the plugin, with or without http://")
	path := fs.String("path", "", "request `path`; default: the one whose bodies have this one's fields")
	raw := fs.Bool("json", false, "print the whole answer as JSON")
	if err := config.ParseFlags(fs, args, 1); err != nil {
		return err
	}
	name := fs.Arg(0)
	var body []byte
	var err error
	if name == "" || name == "-" {
		body, err = io.ReadAll(os.Stdin)
	} else {
		body, err = os.ReadFile(name)
	}
	if err != nil {
		return config.Usage(fmt.Errorf("explain: %w", err))
	}
	guessed := *path == ""
	if guessed {
		*path = openai.PathOf(body).String()
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := postExplain(ctx, *at, *path, body)
	if err != nil {
		return err
	}
	if guessed {
		_, _ = fmt.Fprintf(stderr, "extproc: note: asked as POST %s, by the body's fields (--path)\n", *path)
	}
	if *raw {
		var out bytes.Buffer
		if err := json.Indent(&out, answer, "", "  "); err != nil {
			return notOfThisVersion(err)
		}
		_, err = fmt.Fprintln(stdout, out.String())
		return err
	}
	var r decision.Record
	if err := json.Unmarshal(answer, &r); err != nil {
		return notOfThisVersion(err)
	}
	_, err = io.WriteString(stdout, r.Text())
	return err
}

// refusalText returns the message of an error body.
func refusalText(answer []byte) string {
	var body struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(answer, &body) == nil && body.Error.Message != "" {
		return body.Error.Message
	}
	return string(bytes.TrimSpace(answer))
}

func postExplain(ctx context.Context, at, path string, body []byte) ([]byte, error) {
	host, err := adminHost(at)
	if err != nil {
		return nil, config.Usage(err)
	}
	u := "http://" + host + "/debug/explain?path=" + url.QueryEscape(path)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, bytes.NewReader(body))
	if err != nil {
		return nil, config.Usage(fmt.Errorf("explain: %w", err))
	}
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy of the environment
	resp, err := client.Do(req)
	if err != nil {
		return nil, notReached(ctx, at, host, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("explain: the answer broke off (%w): ask again", err)
	}
	if by := resp.Header.Get("Server"); by != admin.ServerName {
		return nil, notTheAdmin(at, by)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("explain: the plugin refuses the request to %s: %s", path, refusalText(answer))
	}
	return answer, nil
}

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
		return "", fmt.Errorf("explain: --admin %s: the status page speaks only http: expected host:port, or http://host:port", at)
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
		return fmt.Errorf("explain: --admin %s: the server there accepts connections but does not answer: %s", at, statusPage)
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

// notOfThisVersion says what to change if the answer is not as this program knows it.
func notOfThisVersion(err error) error {
	return fmt.Errorf("explain: the plugin's answer cannot be read (%w): expected an extproc of the plugin's version", err)
}
