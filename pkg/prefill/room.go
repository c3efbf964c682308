package prefill

import (
	"math"
	"math/rand/v2"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Room is a bootstrap room: the number under which the two halves of one
// request find each other at a prefill worker.
type Room uint64

// MaxRoom is the largest room an engine accepts. SGLang stores the room in a
// signed 64-bit integer.
const MaxRoom Room = math.MaxInt64

// DrawRoom returns a room drawn from r with room mod dpSize == rank, and with
// room + prompts - 1 still a room, since an engine gives parallel prompts the
// rooms room, room+1, and so on. dpSize and prompts of 0 count as 1; rank must
// be below dpSize. It is not safe for concurrent use unless r is.
func DrawRoom(r *rand.Rand, rank worker.DPRank, dpSize uint32, prompts int) Room {
	size := uint64(max(dpSize, 1))
	// Whole groups of dpSize that lie below the highest first room.
	groups := (uint64(MaxRoom) - uint64(max(prompts, 1)) + 1) / size
	return Room(r.Uint64N(groups)*size + uint64(rank))
}
