package prefill

import (
	"math"
	"math/rand/v2"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Room is a bootstrap room: the number by which the two halves of a request find each
// other at a prefill worker.
type Room uint64

// MaxRoom is the largest room that an engine accepts: SGLang keeps the room in a signed
// 64-bit integer.
const MaxRoom Room = math.MaxInt64

// DrawRoom returns a room drawn from r for which room mod dpSize is rank. room +
// prompts - 1 is at most MaxRoom, since an engine gives parallel prompts the rooms
// room, room+1, and so on. A dpSize or prompts of 0 counts as 1; rank must be below
// dpSize. It is safe for concurrent use only if r is.
func DrawRoom(r *rand.Rand, rank worker.DPRank, dpSize uint32, prompts int) Room {
	size := uint64(max(dpSize, 1))
	// As many whole groups of size rooms as fit.
	groups := (uint64(MaxRoom) - uint64(max(prompts, 1)) + 1) / size
	return Room(r.Uint64N(groups)*size + uint64(rank))
}
