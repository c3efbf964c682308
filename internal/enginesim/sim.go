package enginesim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// ErrDied is returned by Run after the fault "die" of an embedded worker.
var ErrDied = errors.New("enginesim: died of an injected fault")

// Sim is one simulated worker. Its methods are safe for concurrent use; Run is called
// once.
type Sim struct {
	// set at construction, read-only
	cfg        Config
	birth      birth
	ranks      []*rank
	engine     protocol
	processID  string // differs from that of the process before it at the same address
	rooms      *rooms // nil, except for a prefill worker of SGLang
	holds      *holds // nil, except for a prefill worker of another engine
	log        *requestLog
	fault      *faultBox
	responses  *responseStore
	client     *http.Client // to bootstrap servers and side channels
	api        *http.Server
	others     []*http.Server // bootstrap and control, in the order of listeners
	listeners  []net.Listener // of others
	localAddrs []netip.Addr
	addrs      []string // of the API: one, or one for each rank; they stay the same while ports are closed
	bootAddr   string
	sideAddrs  []string // of the side channel: one, or one for each rank
	ctrlAddr   string
	runCtx     context.Context //nolint:containedctx // ends with the simulated process
	cancel     context.CancelCauseFunc

	wg            sync.WaitGroup // goroutines of Run
	nextRank      atomic.Uint64
	nextCall      atomic.Uint64
	asleep        atomic.Int32  // the level at which vLLM sleeps; 0: awake
	reads         atomic.Uint64 // of vLLM's /metrics
	paged         atomic.Int64  // tokens of a block
	decodeWaiting atomic.Int64
	pulls         pulls
	handlers      gate

	portMu sync.Mutex
	ports  []net.Listener // of the API, parallel to addrs; nil while the fault "refuse" closes the port
	conns  map[net.Conn]http.ConnState

	linksMu sync.Mutex // taken before the mutex of a link
	links   map[string]*link

	violationsMu sync.Mutex
	violations   []Violation
}

// New binds every address of cfg. Only Run closes them.
func New(cfg Config) (*Sim, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Sim{
		cfg: cfg, birth: newBirth(), log: newRequestLog(cfg), fault: newFaultBox(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		conns:  make(map[net.Conn]http.ConnState), links: make(map[string]*link),
		responses: &responseStore{on: cfg.ResponseStore, refuses: cfg.Engine == worker.SGLang, kept: make(map[string]*keptAnswer)},
	}
	s.engine, s.processID = s.newProtocol(), newProcessID()
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
	err := s.bindAPI()
	if err != nil {
		return err
	}
	if s.bootAddr, err = s.bindOther(s.cfg.BootstrapListen, s.bootstrapHandler()); err != nil {
		return err
	}
	if s.ctrlAddr, err = s.bindOther(s.cfg.ControlListen, s.controlHandler()); err != nil {
		return err
	}
	if err := s.bindSide(); err != nil {
		return err
	}
	if s.prefills() && s.cfg.Engine == worker.SGLang {
		s.rooms = newRooms(s.cfg.KVGroup, s.violate)
		s.localAddrs = interfaceAddrs()
	}
	pubs, err := s.bindPublishers()
	if err != nil {
		return err
	}
	for i := range s.cfg.DPSize {
		r := &rank{id: i, maxRunning: s.cfg.MaxRunning}
		if pubs != nil {
			r.pub = pubs[i]
		}
		sglang := s.cfg.Engine == worker.SGLang
		r.cache = newCache(s.cfg.PageSize, s.cfg.usableBlocks(), pubs != nil, sglang && !s.cfg.EvictBlocks)
		if sglang { // SGLang's scheduler empties the cache when it begins, and publishes that
			r.clear()
		}
		if s.decodes() && s.cfg.NoDecodeEvents {
			r.cache.record = false
		}
		s.ranks = append(s.ranks, r)
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

func (s *Sim) closeListeners() {
	s.portMu.Lock()
	for _, ln := range s.ports {
		if ln != nil {
			_ = ln.Close()
		}
	}
	s.portMu.Unlock()
	for _, ln := range s.listeners {
		_ = ln.Close()
	}
	for _, r := range s.ranks {
		r.pub.close()
	}
}

// Run serves until ctx ends, and returns when all its goroutines have ended. It returns
// nil, or ErrDied.
func (s *Sim) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.cancel(nil) })
	defer stop()
	for i := range s.addrs {
		s.wg.Go(func() { s.serveAPI(i) })
	}
	for i, srv := range s.others {
		s.wg.Go(func() { _ = srv.Serve(s.listeners[i]) })
	}
	for _, r := range s.ranks {
		if r.pub != nil {
			s.wg.Go(func() { acceptLoop(s.runCtx, r.pub.pub, r.pub.servePub) })
			if r.pub.replay != nil {
				s.wg.Go(func() { acceptLoop(s.runCtx, r.pub.replay, r.pub.serveReplay) })
			}
		}
	}
	<-s.runCtx.Done()
	_ = s.api.Close()
	for _, srv := range s.others {
		_ = srv.Close()
	}
	s.closeListeners()
	s.handlers.closeAndWait()
	if s.holds != nil {
		s.holds.close()
	}
	s.wg.Wait()
	s.client.CloseIdleConnections()
	if cause := context.Cause(s.runCtx); errors.Is(cause, ErrDied) {
		return ErrDied
	}
	return nil
}

