package enginesim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const maxBodyBytes = 64 << 20

// apiHandler handles all requests at the worker's own port.
func (s *Sim) apiHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.generate(apiChat))
	mux.HandleFunc("POST /v1/completions", s.generate(apiCompletion))
	for _, p := range []string{"GET /health", "GET /ready"} {
		mux.HandleFunc(p, s.health)
	}
	mux.HandleFunc("GET /v1/models", s.models)
	s.engine.pages(mux)
	if s.cfg.Engine != worker.TensorRTLLM {
		s.apiPages(mux)
	}
	for _, p := range []string{"POST /flush_cache", "GET /flush_cache"} {
		mux.HandleFunc(p, s.flushCache)
	}
	mux.Handle("/sim/", s.controlHandler())
	return s.handlers.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if f, _, _ := s.fault.peek(); f.closes(at.String()) {
			panic(http.ErrAbortHandler)
		}
		if !s.admits(r) {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		serveKnown(mux, w, r)
	}))
}

// guarded are the paths below which vLLM requires its key. SGLang requires its key
// everywhere but below the paths of open (vLLM 0.32 GUARDED_PREFIX, SGLang 0.5.23
// decide_request_auth).
var (
	guarded = []string{"/v1", "/v2", "/inference", "/cohere"}
	open    = []string{"/health", "/ready", "/metrics"}
)

// admits reports whether a request has the key, or needs none.
func (s *Sim) admits(r *http.Request) bool {
	below := func(p string) bool { return strings.HasPrefix(r.URL.Path, p) }
	switch {
	case s.cfg.APIKey == "", below("/sim/"), r.Method == http.MethodOptions:
		return true
	case s.vllm() && !slices.ContainsFunc(guarded, below), !s.vllm() && slices.ContainsFunc(open, below):
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "bearer") && key == s.cfg.APIKey
}

// serveKnown serves the paths that the mux has, and refuses others as engines do.
func serveKnown(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	if _, pattern := mux.Handler(r); pattern != "" {
		mux.ServeHTTP(w, r)
		return
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		other := *r
		other.Method = method
		if _, pattern := mux.Handler(&other); pattern != "" {
			w.Header().Set("Allow", method)
			writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
			return
		}
	}
	writeJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
}

// generate handles the generation requests of one API.
func (s *Sim) generate(kind api) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		body, err := readBody(r)
		c := &call{s: s, kind: kind, ctx: r.Context(), w: w, started: started, asked: s.rankAsked(r.Context())}
		rec := s.log.begin(r, body, started, c.asked)
		c.rec = rec
		if err != nil {
			err = badRequest("Invalid request: body: %v", err)
		} else if s.foreign(r.Header, kind == apiGenerate) {
			err = errForeign
		} else {
			err = c.serve(kind, body, r.Header)
		}
		s.log.struck(rec, c.fault.Mode)
		if err != nil {
			c.fail(err)
		}
	}
}

// errForeign is what engines say of a body that is said to be something else than JSON.
var errForeign = badRequest("Unsupported Media Type: Only 'application/json' is allowed")

// foreign reports whether an engine refuses the type of a body (docs/engines.md#body-type).
// Some pages take one without a type. What TensorRT-LLM does is not known.
func (s *Sim) foreign(h http.Header, mayLack bool) bool {
	media, _, _ := strings.Cut(strings.ToLower(h.Get("Content-Type")), ";")
	return media != "application/json" && s.cfg.Engine != worker.TensorRTLLM && (media != "" || !mayLack)
}

