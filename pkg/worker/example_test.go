package worker_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func ExampleNewSnapshot() {
	at := func(s string) worker.Endpoint {
		e, err := worker.ParseEndpoint(s)
		if err != nil {
			fmt.Println(err)
		}
		return e
	}
	set, err := worker.NewSnapshot(1, []*worker.Worker{
		{
			ID: 7, Role: worker.Prefill, Engine: worker.SGLang, Endpoint: at("10.0.0.7:30000"), Models: []string{"m"}, DPSize: 2, BlockSize: 64,
			Bootstrap: worker.Bootstrap{Host: "10.0.0.7", Port: 8998},
		},
		{ID: 21, Role: worker.Decode, Engine: worker.SGLang, Endpoint: at("10.0.0.21:30000"), Models: []string{"m"}, DPSize: 1, BlockSize: 64},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	pool := set.Pool(worker.Key{Model: "m"})
	fmt.Println("prefill:", pool.Ranks(worker.Prefill))
	fmt.Println("decode:", pool.Ranks(worker.Decode), set.Worker(21).Endpoint)
	// Output:
	// prefill: [7/0 7/1]
	// decode: [21/0] 10.0.0.21:30000
}
