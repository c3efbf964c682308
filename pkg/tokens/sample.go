package tokens

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file compares sampled prompts with the engines' KV events. An engine that has served
// a prompt tells the blocks that it holds of it by the ids of their tokens. Blocks with the
// hashes that were made here are blocks with the same ids.

// Compared is what came of one sampled prompt.
type Compared string

// The ends of a comparison.
const (
	// CompareTold means that the engine's events have told each block of the prompt.
	CompareTold Compared = "told"
	// CompareEqual means that the events have not told all blocks, and that the engine,
	// asked for the prompt's tokens, gave the same. It has dropped some blocks or keeps
	// none, or its blocks depend on more than the tokens that it tells.
	CompareEqual Compared = "equal"
	// CompareDiffers means that the engine, asked, gave others.
	CompareDiffers Compared = "differs"
	// CompareUnknown means that not all events came, and the engine did not tell.
	CompareUnknown Compared = "unknown"
)

const (
	sampleEvery = 10 * time.Second // for each model's files, at most
	sampleBytes = 64 << 10         // the longest body that is sampled: it is copied
	toldWithin  = 5 * time.Second  // for the events of a prompt that was served
	toldAgain   = 200 * time.Millisecond
)

// sample is a prompt whose tokens were made here, until it has been served.
type sample struct {
	key    worker.Key
	engine worker.Engine
	trial  local.Trial // the request
	hashes []kvindex.LocalHash
}

// pick returns the number of a new sample of q's model, or 0 if none is due. Files keep one
// at a time: the next takes its place, so that prompts that are never served cost nothing.
func (f *files) pick(q *Query, hashes []kvindex.LocalHash, now time.Time) uint64 {
	if len(q.Body) > sampleBytes || len(hashes) == 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.samples > 0 && now.Sub(f.sampledAt) < sampleEvery {
		return 0
	}
	f.samples++
	f.sampledAt = now
	f.sample = &sample{
		key: q.Key, engine: q.Engine, hashes: slices.Clone(hashes),
		trial: local.Trial{Name: "a request", Path: q.Request.Path, Body: bytes.Clone(q.Body)},
	}
	return f.samples
}

// take returns the sample with this number, and forgets it; nil: another has its place, or
// it was taken.
func (f *files) take(number uint64) *sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	if number != f.samples {
		return nil
	}
	s := f.sample
	f.sample = nil
	return s
}

// Served tells that the engine of rank r, which answers at ep, has computed the prompt. If
// the prompt is a sample, it is compared with the rank's KV events, and if they do not tell
// all of it, with what the engine's tokenizer says. If that differs, the files are out of
// use for such prompts. Served does not wait for it.
func (c Claim) Served(r worker.Rank, ep worker.Endpoint) {
	if c.by == nil {
		return
	}
	s := c.files.take(c.sample)
	if s == nil {
		return
	}
	c.by.mu.Lock()
	defer c.by.mu.Unlock()
	if c.by.closed {
		return
	}
	c.by.running.Go(func() {
		end := c.by.compare(c.files, c.of, s, r, ep)
		if c.by.cfg.OnCompared != nil {
			c.by.cfg.OnCompared(end)
		}
	})
}

// compare compares one sample.
func (r *Resolver) compare(f *files, of form, s *sample, rank worker.Rank, ep worker.Endpoint) Compared {
	if r.toldAll(s.hashes, rank) {
		return CompareTold
	}
	if r.life.Err() != nil {
		return CompareUnknown
	}
	ctx, cancel := context.WithTimeout(r.life, trialTime)
	defer cancel()
	switch differ, err := r.try(ctx, f, of.caller, s.key, s.engine, ep, &s.trial); {
	case err != nil:
		return CompareUnknown
	case differ != "":
		f.set(of, s.engine, Differs, differ)
		return CompareDiffers
	default:
		return CompareEqual
	}
}

// toldAll waits until the rank is known to hold all blocks, for as long as its events may
// take.
func (r *Resolver) toldAll(hashes []kvindex.LocalHash, rank worker.Rank) bool {
	again := time.NewTicker(toldAgain)
	defer again.Stop()
	for late := time.After(toldWithin); ; {
		if r.cfg.Told(rank, hashes) {
			return true
		}
		select {
		case <-again.C:
		case <-late:
			return false
		case <-r.life.Done():
			return false
		}
	}
}

// sampled makes a claim a sample, if one is due and its events can be seen.
func (r *Resolver) sampled(c Claim, q *Query, hashes []kvindex.LocalHash, now time.Time) Claim {
	if r.cfg.Told == nil || q.Request.Path == openai.Other {
		return c
	}
	if n := c.files.pick(q, hashes, now); n > 0 {
		c.by, c.sample = r, n
	}
	return c
}