func readBody(r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBodyBytes {
		return nil, errors.New("too large")
	}
	if r.ContentLength > 0 {
		body := make([]byte, r.ContentLength)
		_, err := io.ReadFull(r.Body, body)
		if err == nil {
			// The server watches for a client that goes away only after the body was read
			// to its end.
			_, err = r.Body.Read(make([]byte, 1))
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return body, err
	}
	return io.ReadAll(io.LimitReader(r.Body, maxBodyBytes))
}

// fail ends a call without an answer: with an error status, an error inside a stream that
// has begun, or a connection closed in mid-body.
func (c *call) fail(err error) {
	ae := &apiError{status: http.StatusInternalServerError, reason: "internal", msg: err.Error()}
	switch {
	case errors.As(err, &ae):
	case errors.Is(err, errTruncate):
		ae.reason, ae.status = "fault", 0
	case errors.Is(err, errEmpty):
		ae.reason, ae.status = "fault", http.StatusOK
	case c.clientLeft(err):
		c.s.log.finish(c.rec, outcome{outcome: OutcomeCancelled, err: "client closed the connection"})
		panic(http.ErrAbortHandler)
	}
	c.s.log.finish(c.rec, outcome{outcome: OutcomeFailed, reason: ae.reason, err: ae.msg, status: ae.status})
	switch {
	case errors.Is(err, errTruncate):
		panic(http.ErrAbortHandler)
	case errors.Is(err, errEmpty):
		if c.q.stream { // the head is sent first, as by an engine whose generator dies
			_ = c.sendHeaders()
		}
	case !c.headers:
		c.s.refuseAs(c.kind, c.w, ae)
	case c.q.stream:
		c.failStream(ae)
	default:
		b, _ := json.Marshal(c.s.errorAs(c.kind, ae, false))
		_, _ = c.w.Write(b)
	}
}

// clientLeft reports whether err comes from the end of the client's connection.
func (c *call) clientLeft(err error) bool {
	return c.ctx.Err() != nil || errors.Is(err, context.Canceled) || strings.HasPrefix(err.Error(), "client is gone")
}

// errorBody is SGLang's ErrorResponse.
type errorBody struct {
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) body() errorBody {
	kind := "InternalServerError"
	switch {
	case e.status == http.StatusNotFound:
		kind = "NotFoundError"
	case e.status < 500:
		kind = "BadRequestError"
	}
	return errorBody{Object: "error", Message: e.msg, Type: kind, Code: e.status}
}

func writeError(w http.ResponseWriter, e *apiError) { writeJSON(w, e.status, e.body()) }

// refuse answers an error in the engine's words.
func (s *Sim) refuse(w http.ResponseWriter, e *apiError) { s.refuseAs(apiChat, w, e) }

// refuseAs is refuse in the form of an API.
func (s *Sim) refuseAs(kind api, w http.ResponseWriter, e *apiError) {
	if e.retryAfter != "" {
		w.Header().Set("Retry-After", e.retryAfter)
	}
	if e.status/100 == 3 {
		w.Header().Set("Location", "/elsewhere")
	}
	writeJSON(w, e.status, s.errorAs(kind, e, false))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (s *Sim) health(w http.ResponseWriter, r *http.Request) {
	if f, _, _ := s.fault.peek(); f.Health {
		switch f.Mode {
		case FaultHang:
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		case FaultError:
			w.WriteHeader(f.Status)
			return
		default:
		}
	}
	if s.cfg.Engine == worker.SGLang && !s.generatesInTime(r.Context()) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// SGLang's page asks for one token, and looks each second whether the scheduler has sent
// any since (docs/engines.md#health).
const (
	healthLooks = time.Second
	healthGives = 20 * time.Second
)

// generatesInTime waits as SGLang's page does. The token that it asks for comes as soon as
// no prompt is being computed; of other requests, whenever one has been.
func (s *Sim) generatesInTime(ctx context.Context) bool {
	asked := time.Now()
	for time.Since(asked) < healthGives {
		if pause(ctx, healthLooks) != nil {
			panic(http.ErrAbortHandler)
		}
		if slices.ContainsFunc(s.ranks, func(r *rank) bool { return r.heard(asked) }) {
			return true
		}
	}
	return false
}

func (s *Sim) models(w http.ResponseWriter, _ *http.Request) {
	list, owner := []map[string]any{}, string(s.cfg.Engine)
	switch {
	case s.vllm():
		owner = "vllm"
	case s.cfg.Engine == worker.TensorRTLLM:
		owner = "tensorrt_llm"
	}
	for i, m := range slices.Concat(s.cfg.Models, s.cfg.Adapters) {
		one := map[string]any{
			"id": m, "object": "model", "created": s.birth.at.Unix(), "owned_by": owner, "max_model_len": s.cfg.MaxModelLen,
			"root": m, "parent": nil,
		}
		if i >= len(s.cfg.Models) {
			one["root"], one["parent"], one["max_model_len"] = "/adapters/"+m, s.cfg.Models[0], nil
		}
		if s.vllm() {
			one["permission"] = []map[string]any{{
				"id": "modelperm-" + newProcessID(), "object": "model_permission", "created": s.birth.at.Unix(), "organization": "*", "group": nil,
				"allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false,
				"allow_view": true, "allow_fine_tuning": false, "is_blocking": false,
			}}
		}
		list = append(list, one)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// clear empties the cache of every rank. It returns the first rank whose blocks are held
// by requests, or -1.
func (s *Sim) clear() int {
	for _, r := range s.ranks {
		if !r.clear() {
			return r.id
		}
	}
	return -1
}

func (s *Sim) flushCache(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = nil // the engine sends no Content-Type
	if r := s.clear(); r >= 0 {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "Flush cache failed: requests hold KV blocks of rank "+strconv.Itoa(r)+".")
		return
	}
	_, _ = io.WriteString(w, "Cache flushed.\n")
}

// tokenize answers POST /tokenize: a prompt (a string, or at SGLang also a list of
// strings), or messages with tools.
func (s *Sim) tokenize(w http.ResponseWriter, r *http.Request) {
	if s.foreign(r.Header, false) {
		s.refuse(w, errForeign)
		return
	}
	body, err := readBody(r)
	if err != nil || !json.Valid(body) {
		s.refuse(w, badRequest("Invalid request: body is not valid JSON"))
		return
	}
	if s.cfg.Published != nil {
		s.tokenizePublished(w, body)
		return
	}
	var prompt, messages, tools []byte
	generation := true
	err = eachField(body, func(key string, v []byte) error {
		switch key {
		case "prompt":
			prompt = v
		case "messages":
			messages = v
		case "tools":
			tools = v
		case "add_generation_prompt":
			generation = string(v) != "false"
		}
		return nil
	})
	if err == nil && isNull(prompt) == isNull(messages) {
		err = errors.New("expected exactly one of prompt and messages")
	}
	var lists [][]uint32
	var list bool
	if err == nil && !isNull(messages) {
		lists = make([][]uint32, 1)
		chat := chatWriter{marks: !s.vllm()}
		err = chat.prompt(messages, tools, generation)
		lists[0] = chat.tokens
	} else if err == nil {
		lists, list, err = readPromptUnion(prompt)
	}
	if list && s.vllm() {
		err = errors.New("prompt: expected a string")
	}
	if err != nil {
		s.refuse(w, refusalOf(err))
		return
	}
	if f, _, _ := s.fault.peek(); f.Mode == FaultTemplate && !isNull(messages) {
		lists[0] = append(lists[0], tokenStart)
	}
	s.writeTokens(w, lists, list)
}

func (s *Sim) writeTokens(w http.ResponseWriter, lists [][]uint32, list bool) {
	b := []byte(`{"tokens":`)
	if list {
		b = append(b, '[')
	}
	counts := make([]int, 0, len(lists))
	for i, ids := range lists {
		if i > 0 {
			b = append(b, ',')
		}
		b = slices.Grow(append(b, '['), 7*len(ids))
		for j, id := range ids {
			if j > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, uint64(id), 10)
		}
		b = append(b, ']')
		counts = append(counts, len(ids))
	}
	b = append(b, map[bool]string{true: "],", false: ","}[list]...)
	b = append(b, `"count":`...)
	if list {
		c, _ := json.Marshal(counts)
		b = append(b, c...)
	} else {
		b = strconv.AppendInt(b, int64(counts[0]), 10)
	}
	b = strconv.AppendInt(append(b, `,"max_model_len":`...), int64(s.cfg.MaxModelLen), 10)
	if s.vllm() {
		b = append(b, `,"token_strs":null`...)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '}'))
}
