package etcd_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
)

// A view of the workers that are registered in etcd. Run follows them; until etcd has
// answered, the view is empty and not ready.
func Example() {
	client, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{"http://127.0.0.1:2379"}}) // connects when it is used
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	source, err := etcd.New(client, etcd.Config{Prefix: etcd.DefaultPrefix})
	if err != nil {
		fmt.Println(err)
		return
	}
	view, err := discovery.New(discovery.Config{Sources: []discovery.Named{{Name: "etcd", Source: source}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	// go view.Run(ctx); view.WaitReady(ctx)
	fmt.Println(len(view.Load().Workers()), "workers")
	// Output: 0 workers
}

func ExampleConfig_Validate() {
	fmt.Println(etcd.Config{Prefix: "baton/", PageSize: -1}.Validate())
	// Output:
	// etcd: page size -1: expected a number above 0
	// prefix "baton/": expected names with slashes between them, for example baton/v1
}
