//go:build e2e && !long

package envoytest

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// outage is how long etcd is away: longer than any lease.
const outage = 3 * time.Second

// everyMode has tests to which it does not matter how bodies pass run in both modes.
const everyMode = false

// leavers is how many requests of each fleet meet clients that may leave, most of
// which do.
const leavers = 160

// restarts is how often the plugin that is alone is killed.
const restarts = 2

// sweepTick is how long one second of the burst sweep's clock lasts.
const sweepTick = time.Second / 10

// bookedTick is a second of the run in which what is booked is compared with what
// workers hold, and bookedTicks is how many it has.
const (
	bookedTick  = time.Second / 5
	bookedTicks = 40
	bookedOff   = 0.25 // a busy machine is late by more of a tick
)

// bookedRight is the run in which what is booked has to be right.
var bookedRight = []bookedRun{{"sglang", true, true}}

// bookedBesides is a further run: what it shows is told, since what is learned in its first
// seconds is much of it.
var bookedBesides = []bookedRun{{"vllm", false, false}}

// replaced is the load while a plugin is replaced twice.
var replaced = replacing{streams: 40, requests: 48, every: 80 * time.Millisecond}

var lateRuns = []lateRun{{worker.SGLang, 2500 * time.Millisecond, false, 10}}

// loadPause is how long each client of a load waits between two requests.
const loadPause = 100 * time.Millisecond
