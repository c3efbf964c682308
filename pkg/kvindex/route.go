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

// Guess is the reason to believe that a rank holds a prompt that was routed to it.
type Guess uint8

// The guesses.
const (
	Estimated Guess = iota // no KV event will confirm the guess
	Predicted              // KV events will confirm the guess once the prompt is computed
	numGuesses
)

// DefaultRoutedBlocks is the default of RouteConfig.MaxBlocks.
const DefaultRoutedBlocks = 500_000

// RouteConfig limits for how long, and how many blocks of, routed prompts are believed to be
// held. The zero value is the documented default.
type RouteConfig struct {
	// TTL is how long an Estimated prompt is believed. Default 120 s. A higher value
	// keeps long conversations warm; too high a value counts blocks that the worker has
	// evicted.
	TTL time.Duration
	// PredictedTTL is how long a Predicted prompt is believed. Default 10 s, enough for
	// a prompt to pass a busy queue and come back as an event. A higher value helps
	// with longer queues; too high a value counts prompts that were given up.
	PredictedTTL time.Duration
	// MaxBlocks bounds the routed blocks of all ranks together; the least recently
	// routed are dropped first. Default 500,000. A Tree also bounds them to an eighth
	// of its memory budget, where a block counts as 16 bytes and the end of each prompt
	// as some 200. Some 100 bytes more for each end are outside of the budget.
	MaxBlocks int
}

func (c RouteConfig) withDefaults() RouteConfig {
	c.TTL = cmp.Or(c.TTL, 120*time.Second)
	c.PredictedTTL = cmp.Or(c.PredictedTTL, 10*time.Second)
	c.MaxBlocks = cmp.Or(c.MaxBlocks, DefaultRoutedBlocks)
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

// timeline is an index's clock: the latest time that a caller has told, counted from
// the first. It never goes back, although callers come a little out of order, since
// they read the clock before they take the lock.
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

// minStrangers is how many ranks that are not attached, but known from Route, may exist
// before the index looks for those with nothing left.
const minStrangers = 64

// inOrder returns the ranks ordered by their slots.
func inOrder[R any](ranks map[worker.Rank]R, slot func(R) Slot) []R {
	return slices.SortedFunc(maps.Values(ranks), func(a, b R) int { return cmp.Compare(slot(a), slot(b)) })
}
