package extproctest

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Lists is a discovery source that lists each set of workers that is sent to it.
type Lists chan []*worker.Worker

// Run passes the sets on until ctx ends.
func (l Lists) Run(ctx context.Context, sink discovery.Sink) error {
	for revision := uint64(1); ; revision++ {
		select {
		case ws := <-l:
			list := discovery.List{Revision: revision}
			for _, w := range ws {
				list.Entries = append(list.Entries, discovery.Entry{Key: w.ID.String(), Worker: w, Revision: revision, Version: 1})
			}
			if err := sink.Send(list); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Parts are what a server uses. Board, Book and Health follow View.
type Parts struct {
	View      *discovery.View
	Board     *activation.Board
	Slots     *kvindex.Slots
	Index     *kvindex.Tree
	Routes    *overlap.Routes
	Tokens    *tokens.Resolver
	Book      *load.Book
	Health    *health.Tracker
	Journal   *journal.Journal
	Telemetry *telemetry.Telemetry
}

// NewParts returns parts whose workers come from source. The journal keeps 16 records, the
// index 1 MiB, and tokens are estimated unless a request has them.
func NewParts(source discovery.Source) *Parts {
	slots := kvindex.NewSlots()
	index := made(kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, slots))
	p := &Parts{
		View:  made(discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "test", Source: source}}})),
		Board: activation.New(), Slots: slots, Index: index, Routes: overlap.NewRoutes(index),
		Tokens: made(tokens.New(tokens.Config{Mode: tokens.EstimateOnly})), Book: load.New(1),
		Health: health.New(health.Config{}), Journal: made(journal.New(16)), Telemetry: made(telemetry.New(telemetry.Config{})),
	}
	p.View.Subscribe(func(_, now *worker.Snapshot, c discovery.Change) {
		p.Book.Update(now)
		p.Health.Update(now, time.Now())
		p.Board.Follow(now, c, time.Now())
	})
	return p
}

func made[T any](part T, err error) T {
	if err != nil {
		panic(err)
	}
	return part
}

// Server is what internal/extproc.New returns.
type Server interface {
	GRPCOptions() []grpc.ServerOption
	Register(*grpc.Server)
	Close()
}

// Serve has srv, which uses p, serve at l, and returns once its first workers are known. The
// returned function ends all. Clients must have closed their connections before.
func (p *Parts) Serve(srv Server, l net.Listener) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	g := grpc.NewServer(srv.GRPCOptions()...)
	srv.Register(g)
	ended := make(chan struct{}, 2)
	go func() { _ = g.Serve(l); ended <- struct{}{} }()
	go func() { _ = p.View.Run(ctx); ended <- struct{}{} }()
	if err := p.View.WaitReady(ctx); err != nil {
		panic(err)
	}
	<-p.Board.Ready()
	return func() {
		g.Stop()
		srv.Close()
		p.Tokens.Close()
		cancel()
		<-ended
		<-ended
		if err := p.Telemetry.Shutdown(context.Background()); err != nil {
			panic(err)
		}
	}
}
