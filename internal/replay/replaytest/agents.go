package replaytest

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// Agents states traffic of agents. A session belongs to one of a few apps, whose system prompt
// and tools begin each of its prompts. Its first prompt, and each later one, is made of a share
// Reused that an earlier prompt had, and new text: what the model has answered, and what a tool
// has returned. Where a prompt would have more than Longest tokens, the session's history is
// compacted: what is left is the app's beginning, and new text again. A next prompt is sent a
// pause after the answer to the one before has ended. All numbers are above 0.
type Agents struct {
	Requests    int              // of all sessions together, at least; the last session is whole
	PerSecond   float64          // sessions that begin, at random times
	Apps        int              // each session's is drawn
	Shared      int              // tokens of an app's system prompt and tools
	Reused      float64          // of each prompt's tokens: above 0 and below 1
	Longest     int              // tokens of a prompt
	Turns       [2]int           // requests of a session, evenly drawn, both ends included
	Pause       [2]time.Duration // evenly drawn by its logarithm
	Answer      [2]int           // tokens, evenly drawn, both ends included
	BlockTokens int
	Seed        uint64
}

// DefaultAgents returns the traffic that make bench-routing calls agents.
func DefaultAgents() Agents {
	return Agents{
		Requests: 3000, PerSecond: 0.5, Apps: 4, Shared: 8192, Reused: 0.8, Longest: 48 << 10, Turns: [2]int{5, 40},
		Pause: [2]time.Duration{time.Second, time.Minute}, Answer: [2]int{20, 300}, BlockTokens: 256, Seed: 1,
	}
}

// Workload generates the traffic. Equal values give equal requests.
func (a *Agents) Workload() *replay.Workload {
	rng := rand.New(rand.NewPCG(a.Seed, 1))
	w := &replay.Workload{BlockTokens: a.BlockTokens}
	next, at := replay.Block(0), 0.0
	chain := func(n int) []replay.Block {
		out := make([]replay.Block, n)
		for i := range out {
			next++
			out[i] = next
		}
		return out
	}
	apps := make([][]replay.Block, a.Apps)
	for i := range apps {
		apps[i] = chain(a.Shared / a.BlockTokens)
	}
	between := func(r [2]int) int { return r[0] + rng.IntN(r[1]-r[0]+1) }
	for session := 0; len(w.Requests) < a.Requests; session++ {
		at += rng.ExpFloat64() / a.PerSecond
		app := apps[rng.IntN(len(apps))]
		blocks, tokens := app, a.Shared
		for turn := range between(a.Turns) {
			longer := int(float64(tokens) / a.Reused)
			if longer > a.Longest {
				blocks, longer = app, int(float64(a.Shared)/a.Reused)
			}
			tokens = longer
			blocks = append(slices.Clip(blocks), chain(tokens/a.BlockTokens-len(blocks))...)
			r := replay.Request{At: time.Duration(at * float64(time.Second)), Tokens: tokens, Blocks: blocks, Answer: between(a.Answer), Session: session}
			if turn > 0 {
				low, high := math.Log(a.Pause[0].Seconds()), math.Log(a.Pause[1].Seconds())
				r.At, r.Follows = time.Duration(math.Exp(low+rng.Float64()*(high-low))*float64(time.Second)), len(w.Requests)
			}
			w.Requests = append(w.Requests, r)
		}
	}
	return w
}
