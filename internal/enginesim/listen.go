package enginesim

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
)

func interfaceAddrs() []netip.Addr {
	var out []netip.Addr
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out
}

// bindPublishers binds the PUB and ROUTER sockets of all ranks on ports that
// follow each other, or returns nil when events are off.
func (s *Sim) bindPublishers() ([]*publisher, error) {
	if s.cfg.KVEventsPort == Off || s.decodes() && s.cfg.NoDecodeEvents {
		return nil, nil
	}
	host, _, _ := net.SplitHostPort(s.cfg.Listen)
	pubs, err := listenRange(host, s.cfg.KVEventsPort, s.cfg.DPSize)
	if err != nil {
		return nil, err
	}
	var replays []net.Listener
	if s.cfg.ReplayPort != Off {
		if replays, err = listenRange(host, s.cfg.ReplayPort, s.cfg.DPSize); err != nil {
			closeAll(pubs)
			return nil, err
		}
	}
	out := make([]*publisher, s.cfg.DPSize)
	for i := range out {
		out[i] = &publisher{
			rank: uint32(i), topic: []byte(s.cfg.Topic), keep: s.cfg.ReplayBuffer, pub: pubs[i],
			subs: make(map[*subscriber]struct{}),
		}
		if replays != nil {
			out[i].replay = replays[i]
		}
	}
	return out, nil
}

// listenRange listens on n ports in a row from base, or anywhere if base is 0.
func listenRange(host string, base, n int) ([]net.Listener, error) {
	var err error
	for range 50 {
		var out []net.Listener
		at := base
		for i := range n {
			port := 0
			if at != 0 {
				port = at + i
			}
			var ln net.Listener
			if ln, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err != nil {
				break
			}
			if at == 0 {
				at = portOf(ln.Addr().String())
			}
			out = append(out, ln)
		}
		if err == nil {
			return out, nil
		}
		closeAll(out)
		if base != 0 {
			break
		}
	}
	return nil, err
}

func closeAll(lns []net.Listener) {
	for _, ln := range lns {
		_ = ln.Close()
	}
}

// acceptLoop serves connections until ctx ends, and waits for all of them.
func acceptLoop(ctx context.Context, ln net.Listener, serve func(context.Context, net.Conn)) {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer c.Close() //nolint:errcheck // nothing left to do with it
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			serve(ctx, c)
		})
	}
}

// gate counts running handlers, so that Run can wait for them.
type gate struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

func (g *gate) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		if g.closed {
			g.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		g.wg.Add(1)
		g.mu.Unlock()
		defer g.wg.Done()
		h.ServeHTTP(w, r)
	})
}

func (g *gate) closeAndWait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}
