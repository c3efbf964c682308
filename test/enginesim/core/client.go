package core

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// Client inspects and breaks a worker that runs in another process. BaseURL is the
// worker's API ("http://ip:port") or its control address. A nil HTTP means
// http.DefaultClient. Safe for concurrent use.
type Client struct {
	BaseURL string
	HTTP    *http.Client
}

// State asks for the worker's state, with its cached blocks if blocks is set.
func (c Client) State(ctx context.Context, blocks bool) (State, error) {
	path := "/sim/state"
	if blocks {
		path += "?blocks=1"
	}
	var st State
	return st, c.do(ctx, http.MethodGet, path, nil, &st)
}

// Requests asks for the kept requests that arrived after seq.
func (c Client) Requests(ctx context.Context, seq uint64) ([]Request, error) {
	var rs []Request
	err := c.do(ctx, http.MethodGet, "/sim/requests?since="+strconv.FormatUint(seq, 10), nil, &rs)
	return rs, err
}

// SetFault makes the worker faulty.
func (c Client) SetFault(ctx context.Context, f Fault) error {
	return c.do(ctx, http.MethodPost, "/sim/fault", f, nil)
}

// Reset forgets requests, violations and counts.
func (c Client) Reset(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/sim/reset", nil, nil)
}

// DropEvents keeps the next n event batches of a rank from its subscribers.
func (c Client) DropEvents(ctx context.Context, rank, n int) error {
	return c.do(ctx, http.MethodPost, "/sim/events", map[string]int{"rank": rank, "drop": n}, nil)
}

// Lie makes the worker hold something else than its KV events say.
func (c Client) Lie(ctx context.Context, l Lie) error {
	return c.do(ctx, http.MethodPost, "/sim/lie", l, nil)
}

// FlushCache empties the prefix cache of every rank.
func (c Client) FlushCache(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/flush_cache", nil, nil)
}

func (c Client) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("enginesim: %s: %w", path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.BaseURL+path, body)
	if err != nil {
		return fmt.Errorf("enginesim: %s: %w", path, err)
	}
	req.Close = true // a connection that is kept may be one that a fault is closing, and a POST is not sent again
	h := c.HTTP
	if h == nil {
		h = http.DefaultClient
	}
	resp, err := h.Do(req)
	if err != nil {
		return fmt.Errorf("enginesim: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		return fmt.Errorf("enginesim: %s %s: %w", method, path, err)
	}
	return nil
}
