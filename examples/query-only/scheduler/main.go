// Command scheduler is an external scheduler, as small as one can be. For each
// prompt it asks the router who would serve it, may think about that, and sends
// the request with the ids that it was told.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	router := flag.String("router", "http://127.0.0.1:10000", "Envoy's listener for schedulers")
	model := flag.String("model", "qwen3-32b", "what to ask for")
	n := flag.Int("n", 4, "how many requests")
	flag.Parse()
	s := &scheduler{url: *router + "/v1/completions", model: *model, http: &http.Client{Timeout: 10 * time.Second}}
	for i := range *n {
		if err := s.schedule(fmt.Sprintf("prompt %d", i+1)); err != nil {
			fmt.Fprintln(os.Stderr, "scheduler:", err)
			os.Exit(1)
		}
	}
}

type scheduler struct {
	url, model string
	http       *http.Client
}

// plan is who would serve a request. Ids go up to 2^64-1: json.Number keeps
// every digit, a float64 does not. Without a prefill worker the first two are
// empty.
type plan struct {
	Prefill     json.Number `json:"prefill_worker_id"`
	PrefillRank json.Number `json:"prefill_dp_rank"`
	Decode      json.Number `json:"decode_worker_id"`
	DecodeRank  json.Number `json:"decode_dp_rank"`
}

func (p plan) String() string {
	decode := "decode=" + p.Decode.String() + "/" + p.DecodeRank.String()
	if p.Prefill == "" {
		return decode
	}
	return "prefill=" + p.Prefill.String() + "/" + p.PrefillRank.String() + " " + decode
}

func (s *scheduler) schedule(prompt string) error {
	body, _, err := s.post(prompt, map[string]any{"annotations": []string{"query_instance_id:"}})
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	var answer struct {
		NVExt struct {
			WorkerID plan `json:"worker_id"`
		} `json:"nvext"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	p := answer.NVExt.WorkerID
	nvext := map[string]any{"decode_worker_id": p.Decode, "dp_rank": p.DecodeRank}
	if p.Prefill != "" {
		nvext["prefill_worker_id"], nvext["prefill_dp_rank"] = p.Prefill, p.PrefillRank
	}
	_, decision, err := s.post(prompt, nvext)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	for part := range strings.SplitSeq(p.String(), " ") {
		if !strings.Contains(decision, part+" reason=named") {
			return fmt.Errorf("asked %s, but the request went elsewhere: %s", p, decision)
		}
	}
	fmt.Printf("%s: told %s, sent there, served\n", prompt, p)
	return nil
}

// post sends the request with an nvext object, and returns the answer and what
// the router says of its decision.
func (s *scheduler) post(prompt string, nvext map[string]any) (body []byte, decision string, err error) {
	text, err := json.Marshal(map[string]any{"model": s.model, "prompt": prompt, "max_tokens": 3, "nvext": nvext})
	if err != nil {
		return nil, "", err
	}
	req, err := http.NewRequest(http.MethodPost, s.url, bytes.NewReader(text))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Debug-Decision", "1")
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	return body, resp.Header.Get("X-Baton-Decision"), err
}
