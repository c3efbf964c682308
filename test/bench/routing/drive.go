package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// shot is one request and when it is to be sent, from the start of a run.
type shot struct {
	at   time.Duration
	body []byte
}

// heard is what came of one shot.
type heard struct {
	late, ttft     time.Duration // after it was to be sent, both
	prompt, cached int           // tokens, as the answer's usage says
	err            error
}

// client sends requests and reads streamed answers. Safe for concurrent use.
type client struct {
	url  string
	http *http.Client
}

func newClient(url string) *client {
	return &client{url: url, http: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 4096, DisableCompression: true,
	}}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// drive sends every shot at its time, whether or not earlier ones have been
// answered, and returns when all have. Times count from when a shot was to be
// sent: what this process is late by is waiting for the client too.
func (c *client) drive(ctx context.Context, shots []shot) []heard {
	out := make([]heard, len(shots))
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	var wg sync.WaitGroup
	start := time.Now()
	for i := range shots {
		due := start.Add(shots[i].at)
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
			wg.Go(func() { out[i] = c.send(ctx, shots[i].body, due) })
		case <-ctx.Done():
			out[i].err = context.Cause(ctx)
		}
	}
	wg.Wait()
	return out
}

// send sends one request that was due at that time.
func (c *client) send(ctx context.Context, body []byte, due time.Time) (h heard) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return heard{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	h.late = time.Since(due)
	resp, err := c.http.Do(req)
	if err != nil {
		h.err = err
		return h
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		h.err = fmt.Errorf("status %d: %s", resp.StatusCode, b)
		return h
	}
	h.err = h.read(resp.Body, due)
	return h
}

// read reads a streamed answer to its end.
func (h *heard) read(r io.Reader, due time.Time) error {
	lines, whole := bufio.NewScanner(r), false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		switch {
		case !ok:
			continue
		case h.ttft == 0:
			h.ttft = time.Since(due)
		}
		whole = string(data) == "[DONE]"
		if whole {
			continue
		}
		var chunk struct {
			Error json.RawMessage `json:"error"`
			Usage *struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if err := json.Unmarshal(data, &chunk); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		if chunk.Error != nil {
			return fmt.Errorf("answer: %.300s", chunk.Error)
		}
		if chunk.Usage != nil {
			h.prompt, h.cached = chunk.Usage.Prompt, chunk.Usage.Details.Cached
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if !whole || h.prompt == 0 {
		return errors.New("answer: it broke off: expected usage and the end mark")
	}
	return nil
}
