package route

import "github.com/seed-60ae5743/baton/internal/load"

// mostParallel bounds the generations of one request that are booked. Engines refuse a
// higher number, or run the generations one after the other.
const mostParallel = 64

// growth returns how many KV blocks the answer is expected to take: as many as the
// model's answers have lately taken, or what the request allows if that is less.
func (c *Config) growth(a *Answer, blockSize int) load.Growth {
	e, size := c.Expect(a.Key, a.MaxTokens), float64(max(blockSize, 1))
	return load.Growth{After: e.First, PerSecond: e.PerSecond / size, Most: float64(e.Tokens) / size, Choices: min(a.Parallel, mostParallel)}
}
