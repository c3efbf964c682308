package extproc

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// A leg that reached another replica than the one that booked it reports by
// one unary call, baton.v1.Legs/Report. The message is a JSON object in a
// google.protobuf.BytesValue; the leg token in it is what proves that the
// caller may speak for the leg.

const (
	legsService    = "baton.v1.Legs"
	legsReport     = "/" + legsService + "/Report"
	legsFound      = "/" + legsService + "/Found"
	legsAbort      = "/" + legsService + "/Abort"
	legsLogged     = "/" + legsService + "/Logged"
	legsAlive      = "/" + legsService + "/Alive"
	reportTimeout  = 2 * time.Second
	maxPeerReports = 4096 // reports on their way at once; more are dropped and counted
)

type peerReport struct {
	From    string      `json:"from,omitempty"` // where the replica that says it can be reached
	Life    string      `json:"life,omitempty"` // which process is there
	Token   string      `json:"token"`
	State   leg.State   `json:"state,omitempty"`
	Reason  blame.Sight `json:"reason,omitempty"`
	Retry   string      `json:"retry_after,omitempty"`
	Status  int         `json:"status,omitempty"`
	Cached  int64       `json:"cached,omitempty"`
	Counted bool        `json:"counted,omitempty"`
}

// peerKept is how long a connection is kept after its last call. No call lasts as long: where
// it is idle, too, nothing is on its way.
const peerKept = time.Hour

// peerConnect tries a replica that was away again at least each second: gRPC's own pause grows
// to two minutes, for which one that is back would be taken for dead, and get no report.
var peerConnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

type peerConn struct {
	*grpc.ClientConn
	used time.Time // guarded by peers.mu: when it was last asked for
}

// peers tells other replicas how their legs went. Safe for concurrent use.
type peers struct {
	self  string // where this one can be reached
	life  string // tells this process from another at the same address
	log   *slog.Logger
	creds credentials.TransportCredentials

	mu    sync.Mutex
	conns map[string]*peerConn // guarded by mu; by address

	calls chan struct{} // a slot for each report on its way
	wg    sync.WaitGroup
	lost  func()
}

func newPeers(self, life string, log *slog.Logger, creds credentials.TransportCredentials, lost func()) *peers {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return &peers{self: self, life: life, log: log, creds: creds, conns: make(map[string]*peerConn), calls: make(chan struct{}, maxPeerReports), lost: lost}
}

// addressOf returns the address in an owner's name: "instance@host:port".
func addressOf(owner string) string {
	_, addr, _ := strings.Cut(owner, "@")
	return addr
}

func (p *peers) reachable(owner string) bool { return addressOf(owner) != "" }

// report sends one report after the one that closes before (nil: at once) and
// returns a channel that closes when the call has ended: gRPC does not promise
// the order of calls, and a leg's reports have one.
func (p *peers) report(owner, token string, r leg.Report, before <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	addr := addressOf(owner)
	if addr == "" {
		close(done)
		return done
	}
	conn, err := p.conn(addr)
	if err != nil {
		p.log.Debug("a leg's owner cannot be dialled", "owner", owner, "err", err)
		p.lost()
		close(done)
		return done
	}
	select {
	case p.calls <- struct{}{}:
	default:
		p.lost()
		close(done)
		return done
	}
	p.wg.Go(func() {
		defer close(done)
		if before != nil {
			<-before
		}
		defer func() { <-p.calls }()
		body, err := json.Marshal(peerReport{From: p.self, Life: p.life, Token: token, State: r.State, Reason: r.Reason, Status: r.Status, Retry: r.RetryAfter, Cached: r.Cached, Counted: r.Counted})
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
			defer cancel()
			err = conn.Invoke(ctx, legsReport, wrapperspb.Bytes(body), new(wrapperspb.BytesValue))
		}
		if err != nil {
			p.log.Debug("a leg's owner was not told", "owner", owner, "err", err)
			p.lost()
		}
	})
	return done
}

