package cache_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/cache"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// source is a store: it sends one listing, or ends at once if it is away.
type source struct {
	workers []discovery.Entry
	away    bool
}

func (s source) Run(ctx context.Context, sink discovery.Sink) error {
	if s.away {
		return nil
	}
	if err := sink.Send(discovery.List{Revision: 1, Entries: s.workers}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// A plugin that starts while its store is away has the workers of its last run. The
// view marks them as stale.
func Example() {
	dir, err := os.MkdirTemp("", "cache")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	endpoint, _ := worker.ParseEndpoint("10.0.0.7:8000")
	store := source{workers: []discovery.Entry{{Key: "a", Worker: &worker.Worker{
		ID: 7, Role: worker.Aggregated, Engine: worker.VLLM, Endpoint: endpoint, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
	}}}}
	for _, away := range []bool{false, true} {
		store.away = away
		kept, err := cache.New(cache.Config{Inner: store, Path: filepath.Join(dir, "workers.yaml")})
		if err != nil {
			fmt.Println(err)
			return
		}
		view, err := discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "store", Source: kept}}})
		if err != nil {
			fmt.Println(err)
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- view.Run(ctx) }()
		fmt.Println("ready:", view.WaitReady(ctx) == nil, "workers:", len(view.Load().Workers()))
		cancel()
		<-ended
	}
	// Output:
	// ready: true workers: 1
	// ready: true workers: 1
}
