package discovery_test

import (
	"context"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fixed is the smallest source: it sends one listing and no changes.
type fixed []discovery.Entry

func (f fixed) Run(ctx context.Context, sink discovery.Sink) error {
	if err := sink.Send(discovery.List{Revision: 1, Entries: f}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func Example() {
	endpoint, _ := worker.ParseEndpoint("10.0.0.7:30000")
	src := fixed{{Key: "a", Worker: &worker.Worker{
		ID: 7, Role: worker.Prefill, Engine: worker.SGLang, Endpoint: endpoint,
		Models: []string{"qwen"}, DPSize: 1, BlockSize: 64,
	}}}
	v, err := discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "fixed", Source: src}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- v.Run(ctx) }()

	fmt.Println("ready:", v.WaitReady(ctx) == nil)
	fmt.Println("worker:", v.Load().Worker(7).Endpoint)
	for _, p := range v.Status().Problems {
		fmt.Println(p.Kind, p.Worker, p.Text)
	}
	cancel()
	<-done
	// Output:
	// ready: true
	// worker: 10.0.0.7:30000
	// ineligible 7 an sglang prefill worker without bootstrap host and port cannot hand over its KV: add bootstrap: {port: PORT}, that of its --disaggregation-bootstrap-port
}

func ExampleReducer() {
	var r discovery.Reducer
	_ = r.Apply(discovery.List{Revision: 10})
	err := r.Apply(discovery.Batch{Revision: 11, Ops: []discovery.Op{discovery.Delete("gone", 0)}})
	fmt.Println(err)
	fmt.Println(r.State(), r.Revision())
	// Output:
	// discovery: resync: refused: revision 11 after 10: key "gone": delete of an absent key
	// stale 10
}
