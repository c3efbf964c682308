package replaytest

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// Block is how many tokens a block has.
const Block = 512

// Ask is a request whose answer has three tokens.
func Ask(at time.Duration, tokens int, blocks ...replay.Block) *replay.Request {
	return &replay.Request{At: at, Tokens: tokens, Blocks: blocks, Answer: 3}
}

// FleetOf is a fleet of equal ranks of these roles.
func FleetOf(roles ...replay.Role) *replay.Fleet {
	f := &replay.Fleet{EventDelay: time.Millisecond, ReportEvery: time.Second}
	for _, r := range roles {
		f.Ranks = append(f.Ranks, replay.Rank{
			Role: r, PerToken: 0.001, CacheBlocks: 6, Room: 40, Chunk: 256, Step: replay.Step{Base: 0.02},
		})
	}
	return f
}

// Workload has the requests.
func Workload(asked ...*replay.Request) *replay.Workload {
	w := &replay.Workload{BlockTokens: Block}
	for _, r := range asked {
		w.Requests = append(w.Requests, *r)
	}
	return w
}
