package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	outcomeRouted  = "routed"
	outcomeOK      = "ok"
	outcomeRetried = "retried"
	stateHealthy   = "healthy"
)

// answerTokens is how long an answer is.
const answerTokens = 16

// beforeKill is how long the doomed worker has read the letter when it dies. The
// whole letter takes it some two seconds.
const beforeKill = 500 * time.Millisecond

// soon bounds each wait for something that takes milliseconds.
const soon = 10 * time.Second

// tell plays the whole story. Its error says what of it was not true.
func tell(ctx context.Context, out *screen, st *stage) error {
	begun := time.Now()
	s := &show{out: out, st: st, admin: admin{st.plugin.Admin}}
	s.banner()
	travel := &conversation{name: "Ann", messages: []message{{"system", travelPrompt}}}
	kitchen := &conversation{name: "Ben", messages: []message{{"system", kitchenPrompt}}}
	for _, chapter := range []func(context.Context, *conversation, *conversation) error{
		s.talk, s.kill, s.goOn,
	} {
		if err := chapter(ctx, travel, kitchen); err != nil {
			return err
		}
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	out.printf("\nThe story took %.1f s. `make up` leaves the same stack running; README.md says what to look at.\n",
		time.Since(begun).Seconds())
	return nil
}

// show is a story that is being told.
type show struct {
	out    *screen
	st     *stage
	admin  admin
	dead   worker.ID // the prefill worker that was killed; 0: none yet
	killed time.Time
	served []*served
}

func (s *show) banner() {
	p := s.out.printf
	p("\n%s\n", s.out.paint(bold, "Baton: the plugin decides once, Envoy carries the bytes of both legs."))
	p("\nRunning on this machine, on loopback only:\n")
	for _, l := range [][3]string{
		{"Envoy", s.st.envoy.URL, "clients send their requests here"},
		{"plugin", "a unix socket", "Envoy asks it once a request: which prefill worker, which decode worker"},
		{"prefill", ids(s.st.prefill), "simulated SGLang workers: read the prompt, hand its KV cache to decode"},
		{"decode", ids(s.st.decode), "simulated SGLang workers: write the answer"},
		{"status page", s.st.plugin.Admin + "/", "who holds what; the latest decisions, each with its cost table"},
	} {
		p("  %-11s  %-24s  %s\n", l[0], l[1], l[2])
	}
	p("A simulated worker takes %d ms for each prompt token that it has not cached, in blocks of %d tokens.\n", prefillPerToken/1000, blockSize)
	p("Its answer begins with a fingerprint of the prompt that it was given: that is how each answer is checked.\n")
}

func ids(ws []*stack.Worker) string {
	var out []string
	for _, w := range ws {
		out = append(out, w.Info.ID.String())
	}
	return "workers " + strings.Join(out, " and ")
}

// talk is the first chapter: two conversations that take turns.
func (s *show) talk(ctx context.Context, travel, kitchen *conversation) error {
	s.out.chapter("1. Two conversations",
		"Ann asks the travel desk, Ben the kitchen; they begin together and then take turns. Each turn sends the\n"+
			"whole conversation again. overlap: blocks of the prompt that the prefill worker already held, by the\n"+
			"plugin's index; cached: prompt tokens that it did not compute again, by its own answer.")
	s.out.tableHead()
	if err := s.openBoth(ctx, travel, kitchen); err != nil {
		return err
	}
	for i := 1; i < 5; i++ {
		if err := s.turn(ctx, travel, travelTurns[i]); err != nil {
			return err
		}
		if i < len(kitchenTurns) {
			if err := s.turn(ctx, kitchen, kitchenTurns[i]); err != nil {
				return err
			}
		}
	}
	n := len(s.served)
	s.out.printf("\n")
	s.out.checked("all %d answers arrived whole and are the right ones", n)
	s.out.checked("each of the %d later turns went to the prefill worker that held most of its blocks, by the workers' own lists", n-2)
	return nil
}

// openBoth begins both conversations. Ben's request is sent while Ann's prompt
// is being read, so that the load of hers counts in his pick.
func (s *show) openBoth(ctx context.Context, travel, kitchen *conversation) error {
	first, second := s.next(travel, travelTurns[0]), s.next(kitchen, kitchenTurns[0])
	for _, r := range []*served{first, second} {
		if err := s.look(ctx, r); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.send(ctx, first) })
	g.Go(func() error {
		if _, err := s.underWay(ctx, first.user); err != nil {
			return err
		}
		return s.send(ctx, second)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	for _, r := range []*served{first, second} {
		if err := s.check(r); err != nil {
			return err
		}
	}
	return nil
}

// kill is the second chapter: a prefill worker dies while it reads a prompt.
func (s *show) kill(ctx context.Context, travel, _ *conversation) error {
	s.out.chapter("2. A prefill worker dies in mid-request",
		"Ann pastes a long letter. While a prefill worker reads it, that process gets kill -9.")
	r := s.next(travel, letter())
	if err := s.look(ctx, r); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.send(gctx, r) })
	g.Go(func() error {
		d, err := s.underWay(gctx, r.user)
		if err != nil {
			return err
		}
		victim := s.st.byID(d.Prefill.Worker)
		if victim == nil {
			return fmt.Errorf("the plugin names a prefill worker %s that nobody started", d.Prefill.Worker)
		}
		if err := pause(gctx, beforeKill); err != nil {
			return err
		}
		s.killed, s.dead = time.Now(), d.Prefill.Worker
		s.out.printf("  %s\n", s.out.paint(red, fmt.Sprintf("%.1f s after the request: kill -9 of prefill worker %s (process %d)",
			s.killed.Sub(d.Time).Seconds(), s.dead, victim.PID())))
		return victim.Kill()
	})
	if err := g.Wait(); err != nil {
		return err
	}
	for i := range r.attempts {
		d := &r.attempts[i]
		when := "before the kill"
		if after := d.Time.Sub(s.killed); after > 0 {
			when = millis(after) + " after the kill"
		}
		s.out.printf("  attempt %d, decided %s: %s\n", d.Attempt, when, attemptText(d))
	}
	if len(r.attempts) < 2 || r.attempts[0].Outcome != outcomeRetried || r.attempts[0].Prefill.Worker != s.dead {
		return fmt.Errorf("expected a first attempt at %s, given up, and a second one; got %s", s.dead, r.history())
	}
	s.out.printf("\n")
	s.out.tableHead()
	if err := s.check(r); err != nil {
		return err
	}
	s.out.printf("\n")
	s.out.checked("the client got its whole answer, the right one, in one stream: %.1f s after it asked, most of it the letter's prefill, read anew", r.answer.took.Seconds())
	return s.setAside(ctx)
}

