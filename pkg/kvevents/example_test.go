package kvevents_test

import (
	"encoding/hex"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/kvevents"
)

func ExampleDecoder() {
	// One BlockRemoved as vLLM 0.33 publishes it.
	payload, _ := hex.DecodeString("93cb41d954fc402000009184a474797065ac426c6f636b52656d6f766564" +
		"ac626c6f636b5f68617368657391cf1122334455667788a66d656469756da3475055a967726f75705f6964780000")
	batch, err := kvevents.NewDecoder(16, 0, false).Decode(payload)
	fmt.Println(err, len(batch.Events))
	fmt.Printf("%x on %s\n", batch.Events[0].Removed.Blocks, batch.Events[0].Removed.Tier)
	// Output:
	// <nil> 1
	// [1122334455667788] on device
}
