package prefill_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The decision travels in a header, and is read only with the key that sealed it.
func ExampleSealer() {
	ours, err := prefill.NewSealer([]byte("a key of 32 bytes or more, secret"))
	if err != nil {
		fmt.Println(err)
		return
	}
	rank := worker.Rank{ID: 7, DPRank: 1}
	room := prefill.DrawRoom(rand.New(rand.NewPCG(1, 2)), rank.DPRank, 4, 1)
	token, err := ours.Seal(prefill.Leg{Owner: "a", Nonce: 9, Prefill: rank, Room: room, Deadline: time.Unix(1_700_000_000, 0)})
	if err != nil {
		fmt.Println(err)
		return
	}
	leg, err := ours.Open(token)
	fmt.Println(leg.Prefill, leg.Room == room, room%4, err)

	others, _ := prefill.NewSealer([]byte("another key, of as many bytes too"))
	_, err = others.Open(token)
	fmt.Println(errors.Is(err, prefill.ErrLegInvalid))
	// Output:
	// 7/1 true 1 <nil>
	// true
}

// Decode waits for a prefill endpoint, and again when the last one has gone.
func ExampleActivation() {
	var a prefill.Activation
	for _, ev := range []prefill.ActivationEvent{
		{Kind: prefill.DecodeJoined, Worker: 21, Side: "blue"},
		{Kind: prefill.PrefillUp, Worker: 7},
		{Kind: prefill.PrefillLeft, Worker: 7},
	} {
		t, changed := a.Apply(ev)
		fmt.Println(t.To, changed, a.CanServe(true)) // true: not without prefill
	}
	// Output:
	// decode-waiting true false
	// prefill-ready true true
	// deactivated true false
}
