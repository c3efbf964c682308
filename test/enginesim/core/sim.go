package core

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// ErrDied is returned by Run after the fault "die" of an embedded worker.
var ErrDied = errors.New("enginesim: died of an injected fault")

// Sim is one simulated worker. Its methods are safe for concurrent use; Run is called
// once.
type Sim struct {
	// for the engine's package; set at construction, read-only
	Birth     Birth
	ProcessID string // differs from that of the process before it at the same address
	Ranks     []*Rank
	Pages     *Pages

	// set at construction, read-only
	cfg       Config
	engine    *Engine
	log       *requestLog
	fault     *faultBox
	ports     *apiPorts
	others    []*http.Server // rendezvous, control and side channel, in the order of listeners
	listeners []net.Listener // of others
	bootAddr  string
	sideAddrs []string // of the side channel: one, or one for each rank
	ctrlAddr  string
	runCtx    context.Context //nolint:containedctx // ends with the simulated process
	cancel    context.CancelCauseFunc

	wg       sync.WaitGroup // goroutines of Run
	nextRank atomic.Uint64
	paged    atomic.Int64 // tokens of a block
	handlers gate

	violationsMu sync.Mutex // guards violations
	violations   []Violation
}

// New binds every address of a worker of an engine.
func New(cfg Config, k Kind) (*Sim, error) {
	if err := cfg.validate(k); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults(k)
	s := &Sim{cfg: cfg, Birth: newBirth(), ProcessID: NewProcessID(), log: newRequestLog(cfg), fault: newFaultBox()}
	s.engine = k.Make(s, cfg)
	s.Pages, s.ports = newPages(s), newAPIPorts(s)
	s.paged.Store(int64(cfg.PageSize))
	s.runCtx, s.cancel = context.WithCancelCause(context.Background())
	if err := s.bind(); err != nil {
		s.closeListeners()
		s.cancel(err)
		return nil, fmt.Errorf("enginesim: %w", err)
	}
	return s, nil
}

func (s *Sim) bind() error {
	err := s.ports.bind()
	if err != nil {
		return err
	}
	s.bootAddr, err = s.bindOther(s.cfg.BootstrapListen, s.engine.Rendezvous)
	if err != nil {
		return err
	}
	s.ctrlAddr, err = s.bindOther(s.cfg.ControlListen, controlHandler(s))
	if err != nil {
		return err
	}
	if s.engine.Bind != nil {
		if err := s.engine.Bind(); err != nil {
			return err
		}
	}
	pubs, err := bindPublishers(s.cfg, s.engine.AppendEvents)
	if err != nil {
		return err
	}
	for i := range s.cfg.DPSize {
		r := &Rank{ID: i, maxRunning: s.cfg.MaxRunning}
		if pubs != nil {
			r.pub = pubs[i]
		}
		r.cache = newCache(s.cfg.PageSize, s.usableBlocks(), pubs != nil, s.engine.Nodes && !s.cfg.EvictBlocks)
		if s.engine.ClearsFirst {
			r.clear()
		}
		if s.cfg.Decodes() && s.cfg.NoDecodeEvents {
			r.cache.record = false
		}
		s.Ranks = append(s.Ranks, r)
	}
	return nil
}

func (s *Sim) bindOther(addr string, h http.Handler) (string, error) {
	if addr == "" {
		return "", nil
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	s.serveOther(ln, h)
	return ln.Addr().String(), nil
}

// serveOther makes Run serve h at ln.
func (s *Sim) serveOther(ln net.Listener, h http.Handler) {
	s.listeners = append(s.listeners, ln)
	s.others = append(s.others, &http.Server{
		Handler: s.handlers.wrap(h), ReadHeaderTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return s.runCtx },
	})
}

