package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// What clients of the drill ask for. Prompts have 2,048 tokens, of which 512 are those of one of 16 beginnings.
const (
	drillPath   = "/v1/completions"
	drillLimit  = 20 * time.Second // a client waits no longer for the whole answer
	drillTokens = 64               // of an answer

	beginnings, begins, own = 16, 512, 1536
)

// drillShot returns the nth request, due at that time. Every other one is streamed.
func drillShot(n int, at time.Duration) shot {
	var words scale
	text := words.appendWords(nil, replay.Block(1+n%beginnings), begins)
	text = words.appendWords(text, replay.Block(1000+n), own)
	more := ""
	if n%2 == 1 {
		more = `,"stream":true,"stream_options":{"include_usage":true}`
	}
	return shot{at: at, body: fmt.Appendf(nil, `{"model":"%s","prompt":"%s","max_tokens":%d%s}`, modelName, text, drillTokens, more)}
}

// answer is what a client saw of one request. Times count from when it was due.
type answer struct {
	At      time.Duration // when it was due, from the run's beginning
	Late    time.Duration // until it was sent
	Took    time.Duration // until its whole answer, or its failure
	Failure string        // why there is no whole answer; "": there is
}

// ask sends one request that was due at that time and reads its answer to its end.
func (c *client) ask(ctx context.Context, s shot, due time.Time) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, drillLimit)
	defer cancel()
	a = answer{At: s.at, Late: time.Since(due)}
	failure := c.failure(ctx, s.body)
	a.Took = time.Since(due)
	if failure != nil {
		a.Failure = failure.Error()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && a.Failure != "" {
		a.Failure = fmt.Sprintf("none in %v", drillLimit)
	}
	return a
}

// The ways to fail that have no status.
var (
	errUnsent    = errors.New("no connection")
	errCut       = errors.New("cut")               // before anything of its answer came
	errMidStream = errors.New("cut in mid-stream") // or ended with an error there
	errEvent     = errors.New("error in a 200")
)

// failure returns why a request has no whole answer.
func (c *client) failure(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return errUnsent
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, resp.Body)
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return wholeAnswer(resp.Body)
}

// wholeAnswer reads an answer, streamed or not, and returns what it lacks.
func wholeAnswer(r io.Reader) error {
	text, broken := io.ReadAll(r)
	if !bytes.HasPrefix(text, []byte("data: ")) {
		if broken != nil {
			return errCut
		}
		return usageOf(text)
	}
	told, begun := errCut, false
	for line := range bytes.Lines(text) {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		switch {
		case !ok:
			continue
		case string(data) == "[DONE]":
			return told
		}
		told = usageOf(data)
		switch {
		case errors.Is(told, errEvent) && begun:
			return errMidStream
		case errors.Is(told, errEvent):
			return told
		}
		begun = true
	}
	return errMidStream
}

// usageOf returns an error if an answer, or a chunk of one, does not tell of all the tokens that were asked for.
func usageOf(text []byte) error {
	var a struct {
		Error json.RawMessage
		Usage struct {
			Tokens int `json:"completion_tokens"`
		}
	}
	switch err := json.Unmarshal(text, &a); {
	case err != nil:
		return errCut
	case a.Error != nil:
		return errEvent
	case a.Usage.Tokens != drillTokens:
		return errCut
	default:
		return nil
	}
}

// shots are the requests of one cell: an even rate, times factor from one time to another.
func drillShots(rate float64, until time.Duration, from, to time.Duration, factor float64) (out []shot) {
	for at := time.Duration(0); at < until; {
		out = append(out, drillShot(len(out), at))
		r := rate
		if at >= from && at < to {
			r *= factor
		}
		at += time.Duration(float64(time.Second) / r)
	}
	return out
}

// askAll sends every shot at its time, whatever came of earlier ones, and returns when all have ended.
func (c *client) askAll(ctx context.Context, shots []shot, start time.Time) []answer {
	out := make([]answer, len(shots))
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	var wg sync.WaitGroup
	for i := range shots {
		due := start.Add(shots[i].at)
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
			wg.Go(func() { out[i] = c.ask(ctx, shots[i], due) })
		case <-ctx.Done():
			out[i] = answer{At: shots[i].at, Failure: context.Cause(ctx).Error()}
		}
	}
	wg.Wait()
	return out
}
