package register

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// randomEvent draws an event that may come now: answers come to questions only.
func randomEvent(rng *rand.Rand, asked map[verb]bool) event {
	switch n := rng.IntN(200); {
	case n < 60 && asked[askHealth]:
		delete(asked, askHealth)
		return healthAsked{health: []engine.Health{engine.Healthy, engine.Healthy, engine.Healthy, engine.Silent, engine.Unhealthy, engine.Refused}[rng.IntN(6)]}
	case n < 120 && asked[refresh]:
		delete(asked, refresh)
		e := refreshed{
			facts: engine.Facts{
				Engine: worker.SGLang, Role: worker.Role(1 + rng.IntN(3)), Models: []string{"m"},
				BlockSize: uint32(rng.IntN(3)), BootstrapPort: uint16(rng.IntN(2)),
				Mark: engine.Mark{Start: strconv.Itoa(rng.IntN(2))},
			},
			addrs: []netip.Addr{netip.MustParseAddr("10.0.0." + strconv.Itoa(rng.IntN(3)))},
		}
		if rng.IntN(5) == 0 {
			e.factsErr = errors.New("no facts")
		}
		if rng.IntN(5) == 0 {
			e.facts.Engine, e.facts.Role = worker.VLLM, 0
		}
		if rng.IntN(5) == 0 {
			unread(&e.facts, []string{"metrics", "models"})
		}
		return e
	case n < 160 && asked[count]:
		delete(asked, count)
		return counted{n: rng.IntN(2)}
	case n < 170:
		return lost{}
	case n < 185:
		return held{uint64(rng.IntN(6))}
	case n == 185:
		return term{known: rng.IntN(2) == 0}
	case n == 186 && rng.IntN(4) == 0:
		return hurry{}
	}
	return tick{}
}
