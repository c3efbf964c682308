package core

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
)

const maxBodyBytes = 64 << 20

// Pages are the pages of the HTTP API.
type Pages struct {
	s         *Sim
	Responses *responseStore
}

func newPages(s *Sim) *Pages {
	return &Pages{s: s, Responses: &responseStore{members: s.engine.Members, on: s.cfg.ResponseStore, refuses: s.engine.NoResponses, kept: make(map[string]*keptAnswer)}}
}

// Handler handles all requests at the worker's own port.
func (p *Pages) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", p.Generate(APIChat))
	mux.HandleFunc("POST /v1/completions", p.Generate(APICompletion))
	for _, path := range []string{"GET /health", "GET /ready"} {
		mux.HandleFunc(path, p.Health)
	}
	mux.HandleFunc("GET /v1/models", p.models)
	p.s.engine.Pages(mux)
	for _, path := range []string{"POST /flush_cache", "GET /flush_cache"} {
		mux.HandleFunc(path, p.flushCache)
	}
	mux.Handle("/sim/", controlHandler(p.s))
	return p.s.handlers.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if f, _, _ := p.s.fault.peek(); f.closes(at.String()) {
			panic(http.ErrAbortHandler)
		}
		if !p.admits(r) {
			WriteJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		serveKnown(mux, w, r)
	}))
}

// admits reports whether a request has the key, or needs none.
func (p *Pages) admits(r *http.Request) bool {
	switch {
	case p.s.cfg.APIKey == "", strings.HasPrefix(r.URL.Path, "/sim/"), r.Method == http.MethodOptions, !p.s.engine.Keyed(r.URL.Path):
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "bearer") && key == p.s.cfg.APIKey
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
			WriteJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
			return
		}
	}
	WriteJSON(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
}

// Generate handles the generation requests of one API.
func (p *Pages) Generate(kind API) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		body, err := ReadBody(r)
		s := p.s
		c := &Call{s: s, kind: kind, ctx: r.Context(), w: w, started: started, Asked: s.ports.rankAsked(r.Context())}
		rec := s.log.begin(r, body, started, c.Asked)
		c.rec, c.Seq = rec, rec.req.Seq
		if err != nil {
			err = BadRequest("Invalid request: body: %v", err)
		} else if p.Foreign(r.Header, kind == APIGenerate) {
			err = ErrForeign
		} else {
			err = c.serve(kind, body, r.Header)
		}
		s.log.struck(rec, c.Fault.Mode)
		if err != nil {
			c.fail(err)
		}
	}
}

// ErrForeign is what engines say of a body that is said to be something else than JSON.
var ErrForeign = BadRequest("Unsupported Media Type: Only 'application/json' is allowed")

// Foreign reports whether the engine refuses the type of a body (docs/engines.md#body-type).
// Some pages take one without a type.
func (p *Pages) Foreign(h http.Header, mayLack bool) bool {
	media, _, _ := strings.Cut(strings.ToLower(h.Get("Content-Type")), ";")
	return media != "application/json" && !p.s.engine.AnyBody && (media != "" || !mayLack)
}

// ReadBody reads a request's body.
func ReadBody(r *http.Request) ([]byte, error) {
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
func (c *Call) fail(err error) {
	ae := &APIError{Status: http.StatusInternalServerError, Reason: "internal", Msg: err.Error()}
	switch {
	case errors.As(err, &ae):
	case errors.Is(err, errTruncate):
		ae.Reason, ae.Status = "fault", 0
	case errors.Is(err, errEmpty):
		ae.Reason, ae.Status = "fault", http.StatusOK
	case clientLeft(c.ctx, err):
		c.s.log.finish(c.rec, outcome{outcome: OutcomeCancelled, err: "client closed the connection"})
		panic(http.ErrAbortHandler)
	}
	c.s.log.finish(c.rec, outcome{outcome: OutcomeFailed, reason: ae.Reason, err: ae.Msg, status: ae.Status})
	switch {
	case errors.Is(err, errTruncate):
		panic(http.ErrAbortHandler)
	case errors.Is(err, errEmpty):
		if c.Q.Stream { // the head is sent first, as by an engine whose generator dies
			_ = c.sendHeaders()
		}
	case !c.headers:
		c.s.Pages.refuseAs(c.kind, c.w, ae)
	case c.Q.Stream:
		c.failStream(ae)
	default:
		b, _ := json.Marshal(c.s.Pages.errorAs(c.kind, ae, false))
		_, _ = c.w.Write(b)
	}
}

// clientLeft reports whether err comes from the end of the client's connection.
func clientLeft(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled) || strings.HasPrefix(err.Error(), "client is gone")
}

