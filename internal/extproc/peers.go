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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// A leg that reached another replica than the one that booked it reports by
// one unary call, baton.v1.Legs/Report. The message is a JSON object in a
// google.protobuf.BytesValue; the leg token in it is what proves that the
// caller may speak for the leg.

const (
	legsService    = "baton.v1.Legs"
	legsReport     = "/" + legsService + "/Report"
	reportTimeout  = 2 * time.Second
	maxPeerReports = 4096 // reports on their way at once; more are dropped and counted
)

type peerReport struct {
	From   string      `json:"from,omitempty"` // where the replica that says it can be reached
	Token  string      `json:"token"`
	State  legState    `json:"state"`
	Reason blame.Sight `json:"reason,omitempty"`
	Retry  string      `json:"retry_after,omitempty"`
	Status int         `json:"status,omitempty"`
}

// peers tells other replicas how their legs went. Safe for concurrent use.
type peers struct {
	self  string // where this one can be reached
	log   *slog.Logger
	creds credentials.TransportCredentials

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // guarded by mu; by address

	calls chan struct{} // a slot for each report on its way
	wg    sync.WaitGroup
	lost  func()
}

func newPeers(self string, log *slog.Logger, creds credentials.TransportCredentials, lost func()) *peers {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return &peers{self: self, log: log, creds: creds, conns: make(map[string]*grpc.ClientConn), calls: make(chan struct{}, maxPeerReports), lost: lost}
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
func (p *peers) report(owner, token string, r legReport, before <-chan struct{}) <-chan struct{} {
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
		body, err := json.Marshal(peerReport{From: p.self, Token: token, State: r.state, Reason: r.reason, Status: r.status, Retry: r.retryAfter})
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
			defer cancel()
			err = conn.Invoke(ctx, legsReport, wrapperspb.Bytes(body), new(wrapperspb.BytesValue), grpc.WaitForReady(true))
		}
		if err != nil {
			p.log.Debug("a leg's owner was not told", "owner", owner, "err", err)
			p.lost()
		}
	})
	return done
}

func (p *peers) conn(addr string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conns[addr]; c != nil {
		return c, nil
	}
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(p.creds))
	if err != nil {
		return nil, fmt.Errorf("extproc: peer %q: %w", addr, err)
	}
	p.conns[addr] = c
	return c, nil
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

// legsDesc describes baton.v1.Legs for grpc-go.
func legsDesc(srv *Server) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: legsService,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Report",
			Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				in := new(wrapperspb.BytesValue)
				if err := dec(in); err != nil {
					return nil, err
				}
				return new(wrapperspb.BytesValue), srv.onPeerReport(in.GetValue())
			},
		}},
	}
}

// onPeerReport takes what another replica says of a leg that we booked.
func (srv *Server) onPeerReport(body []byte) error {
	var r peerReport
	if err := json.Unmarshal(body, &r); err != nil {
		return status.Error(codes.InvalidArgument, "expected a leg report")
	}
	leg, err := srv.sealer.Open(r.Token)
	if err != nil || leg.Owner != srv.owner || r.State <= legDispatched || r.State > legEnded {
		return status.Error(codes.PermissionDenied, "the token is not ours")
	}
	s := srv.attempts.find(leg.Nonce)
	if s == nil {
		return status.Error(codes.NotFound, "the attempt is over")
	}
	if r.State == legStarted {
		srv.carriedBy(s, r.From)
	}
	s.post(&event{kind: evLeg, leg: legReport{state: r.State, reason: r.Reason, status: r.Status, retryAfter: r.Retry}})
	return nil
}
