package nats_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvevents/nats"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// A subscriber whose index follows the event plane of a Dynamo fleet, as soon as Run runs.
func ExampleNew() {
	plane, err := nats.New(nats.Config{URL: "nats://127.0.0.1:4222"}) // connects when the subscriber runs
	if err != nil {
		fmt.Println(err)
		return
	}
	index, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20}, kvindex.NewSlots())
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = kvevents.NewSubscriber(kvevents.Config{Index: index, Channels: []kvevents.Channel{plane}})
	fmt.Println(err)
	// Output: <nil>
}

// A URL with a user is refused, without its text: pages and logs show the URL.
func ExampleConfig_Validate() {
	fmt.Println(nats.Config{URL: "nats://me:secret@10.0.0.1:4222"}.Validate())
	// Output:
	// nats: url: expected nats://host:port or tls://host:port, and no user
}
