package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// result is what one client has had.
type result struct {
	status   int
	decision string
	err      error // of the body's end
	events   []time.Time
	late     []time.Duration // from the engine's write to the client's read
	text     string
	ids      []uint32
	names    map[string]int // ids of events, and created
	finish   []string
	usages   []string
	done     int
	after    int // events after [DONE]
	errors   int
	begun    time.Time
	roles    int
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, MaxConnsPerHost: 0}}

// ask sends one request and reads its answer; each gets every event's count.
func ask(ctx context.Context, url, path, body string, each func(n int)) *result {
	r := &result{names: map[string]int{}, begun: time.Now()}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		r.err = err
		return r
	}
	req.Header.Set("content-type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		r.err = err
		return r
	}
	defer resp.Body.Close()
	r.status, r.decision = resp.StatusCode, resp.Header.Get("x-baton-decision")
	s := bufio.NewScanner(resp.Body)
	s.Buffer(nil, 4<<20)
	for s.Scan() {
		data, ok := bytes.CutPrefix(s.Bytes(), []byte("data: "))
		if !ok {
			if resp.StatusCode != http.StatusOK {
				r.text += s.Text()
			}
			continue
		}
		now := time.Now()
		r.events = append(r.events, now)
		if r.done > 0 {
			r.after++
		}
		if string(data) == "[DONE]" {
			r.done++
			continue
		}
		r.event(data, now)
		if each != nil {
			each(len(r.events))
		}
	}
	r.err = s.Err()
	return r
}

func (r *result) event(data []byte, now time.Time) {
	var e struct {
		ID      string `json:"id"`
		Created int64  `json:"created"`
		Choices []struct {
			Text  string
			Delta struct {
				Role, Content string
			}
			TokenIDs []uint32 `json:"token_ids"`
			Reason   *string  `json:"finish_reason"`
			SimNS    int64    `json:"sim_ns"`
		}
		Usage json.RawMessage
		Error json.RawMessage
	}
	if err := json.Unmarshal(data, &e); err != nil {
		r.errors++
		return
	}
	if len(e.Error) > 0 {
		r.errors++
		return
	}
	r.names[fmt.Sprintf("%s %d", e.ID, e.Created)]++
	for _, c := range e.Choices {
		r.text += c.Text + c.Delta.Content
		r.ids = append(r.ids, c.TokenIDs...)
		if c.Reason != nil {
			r.finish = append(r.finish, *c.Reason)
		}
		if c.SimNS > 0 {
			r.late = append(r.late, now.Sub(time.Unix(0, c.SimNS)))
		}
		if c.Delta.Role != "" {
			r.roles++
		}
	}
	if len(e.Usage) > 0 && string(e.Usage) != "null" {
		r.usages = append(r.usages, string(e.Usage))
	}
}

// gap is the longest time between two events.
func (r *result) gap() time.Duration {
	var g time.Duration
	for i := 1; i < len(r.events); i++ {
		g = max(g, r.events[i].Sub(r.events[i-1]))
	}
	return g
}

// wrong says what is not as one whole answer, or "".
func (r *result) wrong(prompt []uint32, tokens int) string {
	var said []uint32
	var text strings.Builder
	for range tokens {
		id := nextID(prompt, said)
		said = append(said, id)
		text.WriteString(piece(id))
	}
	switch {
	case r.status != 200:
		return fmt.Sprintf("status %d %.100s", r.status, r.text)
	case r.err != nil:
		return fmt.Sprintf("cut after %d events: %v", len(r.events), r.err)
	case r.errors > 0 && r.done == 0:
		return fmt.Sprintf("an error event after %d events", len(r.events)-r.errors)
	case r.text != text.String():
		at := 0
		for at < len(r.text) && at < text.Len() && r.text[at] == text.String()[at] {
			at++
		}
		return fmt.Sprintf("text differs at %d of %d (has %d)", at, text.Len(), len(r.text))
	case len(r.names) != 1:
		return fmt.Sprintf("%d ids", len(r.names))
	case len(r.finish) != 1 || r.finish[0] != "length":
		return fmt.Sprintf("finish %v", r.finish)
	case r.done != 1 || r.after != 0:
		return fmt.Sprintf("done %d, %d after it", r.done, r.after)
	case r.errors != 0:
		return "an error event"
	case len(r.usages) != 1:
		return fmt.Sprintf("usage %v", r.usages)
	}
	var u struct {
		P int `json:"prompt_tokens"`
		C int `json:"completion_tokens"`
		T int `json:"total_tokens"`
	}
	_ = json.Unmarshal([]byte(r.usages[0]), &u)
	if u.P != len(prompt) || u.C != tokens || u.T != len(prompt)+tokens {
		return "usage " + r.usages[0]
	}
	return ""
}
