//go:build example

package example

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Server is a worker of the engine: it answers a prompt with as many of its words as are asked
// for, backwards. It is strict: a member that is not its own, or KV that is not there, is an
// error. Safe for concurrent use.
type Server struct {
	Addr string // where others reach it

	mu   sync.Mutex // guards the fields below
	kept map[uint64]string
	made int // answers
}

// request is a body; kept is where prefill keeps KV.
type request struct {
	Model  string  `json:"model"`
	Prompt string  `json:"prompt"`
	Max    int     `json:"max_tokens"`
	Stream bool    `json:"stream"`
	Keep   *uint64 `json:"keep"`
	Take   *kept   `json:"take"`
}

type kept struct {
	At string `json:"at"`
	ID uint64 `json:"id"`
}

// ServeHTTP answers the pages, requests, and those who fetch KV.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/about":
		_ = json.NewEncoder(w).Encode(About{Model: "m", Block: 16, Blocks: 1000, Life: s.Addr})
	case "/kv":
		var id uint64
		_, _ = fmt.Sscan(r.URL.Query().Get("id"), &id)
		s.mu.Lock()
		prompt, ok := s.kept[id]
		delete(s.kept, id)
		s.mu.Unlock()
		if !ok {
			fail(w, http.StatusGone, "nothing is kept under that number")
			return
		}
		_, _ = io.WriteString(w, prompt)
	case "/v1/completions":
		s.complete(w, r)
	case "/health", "/v1/models":
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
	default:
		fail(w, http.StatusNotFound, "no such page")
	}
}

// fail answers with the engine's own kind of error.
func fail(w http.ResponseWriter, status int, fault string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"fault": fault})
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	var q request
	in := json.NewDecoder(r.Body)
	in.DisallowUnknownFields()
	if err := in.Decode(&q); err != nil {
		fail(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	from := q.Prompt
	if q.Take != nil {
		var err error
		from, err = fetch(r, q.Take)
		if err != nil {
			fail(w, http.StatusBadGateway, err.Error())
			return
		}
	}
	words := strings.Fields(from)
	out := make([]string, 0, q.Max)
	for i := len(words) - 1; i >= 0 && len(out) < q.Max; i-- {
		out = append(out, words[i])
	}
	answer := map[string]any{
		"id": "x", "object": "text_completion", "model": q.Model,
		"choices": []any{map[string]any{"index": 0, "text": strings.Join(out, " "), "finish_reason": "length"}},
	}
	s.mu.Lock()
	s.made++
	if q.Keep != nil {
		if s.kept == nil {
			s.kept = map[uint64]string{}
		}
		s.kept[*q.Keep] = q.Prompt
		answer["kept"] = kept{s.Addr, *q.Keep}
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// fetch gets the KV that a prefill worker keeps.
func fetch(r *http.Request, from *kept) (string, error) {
	ask, err := http.NewRequestWithContext(r.Context(), http.MethodGet, fmt.Sprintf("http://%s/kv?id=%d", from.At, from.ID), nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(ask)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", from.At, b)
	}
	return string(b), err
}

// Counts returns how many answers the worker has made, and how much KV it keeps.
func (s *Server) Counts() (made, keeps int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made, len(s.kept)
}
