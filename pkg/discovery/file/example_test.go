package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A view of a file has its workers, and follows its changes.
func Example() {
	dir, err := os.MkdirTemp("", "file")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	at := filepath.Join(dir, "workers.yaml")
	endpoint, _ := worker.ParseEndpoint("10.0.0.7:8000")
	err = file.Write(at, []*worker.Worker{{
		ID: 7, Role: worker.Aggregated, Engine: worker.VLLM, Endpoint: endpoint, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	source, err := file.New(file.Config{Path: at})
	if err != nil {
		fmt.Println(err)
		return
	}
	view, err := discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "file", Source: source}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- view.Run(ctx) }()
	_ = view.WaitReady(ctx)
	for _, w := range view.Load().Workers() {
		fmt.Println(w.ID, w.Role, w.Endpoint)
	}
	cancel()
	<-over
	// Output:
	// 7 aggregated 10.0.0.7:8000
}