// BindSide binds n ports of the side channel in a row, and makes Run serve h(i) at the
// i-th. It is for the engine's bind.
func (s *Sim) BindSide(n int, h func(i int) http.Handler) error {
	host, port, _ := net.SplitHostPort(s.cfg.SideChannelListen)
	base, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("side-channel-listen %q: expected a port number", s.cfg.SideChannelListen)
	}
	lns, err := listenRange(host, base, n)
	if err != nil {
		return err
	}
	for i, ln := range lns {
		s.sideAddrs = append(s.sideAddrs, ln.Addr().String())
		s.serveOther(ln, h(i))
	}
	return nil
}

func (s *Sim) closeListeners() {
	s.ports.closeAll()
	for _, ln := range s.listeners {
		_ = ln.Close()
	}
	for _, r := range s.Ranks {
		r.pub.close()
	}
}

// Run serves until ctx ends, and returns when all its goroutines have ended. It returns
// nil, or ErrDied.
func (s *Sim) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.cancel(nil) })
	defer stop()
	for i := range s.ports.addrs {
		s.wg.Go(func() { s.ports.serve(i) })
	}
	for i, srv := range s.others {
		s.wg.Go(func() { _ = srv.Serve(s.listeners[i]) })
	}
	for _, r := range s.Ranks {
		if r.pub != nil {
			s.wg.Go(func() { acceptLoop(s.runCtx, r.pub.pub, r.pub.servePub) })
			if r.pub.replay != nil {
				s.wg.Go(func() { acceptLoop(s.runCtx, r.pub.replay, r.pub.serveReplay) })
			}
		}
	}
	<-s.runCtx.Done()
	_ = s.ports.server.Close()
	for _, srv := range s.others {
		_ = srv.Close()
	}
	s.closeListeners()
	s.handlers.closeAndWait()
	s.wg.Wait()
	if s.engine.Close != nil {
		s.engine.Close()
	}
	if cause := context.Cause(s.runCtx); errors.Is(cause, ErrDied) {
		return ErrDied
	}
	return nil
}

// Die ends the process. An embedded worker closes all its sockets at once instead,
// without the handshake of a server that stops.
func (s *Sim) Die() {
	if s.cfg.Die != nil {
		s.cfg.Die()
		return
	}
	s.ports.cut()
	s.cancel(ErrDied)
}

// Start runs f until it returns, as one of the goroutines that Run waits for. f ends soon
// after the process has ended.
func (s *Sim) Start(f func(process context.Context)) { s.wg.Go(func() { f(s.runCtx) }) }

// Process is a context that ends with the simulated process.
func (s *Sim) Process() context.Context { return s.runCtx }

// Addr returns the "host:port" of the HTTP API, or rank 0's if each rank has its own.
func (s *Sim) Addr() string { return s.ports.addrs[0] }

// RankAddr returns the "host:port" of the HTTP API for one rank.
func (s *Sim) RankAddr(rank int) string {
	if s.cfg.PortPerRank {
		return s.ports.addrs[rank]
	}
	return s.ports.addrs[0]
}

// URL returns the base URL of the HTTP API at Addr.
func (s *Sim) URL() string { return "http://" + s.Addr() }

// BootstrapAddr returns the "host:port" of the bootstrap server, "" if the worker has
// none.
func (s *Sim) BootstrapAddr() string { return s.bootAddr }

// ControlAddr returns the "host:port" of the control address, "" if there is none.
func (s *Sim) ControlAddr() string { return s.ctrlAddr }

// EventsAddr returns the addresses at which the rank publishes and replays KV events. An
// address is "" if the rank does not do so.
func (s *Sim) EventsAddr(rank int) (pub, replay string) {
	p := s.Ranks[rank].pub
	if p == nil {
		return "", ""
	}
	pub = p.pub.Addr().String()
	if p.replay != nil {
		replay = p.replay.Addr().String()
	}
	return pub, replay
}

// SideAddrs returns the "host:port" of the side channel, at some engines one for each
// rank. Only prefill workers of engines with a side channel have any.
func (s *Sim) SideAddrs() []string { return slices.Clone(s.sideAddrs) }

// usableBlocks is how many blocks a rank has for requests.
func (s *Sim) usableBlocks() int { return s.cfg.CapacityBlocks - s.engine.Reserved }
