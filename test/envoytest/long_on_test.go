//go:build e2e && long

package envoytest

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// outage is how long etcd is away: longer than rivals' fleets live without it.
const outage = 60 * time.Second

// everyMode has tests to which it does not matter how bodies pass run in both modes.
const everyMode = true

// leavers is how many requests of each fleet meet clients that may leave, most of
// which do.
const leavers = 6000

// restarts is how often the plugin that is alone is killed.
const restarts = 6

// sweepTick is how long one second of the burst sweep's clock lasts.
const sweepTick = time.Second

// bookedTick is a second of the runs in which what is booked is compared with what
// workers hold, and bookedTicks is how many they have.
const (
	bookedTick  = time.Second
	bookedTicks = 180
	bookedOff   = 0.15
)

// bookedRight are the runs in which what is booked has to be right: by reports, and by KV
// events alone.
var bookedRight = []bookedRun{{"sglang", true, true}, {"vllm", false, false}}

// bookedBesides are further runs: what they show is told.
var bookedBesides = []bookedRun{{"vllm", true, true}, {"sglang", false, true}, {"vllm", false, true}}

// replaced is the load while a plugin is replaced twice.
var replaced = replacing{streams: 200, requests: 240, every: time.Second / 6}

// lateRuns are those of the report that 25 to 38 of 38 requests were refused in.
var lateRuns = []lateRun{
	{worker.SGLang, 1500 * time.Millisecond, false, 38}, {worker.SGLang, 2500 * time.Millisecond, true, 38}, {worker.SGLang, 4 * time.Second, false, 38},
	{worker.SGLang, 1500 * time.Millisecond, true, 38}, {worker.VLLM, 2500 * time.Millisecond, false, 38}, {worker.SGLang, 4 * time.Second, true, 38},
}

// loadPause is how long each client of a load waits between two requests.
const loadPause = 0