// found tells the owner of an answer what its first events have said, and calls then
// when the owner lets it go on, or cannot be told; not where ctx has ended.
func (p *peers) found(ctx context.Context, owner string, r peerReport, then func()) {
	p.wg.Go(func() {
		conn, err := p.conn(addressOf(owner))
		if err == nil {
			body, _ := json.Marshal(r) // it has nothing that cannot be written
			err = conn.Invoke(ctx, legsFound, wrapperspb.Bytes(body), new(wrapperspb.BytesValue), grpc.WaitForReady(false))
		}
		if err != nil && ctx.Err() == nil {
			p.log.Debug("an answer's owner was not told", "owner", owner, "err", err)
			p.lost()
		}
		then()
	})
}

// peerEntry is an entry of Envoy's access log for the replica whose request it is of.
type peerEntry struct {
	Token       string        `json:"token"`
	Seen        blame.Sight   `json:"seen"`
	Status      int           `json:"status,omitempty"`
	Reached     bool          `json:"reached,omitempty"`
	Start       time.Time     `json:"start"`
	First, Last time.Duration `json:",omitempty"`
	Usage       openai.Usage  `json:"usage"`
}

// logged tells the owner how answers of its have ended.
func (p *peers) logged(owner string, entries []peerEntry) {
	p.wg.Go(func() {
		conn, err := p.conn(addressOf(owner))
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
			defer cancel()
			body, _ := json.Marshal(entries)
			err = conn.Invoke(ctx, legsLogged, wrapperspb.Bytes(body), new(wrapperspb.BytesValue))
		}
		if err != nil {
			p.log.Debug("the owner of answers was not told how they ended", "owner", owner, "answers", len(entries), "err", err)
			p.lost()
		}
	})
}

// abort has the replica at addr end a leg of ours that runs there.
func (p *peers) abort(addr, token string) {
	p.wg.Go(func() {
		conn, err := p.conn(addr)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
			defer cancel()
			body, _ := json.Marshal(peerReport{Token: token})
			err = conn.Invoke(ctx, legsAbort, wrapperspb.Bytes(body), new(wrapperspb.BytesValue))
		}
		if err != nil && status.Code(err) != codes.NotFound { // else it has ended
			p.log.Debug("a leg that runs at another replica was not ended", "replica", addr, "err", err)
			p.lost()
		}
	})
}

func (p *peers) conn(addr string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if c := p.conns[addr]; c != nil {
		c.used = now
		return c.ClientConn, nil
	}
	p.forgetLocked(now)
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(p.creds), grpc.WithConnectParams(peerConnect),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))) // calls have deadlines of their own
	if err != nil {
		return nil, fmt.Errorf("extproc: peer %q: %w", addr, err)
	}
	p.conns[addr] = &peerConn{c, now}
	return c, nil
}

// forgetLocked closes connections to addresses that nobody has been called at for long: those
// of replicas that have gone. gRPC says by itself that a connection without calls is idle.
func (p *peers) forgetLocked(now time.Time) {
	for addr, c := range p.conns {
		if now.Sub(c.used) > peerKept && c.GetState() == connectivity.Idle {
			_ = c.Close()
			delete(p.conns, addr)
		}
	}
}

// close waits for the reports on their way and closes the connections.
func (p *peers) close() {
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, c := range p.conns {
		_ = c.Close()
		delete(p.conns, addr)
	}
}

// inbox takes what other replicas say.
type inbox struct{ srv *Server }

// legsDesc describes baton.v1.Legs for grpc-go.
func legsDesc(srv *Server) *grpc.ServiceDesc {
	in := inbox{srv}
	return &grpc.ServiceDesc{
		ServiceName: legsService,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Report", Handler: legsMethod(func(_ context.Context, b []byte) ([]byte, error) { return nil, in.report(b) })},
			{MethodName: "Found", Handler: legsMethod(func(ctx context.Context, b []byte) ([]byte, error) { return nil, in.found(ctx, b) })},
			{MethodName: "Logged", Handler: legsMethod(func(_ context.Context, b []byte) ([]byte, error) { return nil, in.logged(b) })},
			{MethodName: "Abort", Handler: legsMethod(func(_ context.Context, b []byte) ([]byte, error) { return nil, in.abort(b) })},
			{MethodName: "Alive", Handler: legsMethod(func(context.Context, []byte) ([]byte, error) { return []byte(srv.peers.life), nil })},
		},
	}
}

