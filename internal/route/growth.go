package route

import "github.com/seed-60ae5743/baton/internal/load"

// mostParallel is how many generations of one request are booked; engines refuse more,
// or run them one after the other.
const mostParallel = 64

// growth is how many KV blocks the answer is expected to take: by what answers of the
// model have lately been, and by what the request allows if that is less.
func (rt *Router) growth(a *Answer, blockSize int) load.Growth {
	e, size := rt.cfg.Expect(a.Key, a.MaxTokens), float64(max(blockSize, 1))
	return load.Growth{After: e.First, PerSecond: e.PerSecond / size, Most: float64(e.Tokens) / size, Choices: min(a.Parallel, mostParallel)}
}
