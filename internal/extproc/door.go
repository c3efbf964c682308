package extproc

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
)

// stage is how far the end of the process has come. It never goes back.
type stage uint8

const (
	stageServing  stage = iota
	stageDraining       // streams that are no longer needed are left
	stageRefusing       // also, new requests are refused
	stageEnding         // also, streams that would not end by themselves are ended
)

// comeback is until when a request may come again that this process has told to: a drain ends no
// sooner, and takes it. Safe for concurrent use.
type comeback struct{ until atomic.Int64 } // ns of Unix time

// comebackWithin is longer than Envoy takes to begin a fresh attempt.
const comebackWithin = time.Second

func (c *comeback) told(now time.Time) { c.until.Store(now.Add(comebackWithin).UnixNano()) }

func (c *comeback) due(now time.Time) bool { return now.UnixNano() < c.until.Load() }

// door lets main legs in, knows those whose stream is open, and how far the end of the process has
// come. Safe for concurrent use.
type door struct {
	mu    sync.Mutex
	live  map[*mainStream]struct{} // guarded by mu: main legs whose stream is open
	stage stage                    // guarded by mu

	drained chan struct{} // closes at stageEnding

	again comeback
}

func newDoor() door { return door{live: make(map[*mainStream]struct{}), drained: make(chan struct{})} }

// enter notes that a main leg is here, so that a drain waits for the leg. It returns false
// if new requests are refused. Who comes while a request is to come again is taken, since only
// its headers, which come later, could tell the two apart.
func (d *door) enter(s *mainStream) bool {
	d.mu.Lock()
	now := d.stage
	takes := now < stageRefusing || now == stageRefusing && d.again.due(time.Now())
	if takes {
		d.live[s] = struct{}{}
	}
	d.mu.Unlock()
	if takes && now >= stageDraining {
		s.post(just(leg.Event{Kind: leg.EventDrain}))
	}
	return takes
}

func (d *door) leave(s *mainStream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.live, s)
}

// holds reports whether the stream of a main leg is open.
func (d *door) holds(s *mainStream) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, open := d.live[s]
	return open
}

func (d *door) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.live)
}

// reached reports whether the end of the process has come to the stage s.
func (d *door) reached(s stage) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stage >= s
}

// goOn goes on to the stage s, and returns the main legs whose stream is open.
func (d *door) goOn(s stage) []*mainStream {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s == stageEnding && d.stage < s {
		close(d.drained)
	}
	d.stage = max(d.stage, s)
	return slices.Collect(maps.Keys(d.live))
}
