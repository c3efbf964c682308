package extproc

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// A prefill leg may come to another replica than the attempt's owner. That replica then
// reports to the owner by unary calls, baton.v1.Legs/Report. The message of a call is a JSON
// object in a google.protobuf.BytesValue. The leg token in the object proves that the caller
// has the leg.

const (
	legsService    = "baton.v1.Legs"
	legsReport     = "/" + legsService + "/Report"
	legsFound      = "/" + legsService + "/Found"
	legsAbort      = "/" + legsService + "/Abort"
	legsLogged     = "/" + legsService + "/Logged"
	legsAlive      = "/" + legsService + "/Alive"
	reportTimeout  = 20 * time.Second // a replica that stands still for a while has to hear of its legs when it goes on
	reportsAtEnd   = 2 * time.Second  // how long a process that ends waits for its reports
	maxPeerReports = 4096             // calls on their way at once; more are dropped and counted
)

type peerReport struct {
	From    string      `json:"from,omitempty"` // address of the replica that reports
	Life    string      `json:"life,omitempty"` // tells its process from another at that address
	Token   string      `json:"token"`
	State   leg.State   `json:"state,omitempty"`
	Reason  blame.Sight `json:"reason,omitempty"`
	Retry   string      `json:"retry_after,omitempty"`
	Moved   string      `json:"location,omitempty"`
	Status  int         `json:"status,omitempty"`
	Cached  int64       `json:"cached,omitempty"`
	Counted bool        `json:"counted,omitempty"`
	Said    string      `json:"said,omitempty"`
	Error   []byte      `json:"error,omitempty"` // the event of an answer that says error
	Told    leg.Told    `json:"told"`
}

// peerKept is how long a connection is kept after it was last used. It is closed only if it
// is idle, too, so that no call is cut.
const peerKept = time.Hour

// peerConnect tries at least every second to reach a replica that is away. gRPC's own pauses
// grow to two minutes: for so long a replica that is back would count as dead and get no
// reports.
var peerConnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

// peerConn is the connection to a replica. Its fields are guarded by peers.mu.
type peerConn struct {
	*grpc.ClientConn
	used time.Time // when conn last returned it
}

// peers makes the calls to other replicas: it tells them how legs and answers of their
// attempts went, and ends legs of our attempts that run there. Safe for concurrent use.
type peers struct {
	self  string // address at which the others can reach this replica
	life  string // tells this process from another at the same address
	token string // of no leg: it has the name of this replica
	log   *slog.Logger
	creds credentials.TransportCredentials

	mu    sync.Mutex
	conns map[string]*peerConn // guarded by mu; by address
	ends  bool                 // guarded by mu: no call begins any more

	met func(addr string) // guarded by mu; see AsReplica.OnOther

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

// report sends one report to the owner of a leg, once the channel before has closed; at once
// if that is nil. It calls over if the owner answers that the attempt is over. It returns a
// channel that closes when the call has ended. The caller gives it to the leg's next report,
// since reports must come in order and gRPC calls need not.
func (p *peers) report(owner, token string, r leg.Report, over func(), before <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	addr := addressOf(owner)
	if addr == "" {
		close(done)
		return done
	}
	began := p.run(p.calls, func() {
		defer close(done)
		if before != nil {
			<-before
		}
		err := p.tell(addr, legsReport, peerReport{From: p.self, Life: p.life, Token: token, State: r.State, Reason: r.Reason, Status: r.Status, Retry: r.RetryAfter, Moved: r.Location, Cached: r.Cached, Counted: r.Counted, Said: r.Said, Told: r.Told})
		switch {
		case status.Code(err) == codes.NotFound:
			over()
		case err != nil:
			p.log.Debug("a leg's owner was not told", logkey.Owner, owner, logkey.Err, err)
			p.lost()
		}
	})
	if !began {
		close(done)
	}
	return done
}

// found tells the owner of an answer what the first events of the answer say. It calls its
// last argument once the owner lets the answer go on, the owner could not be told, or ctx has
// ended.
func (p *peers) found(ctx context.Context, owner string, r peerReport, then func()) {
	began := p.run(nil, func() {
		err := p.call(ctx, addressOf(owner), legsFound, r, grpc.WaitForReady(false))
		if err != nil && ctx.Err() == nil {
			p.log.Debug("an answer's owner was not told", logkey.Owner, owner, logkey.Err, err)
			p.lost()
		}
		then()
	})
	if !began {
		then()
	}
}

// peerEntry is an entry of Envoy's access log, as it is sent to the owner of the attempt.
type peerEntry struct {
	Token       string        `json:"token"`
	Seen        blame.Sight   `json:"seen"`
	Status      int           `json:"status,omitempty"`
	Reached     bool          `json:"reached,omitempty"`
	Details     string        `json:"details,omitempty"`
	Start       time.Time     `json:"start"`
	First, Last time.Duration `json:",omitempty"`
	Usage       openai.Usage  `json:"usage"`
}

// logged tells the owner how answers of its attempts have ended.
func (p *peers) logged(owner string, entries []peerEntry) {
	p.run(p.calls, func() {
		err := p.tell(addressOf(owner), legsLogged, entries)
		if err != nil {
			p.log.Debug("the owner of answers was not told how they ended", logkey.Owner, owner, logkey.Answers, len(entries), logkey.Err, err)
			p.lost()
		}
	})
}

// abort asks the replica at addr to end a leg of one of our attempts that runs there. It calls over if that
// answers that the leg has ended: its report of that was lost.
func (p *peers) abort(addr, token string, over func()) {
	p.run(p.calls, func() {
		err := p.tell(addr, legsAbort, peerReport{Token: token})
		switch {
		case status.Code(err) == codes.NotFound:
			over()
		case err != nil:
			p.log.Debug("a leg that runs at another replica was not ended", logkey.Replica, addr, logkey.Err, err)
			p.lost()
		}
	})
}

// tell makes a call that has to end within reportTimeout.
func (p *peers) tell(addr, method string, v any) error {
	ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
	defer cancel()
	return p.call(ctx, addr, method, v)
}

// call calls a method of the replica at addr with the JSON of v.
func (p *peers) call(ctx context.Context, addr, method string, v any, opts ...grpc.CallOption) error {
	conn, err := p.conn(addr)
	if err != nil {
		return err
	}
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return conn.Invoke(ctx, method, wrapperspb.Bytes(body), new(wrapperspb.BytesValue), opts...)
}

func (p *peers) conn(addr string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.conns == nil {
		return nil, errPeersClosed
	}
	if c := p.conns[addr]; c != nil {
		c.used = now
		return c.ClientConn, nil
	}
	p.forgetLocked(now)
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(p.creds), grpc.WithNoProxy(), grpc.WithConnectParams(peerConnect),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))) // calls have deadlines of their own
	if err != nil {
		return nil, fmt.Errorf("extproc: peer %q: %w", addr, err)
	}
	p.conns[addr] = &peerConn{ClientConn: c, used: now}
	if p.met != nil {
		p.met(addr)
	}
	return c, nil
}

