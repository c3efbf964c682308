// Command library decides one request with Baton's packages, in a program of its own: it counts
// the tokens, asks the index who holds the prompt, picks prefill and decode, and makes the two
// bodies for SGLang.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/openai"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const blockSize = 4

// must gives up if something fails; a real program would tell its client.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func main() {
	// The fleet: two prefill workers and a decode worker. Discovery and KV events would tell;
	// worker 8 has run a prompt that begins alike.
	prefills, decodes := []worker.Rank{{ID: 7}, {ID: 8}}, []worker.Rank{{ID: 21}}
	meets := worker.Bootstrap{Host: "10.0.0.8", Port: 8998}
	slots := kvindex.NewSlots()
	index := must(kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20}, slots))
	for _, r := range append(prefills, decodes...) {
		index.Attach(r)
	}
	held := kvindex.AppendLocalHashes(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, blockSize, kvindex.Salt{}.Seed())
	must(0, index.Store(prefills[1], kvindex.Stored{Blocks: []kvindex.Block{{Engine: 101, Local: held[0]}, {Engine: 102, Local: held[1]}}}))

	// The request, its tokens and their blocks.
	body := []byte(`{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10,11,12],"max_tokens":64,"stream":true}`)
	var req openai.Request
	must(0, openai.Scan(openai.Completions, body, &req))
	resolver := must(tokens.New(tokens.Config{}))
	defer resolver.Close()
	prompt := resolver.Resolve(context.Background(), tokens.Query{
		Key: worker.Key{Model: string(req.Model)}, Request: &req, Body: body, BlockSize: blockSize,
	}, nil, &tokens.Scratch{})

	// The two picks.
	rng := rand.New(rand.NewPCG(1, 2))
	var overlap kvindex.Overlap
	index.Overlap(prompt.Hashes, &overlap)
	pick := func(role worker.Role, ranks []worker.Rank) picker.Decision {
		var rows []picker.Candidate
		for _, r := range ranks {
			slot, _ := index.Slot(r)
			rows = append(rows, picker.Candidate{Rank: r, OverlapBlocks: overlap.At(slot)})
		}
		params := picker.DefaultParamsFor(role)
		asks := picker.Request{Role: role, ISLTokens: prompt.ISLTokens, RequestBlocks: len(prompt.Hashes)}
		d := must(picker.Pick(&asks, picker.NewCandidates(rows...), &params, 0, rng))
		fmt.Printf("%s: worker %s, %s\n", role, d.Rank, d.Reason)
		return d
	}
	p := pick(worker.Prefill, prefills)
	pick(worker.Decode, decodes)

	// The two bodies. Both name the room in which the legs meet; prefill makes one token.
	room := prefill.DrawRoom(rng, p.Rank.DPRank, 1, req.Parallel())
	legs := must(handoff.Read(worker.SGLang, "/v1/completions", body))
	toPrefill, toDecode := legs.Together(meets, p.Rank.DPRank, room)
	fmt.Printf("to prefill: %s\nto decode: %s\n", toPrefill, toDecode)
}