func (s *Sim) connState(c net.Conn, state http.ConnState) {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	switch state {
	case http.StateClosed, http.StateHijacked:
		delete(s.conns, c)
	case http.StateNew, http.StateActive, http.StateIdle:
		s.conns[c] = state
	}
}

// die ends the process. An embedded worker closes all its sockets at once instead,
// without the handshake of a server that stops.
func (s *Sim) die() {
	if s.cfg.Die != nil {
		s.cfg.Die()
		return
	}
	s.portMu.Lock()
	for c := range s.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		_ = c.Close()
	}
	s.portMu.Unlock()
	s.cancel(ErrDied)
}

// BootstrapAddr returns the "host:port" of the bootstrap server, "" if the worker has
// none.
func (s *Sim) BootstrapAddr() string { return s.bootAddr }

// ControlAddr returns the "host:port" of the control address, "" if there is none.
func (s *Sim) ControlAddr() string { return s.ctrlAddr }

// EventsAddr returns the addresses at which the rank publishes and replays KV events. An
// address is "" if the rank does not do so.
func (s *Sim) EventsAddr(rank int) (pub, replay string) {
	p := s.ranks[rank].pub
	if p == nil {
		return "", ""
	}
	pub = p.pub.Addr().String()
	if p.replay != nil {
		replay = p.replay.Addr().String()
	}
	return pub, replay
}

// SideAddrs returns the "host:port" of the side channel, at vLLM one for each rank. Only
// prefill workers of vLLM and TensorRT-LLM have any.
func (s *Sim) SideAddrs() []string { return slices.Clone(s.sideAddrs) }

func (s *Sim) sidePerRank() bool { return s.vllm() }

// vllm reports whether the engine is vLLM, with either connector.
func (s *Sim) vllm() bool { return s.cfg.Engine == worker.VLLM || s.cfg.Engine == worker.VLLMMooncake }

func (s *Sim) prefills() bool      { return s.cfg.Role == worker.Prefill }
func (s *Sim) decodes() bool       { return s.cfg.Role == worker.Decode }
func (s *Sim) disaggregated() bool { return s.prefills() || s.decodes() }

// bootstrapPort is the worker's own bootstrap port, or SGLang's default 8998 if it has
// none.
func (s *Sim) bootstrapPort() int {
	if s.bootAddr == "" {
		return 8998
	}
	return portOf(s.bootAddr)
}
