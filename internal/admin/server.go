package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	defaultDecisions = 50
	maxBody          = 8 << 20 // of a question to explain or to the index
	explainTimeout   = 10 * time.Second
	shutdownGrace    = 2 * time.Second
)

// Server serves the admin address.
type Server struct {
	// Set at construction, read-only.
	cfg   Config
	lis   net.Listener
	hosts hostRule
	page  *template.Template
	http  *http.Server

	built built
}

// ServerName is the Server header of every answer: by it a client knows that it has
// reached a plugin's status page, and not another server.
const ServerName = "baton-admin"

// New checks cfg and opens the listener. The caller must call Run or Close; both close
// it.
func New(cfg Config) (*Server, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	page, err := parsePage()
	if err != nil {
		return nil, fmt.Errorf("admin: parse the page: %w", err)
	}
	lis, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("admin: listen on %q: %w", cfg.Address, err)
	}
	s := &Server{cfg: cfg, lis: lis, page: page, hosts: newHostRule(cfg.AllowedHosts, lis.Addr())}
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      90 * time.Second, // a CPU profile takes 30 s by default
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Addr returns the address of the listener.
func (s *Server) Addr() net.Addr { return s.lis.Addr() }

// Close closes the listener of a server that will not run.
func (s *Server) Close() error { return s.lis.Close() }

// Run serves until ctx ends, then gives requests in progress a short time and ends the
// rest. It returns when all of its goroutines have ended: nil after the end of ctx, else
// the error that stopped it.
func (s *Server) Run(ctx context.Context) error { return Serve(ctx, "admin", s.http, s.lis) }

// Serve is [Server.Run] of another server of HTTP; its name is for the error.
func Serve(ctx context.Context, name string, s *http.Server, lis net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	select {
	case err := <-served:
		return fmt.Errorf("%s: serve: %w", name, err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	err := s.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	<-served
	return err
}

// handler returns the mux behind the guards.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.servePage)
	mux.HandleFunc("GET /decision/{seq}", s.serveDecision)
	for name, form := range map[string]string{"page.css": "text/css", "page.js": "text/javascript"} {
		mux.HandleFunc("GET /assets/"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", form+"; charset=utf-8")
			http.ServeFileFS(w, r, assets, "assets/"+name)
		})
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "alive\n") })
	mux.HandleFunc("GET /readyz", s.serveReady)
	mux.HandleFunc("GET /debug/state", func(w http.ResponseWriter, _ *http.Request) {
		st := s.state()
		s.json(w, http.StatusOK, stateJSON(&st))
	})
	mux.HandleFunc("GET /debug/decisions", s.serveDecisions)
	if s.cfg.Hour != nil {
		mux.HandleFunc("GET /debug/hour", s.serveHour)
	}
	if s.cfg.Metrics != nil {
		mux.Handle("GET /metrics", s.cfg.Metrics)
	}
	if s.cfg.Explain != nil {
		mux.HandleFunc("POST /debug/explain", s.serveExplain)
	}
	if s.cfg.Index != nil {
		mux.HandleFunc("POST /debug/index", s.serveIndex)
	}
	if s.cfg.IndexDump != nil {
		mux.HandleFunc("GET /debug/index/dump", s.serveIndexDump)
	}
	if s.cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return s.guard(http.NewCrossOriginProtection().Handler(mux))
}

// guard refuses foreign hosts, sets the headers of every answer, and turns a panic into a
// 500 of that request alone.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				panic(v)
			}
			s.cfg.Logger.Error("admin handler panicked", slog.String(logkey.Path, r.URL.Path), slog.Any(logkey.Panic, v))
			text(w, http.StatusInternalServerError, "internal error; see the log\n")
		}()
		h := w.Header()
		h.Set("Server", ServerName)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; "+
			"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
		if !s.hosts.allows(r.Host) {
			text(w, http.StatusForbidden, fmt.Sprintf(
				"host %q is not allowed here: use a loopback address such as 127.0.0.1, or add the name to admin.hosts\n", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) state() State {
	st := s.cfg.State()
	if st.Now.IsZero() {
		st.Now = time.Now()
	}
	return st
}

func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	ready, reason := s.cfg.Ready()
	q := r.URL.Query()
	if q.Has("model") {
		ready, reason = s.cfg.ReadyKey(worker.Key{Model: q.Get("model"), Namespace: q.Get("namespace")})
	}
	if ready {
		text(w, http.StatusOK, "ready\n"+strings.Join(s.trouble(true), ""))
		return
	}
	text(w, http.StatusServiceUnavailable, "not ready: "+cmp.Or(reason, "no reason given")+"\n")
}

// mostTroubles bounds the troubles that an answer other than the state lists.
const mostTroubles = 16

// trouble returns lines of what is wrong, or only of that by which requests fail or wait.
func (s *Server) trouble(severe bool) (lines []string) {
	if s.cfg.Trouble == nil {
		return nil
	}
	ts := s.cfg.Trouble()
	for i := range ts {
		if t := &ts[i]; len(lines) < mostTroubles && (t.Severe() || !severe) {
			lines = append(lines, "in trouble: "+t.Line()+"\n")
		}
	}
	return lines
}

// decisionCount is how many decisions are asked for: as many as ?n= says, or n without it.
func decisionCount(r *http.Request, n int) (int, error) {
	q := r.URL.Query().Get("n")
	if q == "" {
		return n, nil
	}
	v, err := strconv.Atoi(q)
	if err != nil || v < 1 {
		return 0, fmt.Errorf("n %q: expected a number from 1", q)
	}
	return v, nil
}

func (s *Server) serveDecisions(w http.ResponseWriter, r *http.Request) {
	n, err := decisionCount(r, defaultDecisions)
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	s.json(w, http.StatusOK, map[string]any{"decisions": s.cfg.Journal.Recent([]decision.Record{}, n)})
}

// readBody reads the posted body. False means that it has answered the request with the
// reason.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		return body, true
	}
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		s.fail(w, http.StatusRequestEntityTooLarge, fmt.Errorf("body: expected at most %d bytes", big.Limit))
		return nil, false
	}
	s.fail(w, http.StatusBadRequest, errors.New("body: it did not arrive whole"))
	return nil, false
}

func (s *Server) serveExplain(w http.ResponseWriter, r *http.Request) {
	path := cmp.Or(r.URL.Query().Get("path"), "/v1/chat/completions")
	body, ok := s.readBody(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), explainTimeout)
	defer cancel()
	v, err := s.cfg.Explain(ctx, path, body)
	if err != nil {
		status := http.StatusBadRequest
		if ctx.Err() != nil {
			status = http.StatusGatewayTimeout
		}
		s.fail(w, status, err)
		return
	}
	if rec, ok := v.(*decision.Record); ok {
		st := s.state()
		know(rec, &st)
		for _, line := range s.trouble(false) {
			rec.Trouble = append(rec.Trouble, strings.TrimSpace(strings.TrimPrefix(line, "in trouble: ")))
		}
	}
	s.json(w, http.StatusOK, v)
}

func (s *Server) fail(w http.ResponseWriter, status int, err error) {
	s.json(w, status, map[string]any{"error": map[string]string{"message": err.Error()}})
}

func (s *Server) json(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	s.answer(w, status, b.Bytes(), err)
}

// answer sends what was made of an answer in JSON.
func (s *Server) answer(w http.ResponseWriter, status int, body []byte, err error) {
	if err != nil {
		s.cfg.Logger.Error("admin answer could not be encoded", slog.Any(logkey.Err, err))
		text(w, http.StatusInternalServerError, "the answer could not be encoded; see the log\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func text(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, s)
}