// setAside waits until the plugin's state names the dead worker as set aside.
func (s *show) setAside(ctx context.Context) error {
	var w workerState
	err := s.await(ctx, "the dead worker to be set aside", func(ctx context.Context) (bool, error) {
		all, err := s.admin.workers(ctx)
		if err != nil {
			return false, err
		}
		w = all[s.dead]
		return w.State != "" && w.State != stateHealthy, nil
	})
	if err != nil {
		return err
	}
	s.out.checked("the plugin has set prefill worker %s aside: %s", s.dead, w.Reason)
	return nil
}

// goOn is the third chapter: the next requests avoid the dead worker.
func (s *show) goOn(ctx context.Context, travel, kitchen *conversation) error {
	s.out.chapter("3. Life goes on", "Nobody has told the plugin that the worker is gone: it is still on the list of workers.")
	s.out.tableHead()
	garden := &conversation{name: "Cleo", messages: []message{{"system", gardenPrompt}}}
	for _, t := range []struct {
		c    *conversation
		text string
	}{{travel, travelTurns[5]}, {kitchen, "And what do we do with the rest of the soup?"}, {garden, gardenTurn}} {
		if err := s.turn(ctx, t.c, t.text); err != nil {
			return err
		}
	}
	s.out.printf("\n")
	s.out.checked("none of them tried worker %s, each was served at its first attempt", s.dead)
	return nil
}

// end checks that nothing is left over.
func (s *show) end(ctx context.Context) error {
	s.out.chapter("4. What is left over", "Every request has ended, so nothing may be booked, held or broken.")
	err := s.await(ctx, "every booking to be released", func(ctx context.Context) (bool, error) {
		all, err := s.admin.workers(ctx)
		for _, w := range all {
			for _, r := range w.Ranks {
				if r.Requests != 0 || r.PrefillTokens != 0 || r.DecodeBlocks != 0 {
					return false, err
				}
			}
		}
		return len(all) > 0, err
	})
	if err != nil {
		return err
	}
	for _, w := range s.living(s.st.workers()) {
		err := s.await(ctx, "worker "+w.Info.ID.String()+" to hold no KV", func(ctx context.Context) (bool, error) {
			st, err := w.Sim.State(ctx, false)
			if err == nil && len(st.Violations) > 0 {
				return false, fmt.Errorf("worker %s was sent something wrong: %+v", w.Info.ID, st.Violations)
			}
			return st.KVHeldBlocks == 0, err
		})
		if err != nil {
			return err
		}
	}
	s.out.checked("no booking is left in the plugin, no KV is held by any living worker")
	s.out.checked("no worker was sent a request that breaks SGLang's rules: each half met the right other half")
	retried := 0
	for _, r := range s.served {
		retried += len(r.attempts) - 1
	}
	s.out.printf("\n%s %d requests, %d answered in full, %d fresh pick after a worker's death.\n",
		s.out.paint(bold, "Summary:"), len(s.served), len(s.served), retried)
	return nil
}

// living leaves out the worker that was killed.
func (s *show) living(ws []*stack.Worker) []*stack.Worker {
	return slices.DeleteFunc(slices.Clone(ws), func(w *stack.Worker) bool { return w.Info.ID == s.dead })
}

// await asks ok until it says yes; an error of ok, or of any process that ends
// by itself before the kill, ends the wait.
func (s *show) await(ctx context.Context, what string, ok func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	var failed error
	err := stack.Await(ctx, what, func() bool {
		yes, err := ok(ctx)
		if err == nil && s.dead == 0 {
			err = s.st.died()
		}
		if ctx.Err() == nil {
			failed = err
		}
		return yes || failed != nil
	})
	return errors.Join(failed, err)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// letter is the long text of the second chapter.
func letter() string {
	var b strings.Builder
	b.WriteString(letterOpening)
	for i, from := range letterPlaces {
		to := letterPlaces[(i+7)%len(letterPlaces)]
		fmt.Fprintf(&b, "\nDay %d: we walk from %s to %s, about %d miles, with a rest at noon by the water; "+
			"%d of us will come, two with dogs, and in the evening we want to be back in the town, "+
			"so please tell us which train we can still reach if we are an hour late.", i+1, from, to, 6+i%9, 4+i*3%11)
	}
	return b.String()
}
