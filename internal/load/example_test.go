package load_test

import (
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func ExampleBook_PickAndReserve() {
	at, _ := worker.ParseEndpoint("10.0.0.7:30000")
	s, err := worker.NewSnapshot(1, []*worker.Worker{{
		ID: 7, Role: worker.Prefill, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
		Bootstrap: worker.Bootstrap{Host: "10.0.0.7", Port: 8998},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	book := load.New(0)
	book.Update(s)

	key, p := worker.Key{Model: "m"}, picker.DefaultParams()
	var booking load.Reservation // part of the stream's struct
	d, err := book.PickAndReserve(&load.Request{
		Key: key, Ranks: s.Pool(key).PrefillRanks, Cached: picker.Cached{Overlap: []uint32{4}}, Params: &p,
		Pick: picker.Request{Role: worker.Prefill, ISLTokens: 80, RequestBlocks: 5}, Now: time.Now(),
	}, &booking)
	fmt.Println(d.Rank, booking.Load().PrefillTokens, err)
	booking.Release(time.Now())
	fmt.Println(book.Totals().Held)
	// Output:
	// 7/0 16 <nil>
	// 0
}