// forgetLocked closes the connections that are idle and were not used for peerKept: those to
// replicas that have gone. gRPC makes a connection idle that has no calls for long.
func (p *peers) forgetLocked(now time.Time) {
	for addr, c := range p.conns {
		if now.Sub(c.used) > peerKept && c.GetState() == connectivity.Idle {
			_ = c.Close()
			delete(p.conns, addr)
		}
	}
}

// run makes a call, which takes a place meanwhile unless places is nil. It returns false if there is
// none, or if this process ends.
func (p *peers) run(places chan struct{}, call func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ends {
		return false
	}
	if places == nil {
		p.wg.Go(call)
		return true
	}
	select {
	case places <- struct{}{}:
		p.wg.Go(func() {
			defer func() { <-places }()
			call()
		})
		return true
	default:
		p.lost()
		return false
	}
}

// close waits a while for the calls on their way, and closes the connections, which ends the calls.
func (p *peers) close() {
	p.mu.Lock()
	p.ends = true
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(reportsAtEnd):
	}
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	<-ended
}

var errPeersClosed = errors.New("extproc: this process is about to end")

// inbox handles the calls of other replicas.
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
			{MethodName: "Alive", Handler: legsMethod(func(_ context.Context, b []byte) ([]byte, error) { return []byte(in.alive(string(b))), nil })},
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

// found handles what another replica has read of the answer to one of our attempts. It
// returns nil once the answer may go on. If another attempt follows instead, Envoy ends the
// answer's stream at the caller, which ends the call.
func (in inbox) found(ctx context.Context, body []byte) error {
	s, r, err := in.attempt(body)
	if err != nil {
		return err
	}
	passed := make(chan struct{}, 1)
	s.post(&notice{Event: leg.Event{Kind: leg.EventFound, Seen: r.Reason, Status: r.Status, Error: r.Error}, pass: func() {
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

// abort ends a leg that runs here, because the replica that owns the attempt has given it
// up. The leg's token proves that the caller is that replica.
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

// logged handles entries of Envoy's access log that another replica has received. An entry
// of an attempt that is over is dropped.
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
				Event: leg.Event{Kind: leg.EventLogged, Seen: e.Seen, Status: e.Status, Reached: e.Reached, Details: e.Details},
				sent:  sent{e.Start, e.First, e.Last}, usage: e.Usage,
			})
		}
	}
	return nil
}

// attempt decodes a report of another replica, and finds the attempt of this replica that
// the report is about.
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

// report handles what another replica reports on a leg of one of our attempts.
func (in inbox) report(body []byte) error {
	s, r, err := in.attempt(body)
	switch {
	case err != nil:
		return err
	case r.State <= leg.Dispatched || r.State > leg.Ended:
		return status.Error(codes.InvalidArgument, "expected the state of a leg")
	case r.State == leg.Started:
		in.srv.carriers.carriedBy(s, carrier{r.From, r.Life})
	}
	s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: r.State, Reason: r.Reason, Status: r.Status, RetryAfter: r.Retry, Location: r.Moved, Cached: r.Cached, Counted: r.Counted, Said: r.Said, Told: r.Told}}))
	return nil
}
