package core

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// bindPublishers binds the PUB and ROUTER sockets of all ranks on consecutive ports. It
// returns nil if events are off.
func bindPublishers(cfg Config, encode encoder) ([]*publisher, error) {
	if cfg.KVEventsPort == Off {
		return nil, nil
	}
	host, _, _ := net.SplitHostPort(cfg.Listen)
	pubs, err := listenEvents(cfg, host)
	if err != nil {
		return nil, err
	}
	var replays []net.Listener
	if cfg.ReplayPort != Off {
		replays, err = listenRange(host, cfg.ReplayPort, cfg.DPSize)
		if err != nil {
			closeAll(pubs)
			return nil, err
		}
	}
	out := make([]*publisher, cfg.DPSize)
	for i := range out {
		out[i] = &publisher{
			rank: uint32(cfg.FirstRank + i), topic: []byte(cfg.Topic), keep: cfg.ReplayBuffer, pub: pubs[i],
			subs: make(map[*subscriber]struct{}), encode: encode,
		}
		if replays != nil {
			out[i].replay = replays[i]
		}
	}
	return out, nil
}

// listenEvents listens where the ranks publish: on a row of ports, each rank at its node;
// or on any ports.
func listenEvents(cfg Config, host string) ([]net.Listener, error) {
	nodes := cfg.EventHosts
	if len(nodes) == 0 && !cfg.SystemPorts {
		return listenRange(host, cfg.KVEventsPort, cfg.DPSize)
	}
	if len(nodes) == 0 {
		nodes = []string{host}
	}
	var out []net.Listener
	for r := range cfg.DPSize {
		port := 0
		if !cfg.SystemPorts && cfg.KVEventsPort > 0 {
			port = cfg.KVEventsPort + r
		} else if !cfg.SystemPorts && r > 0 {
			port = PortOf(out[0].Addr().String()) + r
		}
		ln, err := net.Listen("tcp", net.JoinHostPort(nodes[r*len(nodes)/cfg.DPSize], strconv.Itoa(port)))
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, ln)
	}
	return out, nil
}

// listenRange listens on n consecutive ports from base on, or on any if base is 0.
func listenRange(host string, base, n int) ([]net.Listener, error) {
	if base != 0 || n == 1 {
		return listenRow(host, base, n)
	}
	var err error
	for range 1000 {
		// These ports are below the range from which the kernel gives ports to clients.
		// In that range a row of free ports is rare on a busy machine.
		var out []net.Listener
		out, err = listenRow(host, 10_240+rand.IntN(32_768-10_240-n), n)
		if err == nil {
			return out, nil
		}
	}
	return nil, err
}

func listenRow(host string, base, n int) ([]net.Listener, error) {
	var out []net.Listener
	for i := range n {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(base+i)))
		if err != nil {
			closeAll(out)
			return nil, err
		}
		out = append(out, ln)
	}
	return out, nil
}

func closeAll(lns []net.Listener) {
	for _, ln := range lns {
		_ = ln.Close()
	}
}

// acceptLoop serves connections until ctx ends, and then waits until all have ended.
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
			defer c.Close() //nolint:errcheck // the connection is of no more use
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			serve(ctx, c)
		})
	}
}

// gate counts running handlers, so that Run can wait for them.
type gate struct {
	mu     sync.Mutex // guards closed, and that wg grows only while it is false
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

// PortOf is the port of "host:port", or 0.
func PortOf(addr string) int {
	_, p, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(p)
	return n
}