func legsMethod(take func(context.Context, []byte) ([]byte, error)) grpc.MethodHandler {
	return func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.BytesValue)
		if err := dec(in); err != nil {
			return nil, err
		}
		out, err := take(ctx, in.GetValue())
		return wrapperspb.Bytes(out), err
	}
}

// found takes what another replica has read of an answer whose request is ours. It
// returns when the answer may go on; where another attempt follows, the caller leaves.
func (in inbox) found(ctx context.Context, body []byte) error {
	s, r, err := in.attempt(body)
	if err != nil {
		return err
	}
	passed := make(chan struct{}, 1)
	s.post(&notice{Event: leg.Event{Kind: leg.EventFound, Seen: r.Reason, Status: r.Status}, pass: func() {
		select {
		case passed <- struct{}{}:
		default:
		}
	}})
	select {
	case <-passed:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// abort ends a leg whose request another replica has given up. Who has its token
// has booked it.
func (in inbox) abort(body []byte) error {
	r := new(peerReport)
	if err := json.Unmarshal(body, r); err != nil {
		return status.Error(codes.InvalidArgument, "expected a leg's token")
	}
	s := in.srv.guests.find(r.Token)
	if s == nil {
		return status.Error(codes.NotFound, "the leg is over")
	}
	s.post(just(leg.Event{Kind: leg.EventAbort}))
	return nil
}

// logged takes what another replica has got of Envoy's access log. Attempts that are
// over need none of it.
func (in inbox) logged(body []byte) error {
	var entries []peerEntry
	if err := json.Unmarshal(body, &entries); err != nil {
		return status.Error(codes.InvalidArgument, "expected entries of an access log")
	}
	for i := range entries {
		e := &entries[i]
		sealed, err := in.srv.sealer.Open(e.Token)
		if err != nil || sealed.Owner != in.srv.owner {
			return status.Error(codes.PermissionDenied, "the token is not ours")
		}
		if s := in.srv.attempts.find(sealed.Nonce); s != nil {
			s.post(&notice{
				Event: leg.Event{Kind: leg.EventLogged, Seen: e.Seen, Status: e.Status, Reached: e.Reached},
				sent:  sent{e.Start, e.First, e.Last}, usage: e.Usage,
			})
		}
	}
	return nil
}

// attempt reads what another replica says, and finds the attempt of ours that it means.
func (in inbox) attempt(body []byte) (*mainStream, *peerReport, error) {
	r := new(peerReport)
	if err := json.Unmarshal(body, r); err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, "expected a leg report")
	}
	leg, err := in.srv.sealer.Open(r.Token)
	if err != nil || leg.Owner != in.srv.owner {
		return nil, nil, status.Error(codes.PermissionDenied, "the token is not ours")
	}
	s := in.srv.attempts.find(leg.Nonce)
	if s == nil {
		return nil, nil, status.Error(codes.NotFound, "the attempt is over")
	}
	return s, r, nil
}

// report takes what another replica says of a leg that we booked.
func (in inbox) report(body []byte) error {
	s, r, err := in.attempt(body)
	switch {
	case err != nil:
		return err
	case r.State <= leg.Dispatched || r.State > leg.Ended:
		return status.Error(codes.InvalidArgument, "expected the state of a leg")
	case r.State == leg.Started:
		in.srv.carriedBy(s, carrier{r.From, r.Life})
	}
	s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: r.State, Reason: r.Reason, Status: r.Status, RetryAfter: r.Retry, Cached: r.Cached, Counted: r.Counted}}))
	return nil
}
