package kvindex

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Guess is why it is believed that a rank has a prompt that was routed to it.
type Guess uint8

// The guesses.
const (
	Estimated Guess = iota // nothing will ever tell of it
	Predicted              // events will, once the prompt has been computed
	numGuesses
)

// DefaultRoutedBlocks is what RouteConfig.MaxBlocks is when 0.
const DefaultRoutedBlocks = 500_000

// RouteConfig says how long and how much of what was routed is believed to be
// held. The zero value is the documented default.
type RouteConfig struct {
	// TTL is for Estimated. Default 120 s. Higher keeps long conversations warm;
	// too high believes in evicted blocks.
	TTL time.Duration
	// PredictedTTL is for Predicted. Default 10 s: a prompt's way through a busy
	// queue and back as an event. Higher helps where queues are longer; too high
	// believes in prompts that were given up.
	PredictedTTL time.Duration
	// MaxBlocks bounds the blocks of all ranks together, least recently routed
	// first out. Default 500,000; in a Tree an eighth of the memory budget at
	// most. A block costs 16 bytes of it, and each prompt's end some 200; beside
	// it an end costs some 100 more.
	MaxBlocks int
}

func (c RouteConfig) withDefaults() RouteConfig {
	if c.TTL == 0 {
		c.TTL = 120 * time.Second
	}
	if c.PredictedTTL == 0 {
		c.PredictedTTL = 10 * time.Second
	}
	if c.MaxBlocks == 0 {
		c.MaxBlocks = DefaultRoutedBlocks
	}
	return c
}

func (c RouteConfig) ttl(g Guess) time.Duration {
	if g == Predicted {
		return c.PredictedTTL
	}
	return c.TTL
}

// Validate returns every fault of the configuration, joined, or nil.
func (c RouteConfig) Validate() error {
	var errs []error
	if c.TTL < 0 {
		errs = append(errs, fmt.Errorf("kvindex: routed TTL %s: expected above 0", c.TTL))
	}
	if c.PredictedTTL < 0 {
		errs = append(errs, fmt.Errorf("kvindex: predicted TTL %s: expected above 0", c.PredictedTTL))
	}
	if c.MaxBlocks < 0 {
		errs = append(errs, fmt.Errorf("kvindex: routed max blocks %d: expected above 0", c.MaxBlocks))
	}
	return errors.Join(errs...)
}

// timeline is an index's own time: what callers say, since the first of them,
// and never back. Callers read the clock before they take the lock, so that they
// come a little out of order.
type timeline struct {
	epoch time.Time
	now   time.Duration
}

func (t *timeline) tell(now time.Time) {
	if t.epoch.IsZero() {
		t.epoch = now
	}
	t.now = max(t.now, now.Sub(t.epoch))
}

func (t *timeline) at(d time.Duration) time.Time { return t.epoch.Add(d) }

// minStrangers is how many ranks that only routing names may be there before
// those of whom nothing is left are looked for.
const minStrangers = 64

// inOrder returns the ranks by their slots.
func inOrder[R any](ranks map[worker.Rank]R, slot func(R) Slot) []R {
	return slices.SortedFunc(maps.Values(ranks), func(a, b R) int { return cmp.Compare(slot(a), slot(b)) })
}