// ErrorBody is the error of most engines (SGLang's ErrorResponse).
type ErrorBody struct {
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// Body returns the error in the form of most engines.
func (e *APIError) Body() ErrorBody {
	kind := "InternalServerError"
	switch {
	case e.Status == http.StatusNotFound:
		kind = "NotFoundError"
	case e.Status < 500:
		kind = "BadRequestError"
	}
	return ErrorBody{Object: "error", Message: e.Msg, Type: kind, Code: e.Status}
}

// WriteError answers an error in the form of most engines.
func WriteError(w http.ResponseWriter, e *APIError) { WriteJSON(w, e.Status, e.Body()) }

// Refuse answers an error in the engine's words.
func (p *Pages) Refuse(w http.ResponseWriter, e *APIError) { p.refuseAs(APIChat, w, e) }

// refuseAs is refuse in the form of an API.
func (p *Pages) refuseAs(kind API, w http.ResponseWriter, e *APIError) {
	if e.retryAfter != "" {
		w.Header().Set("Retry-After", e.retryAfter)
	}
	if e.Status/100 == 3 {
		w.Header().Set("Location", "/elsewhere")
	}
	WriteJSON(w, e.Status, p.errorAs(kind, e, false))
}

// WriteJSON answers a value.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// Health answers GET /health.
func (p *Pages) Health(w http.ResponseWriter, r *http.Request) {
	if f, _, _ := p.s.fault.peek(); f.Health {
		switch f.Mode {
		case FaultHang:
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		case FaultError:
			w.WriteHeader(f.Status)
			return
		case FaultSlow:
			if Pause(r.Context(), time.Duration(f.DelayMS)*time.Millisecond) != nil {
				panic(http.ErrAbortHandler)
			}
		default:
		}
	}
	if healthy := p.s.engine.Healthy; healthy != nil && !healthy(r.Context()) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (p *Pages) models(w http.ResponseWriter, _ *http.Request) {
	list, cfg := []map[string]any{}, p.s.cfg
	for i, m := range slices.Concat(cfg.Models, cfg.Adapters) {
		one := map[string]any{
			"id": m, "object": "model", "created": p.s.Birth.At.Unix(), "owned_by": p.s.engine.Owner, "max_model_len": cfg.MaxModelLen,
			"root": m, "parent": nil,
		}
		if i >= len(cfg.Models) {
			one["root"], one["parent"], one["max_model_len"] = "/adapters/"+m, cfg.Models[0], nil
		}
		if p.s.engine.Model != nil {
			p.s.engine.Model(one)
		}
		list = append(list, one)
	}
	WriteJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// ClearAll empties the cache of every rank. It returns the first rank whose blocks are held
// by requests, or -1.
func ClearAll(ranks []*Rank) int {
	for _, r := range ranks {
		if !r.clear() {
			return r.ID
		}
	}
	return -1
}

func (p *Pages) flushCache(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = nil // the engine sends no Content-Type
	if r := ClearAll(p.s.Ranks); r >= 0 {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "Flush cache failed: requests hold KV blocks of rank "+strconv.Itoa(r)+".")
		return
	}
	_, _ = io.WriteString(w, "Cache flushed.\n")
}

// Tokenizing is how an engine's page of a prompt's tokens differs from others.
type Tokenizing struct {
	Lists bool   // a prompt may be a list of strings
	Marks bool   // a picture is one token
	More  string // the answer's further members, each with a comma before it
}

// Tokenize returns the handler of POST /tokenize: a prompt, or messages with tools.
func (p *Pages) Tokenize(as Tokenizing) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { p.tokens(w, r, as) }
}

func (p *Pages) tokens(w http.ResponseWriter, r *http.Request, as Tokenizing) {
	if p.Foreign(r.Header, false) {
		p.Refuse(w, ErrForeign)
		return
	}
	body, err := ReadBody(r)
	if err != nil || !json.Valid(body) {
		p.Refuse(w, BadRequest("Invalid request: body is not valid JSON"))
		return
	}
	if p.s.cfg.Published != nil {
		p.tokenizePublished(w, body, as)
		return
	}
	var prompt, messages, tools []byte
	generation := true
	err = EachField(body, func(key string, v []byte) error {
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
	if err == nil && IsNull(prompt) == IsNull(messages) {
		err = errors.New("expected exactly one of prompt and messages")
	}
	var lists [][]uint32
	var list bool
	if err == nil && !IsNull(messages) {
		lists = make([][]uint32, 1)
		chat := chatWriter{marks: as.Marks}
		err = chat.prompt(messages, tools, generation)
		lists[0] = chat.tokens
	} else if err == nil {
		lists, list, err = readPromptUnion(prompt)
	}
	if list && !as.Lists {
		err = errors.New("prompt: expected a string")
	}
	if err != nil {
		p.Refuse(w, RefusalOf(err))
		return
	}
	if f, _, _ := p.s.fault.peek(); f.Mode == FaultTemplate && !IsNull(messages) {
		lists[0] = append(lists[0], tokenStart)
	}
	p.writeTokens(w, lists, list, as.More)
}

func (p *Pages) writeTokens(w http.ResponseWriter, lists [][]uint32, list bool, more string) {
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
	b = strconv.AppendInt(append(b, `,"max_model_len":`...), int64(p.s.cfg.MaxModelLen), 10)
	b = append(b, more...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '}'))
}
