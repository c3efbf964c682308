// Package sidecar simulates the routing sidecar that llm-d and KServe run in front of the
// engine of a decode pod (llm-d-router, pkg/sidecar/proxy, connector nixlv2, August 2026).
//
// # What it does
//
// A request to chat/completions or completions with the header x-prefiller-host-port is
// sent to the prefill worker that the header names, the first of a list: with max_tokens 1
// (and max_completion_tokens, if the request has it), without a stream, and with
// kv_transfer_params that ask it to hold its KV. The kv_transfer_params of its answer go
// into the client's own request, which then goes to the engine beside the sidecar. If
// prefill answers with an error, that is the answer; if prefill cannot be reached, 502. The
// header goes to nobody. Every other request goes to the engine as it came.
//
// # What it does not do
//
// It changes no value of a body that it does not set: the original reads and writes all of
// them, and so rounds great numbers. It knows no other connector, no data-parallel ranks, no encoder, no TLS, no retries and
// no list of allowed hosts. It is part of no product: tests and demonstrations run it.
package sidecar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Header names the prefill worker of a request.
const Header = "X-Prefiller-Host-Port"

// Sidecar is the handler of one decode pod's sidecar.
type Sidecar struct {
	engine   *httputil.ReverseProxy
	prefills http.RoundTripper

	mu   sync.Mutex
	seen []string // guarded by mu: the header of each generation, as it came; "": none
}

// New returns the sidecar of the engine at the address engine, as host:port.
func New(engine string) *Sidecar {
	to := &url.URL{Scheme: "http", Host: engine}
	return &Sidecar{
		engine: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
			FlushInterval: -1, // each event of a stream at once
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				fault(w, http.StatusBadGateway, err)
			},
		},
		prefills: &http.Transport{DisableKeepAlives: true},
	}
}

// Seen returns the header of each generation so far, as it came; "" for one without.
func (s *Sidecar) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *Sidecar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, "/")
	if r.Method != http.MethodPost || path != "/v1/completions" && path != "/v1/chat/completions" {
		s.engine.ServeHTTP(w, r) // the header goes with it, as there
		return
	}
	named := r.Header.Values(Header)
	r.Header.Del(Header)
	s.mu.Lock()
	s.seen = append(s.seen, strings.Join(named, ";"))
	s.mu.Unlock()
	if len(named) == 1 {
		named = strings.Split(named[0], ",")
	}
	if len(named) == 0 || strings.TrimSpace(named[0]) == "" {
		s.engine.ServeHTTP(w, r)
		return
	}
	s.split(w, r, strings.TrimSpace(named[0]))
}

// split serves a request with the prefill worker at the address prefill.
func (s *Sidecar) split(w http.ResponseWriter, r *http.Request, prefill string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has left
	}
	var own map[string]json.RawMessage
	err = json.Unmarshal(body, &own)
	if err != nil {
		fault(w, http.StatusBadRequest, err)
		return
	}
	answer, err := s.ask(r, prefill, prefillBody(own))
	if err != nil {
		fault(w, http.StatusBadGateway, err)
		return
	}
	if answer.status >= 300 {
		maps.Copy(w.Header(), answer.header)
		w.WriteHeader(answer.status)
		_, _ = w.Write(answer.body)
		return
	}
	var said struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	err = json.Unmarshal(answer.body, &said)
	if err != nil {
		fault(w, http.StatusBadRequest, err)
		return
	}
	if said.Params != nil {
		own["kv_transfer_params"] = said.Params
	}
	replace(r, own)
	s.engine.ServeHTTP(w, r)
}

// prefillBody returns prefill's body for a client's.
func prefillBody(own map[string]json.RawMessage) map[string]json.RawMessage {
	out := maps.Clone(own)
	delete(out, "stream_options")
	out["stream"] = json.RawMessage("false")
	out["max_tokens"] = json.RawMessage("1")
	if _, given := own["max_completion_tokens"]; given {
		out["max_completion_tokens"] = json.RawMessage("1")
	}
	out["kv_transfer_params"] = json.RawMessage(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_block_ids":null,"remote_engine_id":null,"remote_host":null,"remote_port":null}`)
	return out
}

type answered struct {
	status int
	header http.Header
	body   []byte
}

// ask sends the prefill leg. It ends with the client's request.
func (s *Sidecar) ask(r *http.Request, prefill string, body map[string]json.RawMessage) (answered, error) {
	leg := r.Clone(r.Context())
	leg.RequestURI, leg.URL.Scheme, leg.URL.Host, leg.Host = "", "http", prefill, prefill
	replace(leg, body)
	resp, err := s.prefills.RoundTrip(leg)
	if err != nil {
		return answered{}, fmt.Errorf("prefill: %w", err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return answered{}, fmt.Errorf("prefill's answer: %w", err)
	}
	return answered{resp.StatusCode, resp.Header, got}, nil
}

// replace gives the request another body, of values as they were read.
func replace(r *http.Request, body map[string]json.RawMessage) {
	b := []byte{'{'}
	for _, key := range slices.Sorted(maps.Keys(body)) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		name, _ := json.Marshal(key) // of a text: no error
		b = append(append(append(b, name...), ':'), body[key]...)
	}
	b = append(b, '}')
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	r.Header.Set("Content-Length", strconv.Itoa(len(b)))
	r.Header.Del("Transfer-Encoding")
	r.TransferEncoding = nil
}

// fault answers as the sidecar does when it fails itself.
func fault(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "error", "message": err.Error(), "code": status})
}
