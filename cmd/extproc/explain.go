package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/decision"
)

// explainCommand asks a running plugin what it would decide for a request. Nothing is
// routed and nothing is booked.
func explainCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := config.NewFlagSet("explain", "Asks a running plugin what it would decide for a request body, and why.\nThe body is read from the file named, or from standard input where none is (or -).", stderr)
	at := fs.String("admin", "http://"+config.Default().Admin.Listen, "admin `address` of the plugin, with or without http://")
	path := fs.String("path", "/v1/chat/completions", "request path")
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := postExplain(ctx, *at, *path, body)
	if err != nil {
		return err
	}
	if *raw {
		var out bytes.Buffer
		if err := json.Indent(&out, answer, "", "  "); err != nil {
			return fmt.Errorf("explain: the plugin's answer: %w", err)
		}
		_, err = fmt.Fprintln(stdout, out.String())
		return err
	}
	var r decision.Record
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("explain: the plugin's answer: %w", err)
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
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, notReached(ctx, at, host, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	if by := resp.Header.Get("Server"); by != admin.ServerName {
		return nil, notTheAdmin(at, by)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New("explain: the plugin refuses the request: " + refusalText(answer))
	}
	return answer, nil
}
