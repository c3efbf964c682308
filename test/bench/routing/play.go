package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// warmUps is how many requests go one by one before a run: they open the
// connections, and their time is that of the path alone. They are of one word,
// so they fill no block.
const warmUps = 20

// played is what one live run has found. Times are as they passed.
type played struct {
	heard  []heard
	idle   time.Duration // p50 of the warm-ups
	took   time.Duration // from the first request to the last answer
	engine []tokenCount  // as each prefill worker counts
	faults []string      // why the figures are not to be believed
}

// tokenCount is what a worker has been asked for, and what of it was cached.
type tokenCount struct{ prompt, cached int64 }

// census is all that a run reads of the prefill workers.
type census struct {
	tokens           []tokenCount
	ok, running      int
	failed, breaches int // failed requests, and rules broken
}

// count reads the workers.
func count(ctx context.Context, engines []*enginesim.Client) (c census, err error) {
	for _, e := range engines {
		s, err := e.State(ctx, false)
		if err != nil {
			return census{}, err
		}
		var t tokenCount
		for _, r := range s.Ranks {
			t.prompt, t.cached = t.prompt+int64(r.PromptTokens), t.cached+int64(r.CachedTokens)
		}
		for _, n := range s.Failed {
			c.failed += int(n)
		}
		c.tokens = append(c.tokens, t)
		c.ok, c.running, c.breaches = c.ok+int(s.OK), c.running+s.Running, c.breaches+len(s.Violations)
	}
	return c, nil
}

// idle reads the workers once they have nothing left to do: the prefill leg of
// a request ends a little after its answer.
func idle(ctx context.Context, engines []*enginesim.Client) (c census, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	wait := stack.Await(ctx, "the prefill workers to be done", func() bool {
		var now census
		now, err = count(ctx, engines)
		if err == nil {
			c = now
		}
		return err == nil && c.running == 0
	})
	if wait != nil {
		return c, wait
	}
	return c, nil
}

// play sends a trace to url at its times and reads what became of it at the
// prefill workers.
func play(ctx context.Context, url string, engines []*enginesim.Client, trace []replay.Request, sc scale) (*played, error) {
	c := newClient(url + sc.path())
	defer c.close()
	p := &played{}
	if err := p.warmUp(ctx, c, sc.warmUps()); err != nil {
		return nil, err
	}
	before, err := idle(ctx, engines)
	if err != nil {
		return nil, err
	}
	shots := sc.shots(trace)
	start := time.Now()
	p.heard = c.drive(ctx, shots)
	p.took = time.Since(start)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	after, err := idle(ctx, engines)
	if err != nil {
		p.faults = append(p.faults, err.Error())
	}
	p.compare(before, after)
	return p, nil
}

func (p *played) warmUp(ctx context.Context, c *client, bodies [][]byte) error {
	var took []time.Duration
	for _, body := range bodies {
		h := c.send(ctx, body, time.Now())
		if h.err != nil {
			return fmt.Errorf("warm-up: %w", h.err)
		}
		took = append(took, h.ttft)
	}
	p.idle = stats.Median(took)
	return nil
}

// compare takes what the workers counted between two censuses, and holds it
// against what the answers said.
func (p *played) compare(before, after census) {
	var heardOf, counted tokenCount
	failed, first := 0, error(nil)
	for _, h := range p.heard {
		if h.err != nil {
			failed++
			if first == nil {
				first = h.err
			}
			continue
		}
		heardOf.prompt, heardOf.cached = heardOf.prompt+int64(h.prompt), heardOf.cached+int64(h.cached)
	}
	for i, t := range after.tokens {
		d := tokenCount{t.prompt - before.tokens[i].prompt, t.cached - before.tokens[i].cached}
		p.engine = append(p.engine, d)
		counted.prompt, counted.cached = counted.prompt+d.prompt, counted.cached+d.cached
	}
	fault := func(format string, a ...any) { p.faults = append(p.faults, fmt.Sprintf(format, a...)) }
	if failed > 0 {
		fault("%d of %d requests failed, the first with: %s", failed, len(p.heard), strings.TrimSpace(first.Error()))
	}
	if n := after.ok - before.ok; n != len(p.heard) {
		fault("the prefill workers answered %d legs: expected one for each of %d requests", n, len(p.heard))
	}
	if n := after.failed - before.failed; n > 0 {
		fault("%d legs failed at the prefill workers", n)
	}
	if after.breaches > before.breaches {
		fault("the prefill workers saw their rules broken %d times", after.breaches-before.breaches)
	}
	if heardOf != counted {
		fault("answers told of %d cached of %d prompt tokens: expected the workers' own count, %d of %d",
			heardOf.cached, heardOf.prompt, counted.cached, counted.prompt)
	}
}

// failed is how many requests had no whole answer.
func (p *played) failed() int {
	n := 0
	for _, h := range p.heard {
		if h.err != nil {
			n++
		}
	}
	return n
}

// late is the p99 of how late requests were sent.
func (p *played) late() time.Duration {
	var v []time.Duration
	for _, h := range p.heard {
		v = append(v, h.late)
	}
	slices.Sort(v)
	return stats.Quantile(v, 0.99)
}

// figures are the run's in the trace's own time. Failed requests have no time.
func (p *played) figures(sc scale) replay.Figures {
	var ttft []time.Duration
	for _, h := range p.heard {
		if h.err == nil {
			ttft = append(ttft, time.Duration(float64(h.ttft)*sc.Speedup))
		}
	}
	if len(ttft) == 0 {
		return replay.Figures{}
	}
	f := replay.Figures{First: replay.TimesOf(ttft)}
	var computed []int64
	var all tokenCount
	for _, t := range p.engine {
		computed = append(computed, t.prompt-t.cached)
		all.prompt, all.cached = all.prompt+t.prompt, all.cached+t.cached
	}
	f.Hit, f.Busiest = float64(all.cached)/float64(max(all.prompt, 1)), replay.Busiest(computed)
	return f
}
