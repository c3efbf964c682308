package etcd

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// lessor is an etcd that renews one lease. It can cut its connections, and leave questions
// unanswered for a while.
type lessor struct {
	pb.UnimplementedLeaseServer
	net.Listener

	mu    sync.Mutex // guards the fields below
	lease clientv3.LeaseID
	deaf  chan struct{} // until it is closed nothing is answered; nil: it is not deaf
	conns []net.Conn
}

func newLessor(t *testing.T, lease clientv3.LeaseID) (*lessor, *clientv3.Client) {
	t.Helper()
	at, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &lessor{Listener: at, lease: lease}
	s := grpc.NewServer()
	pb.RegisterLeaseServer(s, l)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	c, err := Dial(ClientConfig{Endpoints: []string{at.Addr().String()}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return l, c
}

func (l *lessor) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns = append(l.conns, c)
	}
	return c, err
}

// cut ends all connections. Others are accepted.
func (l *lessor) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// deafen leaves questions unanswered until hear, also those that come before.
func (l *lessor) deafen() (hear func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = make(chan struct{})
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.deaf)
		l.deaf = nil
	})
}

func (l *lessor) revoke() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = 0
}

func (l *lessor) LeaseKeepAlive(s pb.Lease_LeaseKeepAliveServer) error {
	for {
		q, err := s.Recv()
		if err != nil {
			return err
		}
		l.mu.Lock()
		deaf, a := l.deaf, &pb.LeaseKeepAliveResponse{Header: new(pb.ResponseHeader), ID: q.ID}
		if q.ID == int64(l.lease) {
			a.TTL = 3600
		}
		l.mu.Unlock()
		if deaf != nil {
			<-deaf
		}
		if err := s.Send(a); err != nil {
			return err
		}
	}
}

func TestAPulseGoesOnAfterItsStreamHasEnded(t *testing.T) {
	t.Parallel()
	const lease = 7
	l, c := newLessor(t, lease)
	var p pulse
	t.Cleanup(p.stop)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	require.NoError(t, p.beat(ctx, c, lease))
	stream := p.stream
	require.NoError(t, p.beat(ctx, c, lease))
	require.Equal(t, stream, p.stream, "over the same stream")
	l.cut()
	require.NoError(t, p.beat(ctx, c, lease))
	hear := l.deafen()
	t.Cleanup(hear)
	short, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	require.ErrorIs(t, p.beat(short, c, lease), context.DeadlineExceeded)
	hear()
	l.revoke()
	require.ErrorContains(t, p.beat(ctx, c, lease), "requested lease not found", "and no late answer to the beat before")
}
