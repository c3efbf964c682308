package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// cases are those that are no plain death in mid-answer, one after the other, each with a decode
// worker of its own.
func (s *scene) cases(ctx context.Context) error {
	for _, c := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"slow, not dead (stopped for 3 s)", s.slow},
		{"the client leaves in the gap", s.leave},
		{"death after the last token, before the usage and [DONE]", s.last},
		{"n = 2", s.refused(`,"n":2`)},
		{"logprobs", s.refused(`,"logprobs":1`)},
		{"a grammar", s.refused(`,"structured_outputs":{"regex":"a*"}`)},
		{"a stop string", s.refused(`,"stop":["x"]`)},
		{"nobody else can decode", s.alone},
	} {
		was := s.asked.Load()
		fmt.Printf("-- %s\n", c.name)
		if err := c.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Printf("   planner asked %d times\n", s.asked.Load()-was)
	}
	return nil
}

// fresh replaces the decode workers by n new ones, of which the first is known.
func (s *scene) fresh(ctx context.Context, n int) error {
	for _, w := range s.fleet.Decodes {
		_ = w.Kill()
	}
	f, err := stack.StartFleet(ctx, s.bin, stack.FleetOptions{Engine: worker.Engine(*engine), Decodes: n,
		Args: []string{"--model=m", "--max-running=100000", fmt.Sprintf("--decode-us-per-token=%d", *step)}})
	if err != nil {
		return err
	}
	s.fleet.Decodes = f.Decodes
	if err := s.known(ctx, 1); err != nil {
		return err
	}
	time.Sleep(300 * time.Millisecond)
	return nil
}

// one sends a request and calls then when a third of it has come.
func (s *scene) one(ctx context.Context, prompt []uint32, more string, then func()) *result {
	var wg sync.WaitGroup
	defer wg.Wait()
	return ask(ctx, s.envoy.URL, "/v1/completions", body(prompt, *tokens, more), func(n int) {
		if n == *tokens/3 {
			wg.Add(1)
			go func() { defer wg.Done(); then() }()
		}
	})
}

func (s *scene) slow(ctx context.Context) error {
	if err := s.fresh(ctx, 2); err != nil {
		return err
	}
	p := prompts(1, *prompt)[0]
	r := s.one(ctx, p, "", func() {
		_ = s.known(ctx, 2)
		_ = s.fleet.Decodes[0].Signal(syscall.SIGSTOP)
		time.Sleep(3 * time.Second)
		_ = s.fleet.Decodes[0].Signal(syscall.SIGCONT)
	})
	fmt.Printf("   wrong: %q, gap %s\n", r.wrong(p, *tokens), r.gap().Round(time.Millisecond))
	return nil
}

func (s *scene) leave(ctx context.Context) error {
	if err := s.fresh(ctx, 2); err != nil {
		return err
	}
	s.delay = 2 * time.Second
	defer func() { s.delay = 0 }()
	c, cancel := context.WithCancel(ctx)
	r := s.one(c, prompts(1, *prompt)[0], "", func() {
		_ = s.known(ctx, 2)
		_ = s.fleet.Decodes[0].Kill()
		time.Sleep(500 * time.Millisecond)
		cancel()
	})
	time.Sleep(500 * time.Millisecond)
	w, done := context.WithTimeout(ctx, 5*time.Second)
	defer done()
	err := stack.Settled(w, append(s.fleet.Prefills, s.fleet.Decodes[1])...)
	fmt.Printf("   client: %v; planner left alone %d times; workers settled: %v\n", r.err, s.left.Load(), err == nil)
	return nil
}

func (s *scene) last(ctx context.Context) error {
	if err := s.fresh(ctx, 2); err != nil {
		return err
	}
	p := prompts(1, *prompt)[0]
	p[0] = 7
	n := 0
	r := ask(ctx, s.envoy.URL, "/v1/completions", body(p, *tokens, ""), func(int) {
		if n++; n == *tokens {
			go func() {
				_ = s.known(ctx, 2)
				_ = s.fleet.Decodes[0].Kill()
			}()
		}
	})
	fmt.Printf("   wrong: %q\n", r.wrong(p, *tokens))
	return nil
}

func (s *scene) refused(more string) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.fresh(ctx, 2); err != nil {
			return err
		}
		p := prompts(1, *prompt)[0]
		r := s.one(ctx, p, more, func() {
			_ = s.known(ctx, 2)
			_ = s.fleet.Decodes[0].Kill()
		})
		fmt.Printf("   client: status %d, %d events, %v, error events %d, done %d\n", r.status, len(r.events), r.err, r.errors, r.done)
		return nil
	}
}

func (s *scene) alone(ctx context.Context) error {
	if err := s.fresh(ctx, 1); err != nil {
		return err
	}
	r := s.one(ctx, prompts(1, *prompt)[0], "", func() { _ = s.fleet.Decodes[0].Kill() })
	fmt.Printf("   client: status %d, %d events, %v, error events %d, done %d; %s after it began\n", r.status, len(r.events), r.err, r.errors, r.done,
		time.Since(r.begun).Round(time.Millisecond))
	return nil
}

// stall has one client that stops reading a large answer, and says what Envoy keeps of it.
func (s *scene) stall(ctx context.Context) error {
	was := rss(s.envoy.PID())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.envoy.URL+"/v1/completions", strings.NewReader(body(prompts(1, 200)[0], *tokens, "")))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	b := make([]byte, 4096)
	_, _ = resp.Body.Read(b)
	time.Sleep(8 * time.Second)
	now := rss(s.envoy.PID())
	n, err := io.Copy(io.Discard, resp.Body)
	fmt.Printf("module %t: answer of %d KiB; Envoy's memory %d KiB before, %d KiB while the client does not read; %v\n", !*plain, n>>10, was, now, err)
	return nil
}
