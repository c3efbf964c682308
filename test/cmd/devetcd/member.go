package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// portTries is how often other ports are tried when those found free were taken
// before etcd could have them.
const portTries = 5

// member is a running etcd.
type member struct {
	etcd         *embed.Etcd
	client, peer netip.AddrPort
	cancel       context.CancelFunc // ends the streams
}

// start runs a member and returns once it serves; nil and no error when ctx
// ended before that.
func start(ctx context.Context, o options) (*member, error) {
	var m *member
	var err error
	for range portTries {
		m, err = startOnce(o)
		chosen := o.client.Port() == 0 || o.peer.Port() == 0
		if !chosen || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	select {
	case <-m.etcd.Server.ReadyNotify():
		return m, nil
	case err := <-m.failed():
		m.abort()
		return nil, err
	case <-ctx.Done():
		m.abort()
		return nil, nil
	}
}

func startOnce(o options) (*member, error) {
	m := &member{}
	var err error
	// etcd tells its address to clients and to other members, so port 0 would
	// be told, too: the port has to be known before etcd listens.
	m.client, err = withPort(o.client)
	if err != nil {
		return nil, err
	}
	m.peer, err = withPort(o.peer)
	if err != nil {
		return nil, err
	}
	var streams context.Context
	streams, m.cancel = context.WithCancel(context.Background())
	m.etcd, err = embed.StartEtcd(m.config(streams, o))
	if err != nil {
		m.cancel()
		return nil, fmt.Errorf("start etcd in %s: %w", o.dir, err)
	}
	return m, nil
}

func (m *member) config(streams context.Context, o options) *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = o.name, o.dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{urlOf(m.client)}, []url.URL{urlOf(reachable(m.client))}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{urlOf(m.peer)}, []url.URL{urlOf(reachable(m.peer))}
	c.ClusterState, c.InitialCluster = o.clusterState, o.cluster
	if o.cluster == "" {
		c.InitialCluster = c.InitialClusterFromName(o.name)
	}
	c.ElectionMs = uint(o.election.Milliseconds())
	c.TickMs = c.ElectionMs / 10
	c.UnsafeNoFsync = o.noFsync
	c.QuotaBackendBytes = o.quota
	c.LogLevel, c.LogOutputs = "warn", []string{embed.StdErrLogOutput}
	c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(endsWith(streams))}
	return c
}

// endsWith ends every stream with ctx. etcd's own Close waits over five seconds
// for watches and keep-alives to end by themselves, which they do not; and a
// client takes Unavailable, unlike other codes, for a server that went away.
func endsWith(ctx context.Context) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		own, cancel := context.WithCancel(ss.Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		err := handler(srv, stream{ss, own})
		if ctx.Err() != nil {
			return status.Error(codes.Unavailable, "devetcd is stopping")
		}
		return err
	}
}

// stream is a gRPC stream with another context.
type stream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream has one
}

func (s stream) Context() context.Context { return s.ctx }

func (m *member) ready() ready {
	u := urlOf(reachable(m.client))
	return ready{Endpoints: []string{u.String()}, Name: m.etcd.Config().Name, Peer: m.peer.String()}
}

// failed yields the error that ended the member by itself.
func (m *member) failed() <-chan error { return m.etcd.Err() }

// stop ends the member and returns when it has ended.
func (m *member) stop() {
	m.cancel()
	m.etcd.Close()
}

// abort ends a member that may never have served. etcd's Close waits until it
// is ready or stopped, and without the others of its cluster it is never ready.
func (m *member) abort() {
	m.etcd.Server.HardStop()
	m.stop()
}

// withPort replaces port 0 by one that is free now.
func withPort(a netip.AddrPort) (netip.AddrPort, error) {
	if a.Port() != 0 {
		return a, nil
	}
	l, err := net.Listen("tcp", a.String())
	if err != nil {
		return a, fmt.Errorf("find a free port at %s: %w", a.Addr(), err)
	}
	defer l.Close()
	return netip.AddrPortFrom(a.Addr(), uint16(l.Addr().(*net.TCPAddr).Port)), nil
}

// reachable is where a listener on the address is reached from this machine.
func reachable(a netip.AddrPort) netip.AddrPort {
	switch a.Addr() {
	case netip.IPv4Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
	case netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), a.Port())
	}
	return a
}

func urlOf(a netip.AddrPort) url.URL { return url.URL{Scheme: "http", Host: a.String()} }
