//go:build e2e && long

package envoytest

import "time"

// outage is how long etcd is away: longer than rivals' fleets live without it.
const outage = 60 * time.Second

// leavers is how many requests of each fleet meet clients that may leave, most of
// which do.
const leavers = 6000

// sweepTick is how long one second of the burst sweep's clock lasts.
const sweepTick = time.Second

// bookedTick is a second of the runs in which what is booked is compared with what
// workers hold, and bookedTicks is how many they have.
const (
	bookedTick  = time.Second
	bookedTicks = 180
)

// bookedBesides are runs besides the one of SGLang with reports: what they show is told.
var bookedBesides = []bookedRun{{"vllm", true}, {"sglang", false}, {"vllm", false}}
