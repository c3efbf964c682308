package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/internal/decision"
)

const stateHealthy = "healthy"

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
	s := &show{out: out, st: st, admin: admin{st.plugin.Admin}, names: names{}}
	s.names.learn(st.pods())
	s.banner()
	travel := &conversation{name: "Ann", messages: []message{{"system", travelPrompt}}}
	kitchen := &conversation{name: "Ben", messages: []message{{"system", kitchenPrompt}}}
	for _, chapter := range []func(context.Context, *conversation, *conversation) error{
		s.talk, s.kill, s.goOn, s.comeBack,
	} {
		if err := chapter(ctx, travel, kitchen); err != nil {
			return err
		}
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	out.printf("\nThe story took %.1f s. `make up` leaves the same stack running; docs/using.md says what to try.\n",
		time.Since(begun).Seconds())
	return nil
}

// show is a story that is being told.
type show struct {
	out    *screen
	st     *stage
	admin  admin
	names  names
	dead   *pod // the prefill worker that was killed; nil: none yet
	killed time.Time
	served []*served

	refused int // requests that were refused, rightly
}

func (s *show) banner() {
	p := s.out.printf
	p("\n%s\n", s.out.paint(bold, "Baton: the plugin decides once, Envoy carries the bytes of both legs."))
	p("\nRunning on this machine, on loopback only:\n")
	for _, l := range [][3]string{
		{"Envoy", s.st.envoy.URL, "clients send their requests here"},
		{"plugin", "a unix socket", "Envoy asks it once a request: which prefill worker, which decode worker"},
		{"prefill", workersText(s.st.prefill), "simulated SGLang workers: read the prompt, hand its KV cache to decode"},
		{"decode", workersText(s.st.decode), "simulated SGLang workers: write the answer"},
		{"etcd", s.st.keys[0], fmt.Sprintf("holds a key for each worker, under a lease of %.0f s that is renewed from its pod", leaseTTL.Seconds())},
		{"status page", s.st.plugin.Admin + "/", "who holds what; the latest decisions, each with its cost table"},
	} {
		p("  %-11s  %-24s  %s\n", l[0], l[1], l[2])
	}
	p("Beside each worker, as in a pod, runs `extproc register`, which keeps its key there. "+
		"The worker's id is the lease's: to the plugin, %s is %s.\n", s.st.prefill[0].name, s.st.prefill[0].id)
	p("A simulated worker takes %d ms for each prompt token that it has not cached, in blocks of %d tokens.\n", prefillPerToken/1000, blockSize)
	p("Its answer begins with a fingerprint of the prompt that it was given: that is how each answer is checked.\n")
}

func workersText(pods []*pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.name)
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
		if i < 4 { // the rest of them are for later
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
		"Ann pastes a long letter. While a prefill worker reads it, its pod dies: the worker and what registers it\n"+
			"get kill -9, so that nobody is told.")
	r := s.next(travel, letter())
	if err := s.look(ctx, r); err != nil {
		return err
	}
	var victim *pod
	var aside string
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.send(gctx, r) })
	g.Go(func() (err error) {
		victim, err = s.killPrefillOf(gctx, r)
		if err != nil {
			return err
		}
		// At once: a dead worker's lease may run out before the letter is read.
		aside, err = s.setAside(gctx, victim)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	s.dead = victim
	for i := range r.attempts {
		d := &r.attempts[i]
		when := "before the kill"
		if after := d.Time.Sub(s.killed); after > 0 {
			when = millis(after) + " after the kill"
		}
		s.out.printf("  attempt %d, decided %s: %s\n", d.Attempt, when, attemptText(d, s.names))
	}
	if len(r.attempts) < 2 || r.attempts[0].Outcome != decision.Retried || r.attempts[0].Prefill.Rank.ID != victim.id {
		return fmt.Errorf("expected a first attempt at %s, given up, and a second one; got %s", victim.name, r.history())
	}
	s.out.printf("\n")
	s.out.tableHead()
	if err := s.check(r); err != nil {
		return err
	}
	s.out.printf("\n")
	s.out.checked("the client got its whole answer, the right one, in one stream: %.1f s after it asked, most of it the letter's prefill, read anew", r.answer.took.Seconds())
	s.out.checked("the plugin has set prefill worker %s aside: %s", victim.name, aside)
	return nil
}

// killPrefillOf kills the prefill worker of a request that is under way.
func (s *show) killPrefillOf(ctx context.Context, r *served) (*pod, error) {
	d, err := s.underWay(ctx, r.user)
	if err != nil {
		return nil, err
	}
	victim := s.st.byID(d.Prefill.Rank.ID)
	if victim == nil {
		return nil, fmt.Errorf("the plugin names a prefill worker %s that nobody started", d.Prefill.Rank.ID)
	}
	if err := pause(ctx, beforeKill); err != nil {
		return nil, err
	}
	s.killed = time.Now()
	s.out.printf("  %s\n", s.out.paint(red, fmt.Sprintf("%.1f s after the request: %s, the pod of prefill worker %s",
		s.killed.Sub(d.Time).Seconds(), killText(victim), victim.name)))
	return victim, s.st.kill(victim)
}

// setAside waits until the plugin's state names the dead worker as set aside,
// and returns the reason.
func (s *show) setAside(ctx context.Context, victim *pod) (reason string, err error) {
	err = s.st.await(ctx, "the dead worker to be set aside", func(ctx context.Context) (bool, error) {
		all, err := s.admin.workers(ctx)
		if err != nil {
			return false, err
		}
		w := all[victim.id]
		reason = w.Reason
		return w.State != "" && w.State != stateHealthy, nil
	})
	return reason, err
}

// goOn is the third chapter: the next requests avoid the dead worker.
func (s *show) goOn(ctx context.Context, travel, kitchen *conversation) error {
	s.out.chapter("3. Life goes on", fmt.Sprintf(
		"Nobody has told the plugin that the worker is gone: it stays on the list of workers until its lease in etcd\n"+
			"has run out, %.0f s after it was last renewed.", leaseTTL.Seconds()))
	s.out.tableHead()
	garden := &conversation{name: "Cleo", messages: []message{{"system", gardenPrompt}}}
	for _, t := range []struct {
		c    *conversation
		text string
	}{{travel, travelTurns[5]}, {kitchen, kitchenTurns[4]}, {garden, gardenTurn}} {
		if err := s.turn(ctx, t.c, t.text); err != nil {
			return err
		}
	}
	s.out.printf("\n")
	s.out.checked("none of them tried worker %s, each was served at its first attempt", s.dead.name)
	if err := s.offTheList(ctx); err != nil {
		return err
	}
	s.out.checked("by now, %.1f s after the kill, its lease has run out: it is off the list", time.Since(s.killed).Seconds())
	return nil
}

// offTheList waits until the plugin knows exactly the workers that live.
func (s *show) offTheList(ctx context.Context) error {
	living := s.st.living(s.st.pods())
	return s.st.await(ctx, "the dead to be off the plugin's list", func(ctx context.Context) (bool, error) {
		known, err := s.admin.workers(ctx)
		return err == nil && same(known, living), err
	})
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
