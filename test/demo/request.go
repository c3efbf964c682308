package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// conversation is what one person and the assistant have said so far.
type conversation struct {
	name     string
	turns    int
	messages []message
}

// served is one request of the story: what was asked, what the workers held
// when it was sent, what was decided and what came back.
type served struct {
	conversation *conversation
	turn         int
	user         string // unique: finds the request in the workers' logs
	id           string // the x-request-id that Envoy gave it
	messages     []message
	prompt       []uint32
	held         map[worker.ID]int // leading blocks of the prompt, by the prefill workers' own lists
	answer       *answer
	attempts     []decision.Record // the first one first
	names        names
}

func (r *served) label() string { return r.conversation.name + " " + strconv.Itoa(r.turn) }

func (r *served) last() *decision.Record { return &r.attempts[len(r.attempts)-1] }

// history says how the attempts went, for an error.
func (r *served) history() string {
	out := make([]string, len(r.attempts))
	for i := range r.attempts {
		out[i] = attemptText(&r.attempts[i], r.names)
	}
	return strings.Join(out, "; then ")
}

// next makes the request of a conversation's next turn.
func (s *show) next(c *conversation, text string) *served {
	c.turns++
	c.messages = append(c.messages, message{"user", text})
	r := &served{
		conversation: c, turn: c.turns, messages: slices.Clone(c.messages), prompt: promptTokens(c.messages),
		user:  fmt.Sprintf("%s-%d-%08x", strings.ToLower(c.name), c.turns, rand.Uint32()),
		names: s.names,
	}
	s.served = append(s.served, r)
	return r
}

// turn serves a conversation's next turn from beginning to end.
func (s *show) turn(ctx context.Context, c *conversation, text string) error {
	r := s.next(c, text)
	if err := s.look(ctx, r); err != nil {
		return err
	}
	if err := s.send(ctx, r); err != nil {
		return err
	}
	return s.check(r)
}

// look asks the prefill workers which blocks of the prompt they hold, and waits
// until the plugin's index has heard of all that they hold.
func (s *show) look(ctx context.Context, r *served) error {
	r.held = make(map[worker.ID]int)
	return s.st.await(ctx, "the index to know the workers' caches", func(ctx context.Context) (bool, error) {
		known, err := s.admin.workers(ctx)
		if err != nil {
			return false, err
		}
		for _, p := range s.st.living(s.st.prefill) {
			st, err := p.engine.Sim.State(ctx, true)
			if err != nil {
				return false, err
			}
			ranks := known[p.id].Ranks
			if len(ranks) != 1 || len(st.Ranks) != 1 || ranks[0].IndexBlocks != len(st.Ranks[0].Blocks) ||
				ranks[0].Events == nil || ranks[0].Events.State != "connected" {
				return false, nil
			}
			r.held[p.id] = held(st.Ranks[0].Blocks, r.prompt, blockSize)
		}
		return true, nil
	})
}

// send asks Envoy, and then the plugin what it had decided.
func (s *show) send(ctx context.Context, r *served) (err error) {
	r.answer, err = ask(ctx, s.st.envoy.URL, r.user, r.messages, answerTokens)
	if err != nil {
		return err
	}
	return s.learn(ctx, r)
}

// learn takes up the answer, and asks the plugin what it had decided.
func (s *show) learn(ctx context.Context, r *served) (err error) {
	r.conversation.messages = append(r.conversation.messages, message{"assistant", r.answer.text})
	return s.st.await(ctx, "the decision of request "+r.user, func(ctx context.Context) (bool, error) {
		r.id, err = requestID(ctx, s.st.living(s.st.decode), r.user)
		if err != nil || r.id == "" {
			return false, err
		}
		r.attempts, err = s.admin.attempts(ctx, r.id)
		return len(r.attempts) > 0 && r.last().Outcome != decision.Routed, err
	})
}

// requestID finds a request in the workers' logs and returns the id that Envoy
// has given it; empty where no worker has seen it. Envoy draws a new id for
// each client's request, so the client cannot know it.
func requestID(ctx context.Context, pods []*pod, user string) (string, error) {
	for _, p := range pods {
		log, err := p.engine.Sim.Requests(ctx, 0)
		if err != nil {
			return "", err
		}
		for _, q := range log {
			if strings.Contains(q.Body, `"user":"`+user+`"`) {
				return q.Headers.Get("X-Request-Id"), nil
			}
		}
	}
	return "", nil
}

// underWay waits until a request has reached its prefill worker, and returns
// the decision.
func (s *show) underWay(ctx context.Context, user string) (d decision.Record, err error) {
	err = s.st.await(ctx, "request "+user+" to reach its prefill worker", func(ctx context.Context) (bool, error) {
		id, err := requestID(ctx, s.st.living(s.st.prefill), user)
		if err != nil || id == "" {
			return false, err
		}
		attempts, err := s.admin.attempts(ctx, id)
		if err != nil || len(attempts) == 0 {
			return false, err
		}
		d = attempts[0]
		return true, nil
	})
	return d, err
}

// check compares what was said of a request with what is known otherwise, and
// prints its row.
func (s *show) check(r *served) error {
	if err := r.verify(); err != nil {
		return fmt.Errorf("%s (request %s): %w", r.label(), r.id, err)
	}
	d := r.last()
	if s.dead == nil && r.turn > 1 && d.Prefill.OverlapBlocks == 0 {
		return fmt.Errorf("%s is a later turn, and nobody held anything of it", r.label())
	}
	if s.dead != nil {
		if d.Prefill.Rank.ID == s.dead.id {
			return fmt.Errorf("%s went to prefill worker %s, which is dead", r.label(), s.dead.name)
		}
		if len(r.attempts) > 1 && r.attempts[0].Time.After(s.killed) {
			return fmt.Errorf("%s needed %d attempts though the dead worker was known: %s", r.label(), len(r.attempts), r.history())
		}
	}
	s.out.tableRow(r)
	return nil
}

// verify returns the first thing that does not fit.
func (r *served) verify() error {
	if want := expected(r.messages, answerTokens); r.answer.text != want {
		return fmt.Errorf("the answer is %q, the right one is %q", r.answer.text, want)
	}
	d := r.last()
	if d.Outcome != decision.OK {
		return fmt.Errorf("the plugin calls it %q (%s)", d.Outcome, d.Detail)
	}
	if told := "prefill=" + d.Prefill.Rank.ID.String() + "/0 "; !strings.Contains(r.answer.explained, told) {
		return fmt.Errorf("its header says %q, without %q", r.answer.explained, told)
	}
	if r.answer.promptTokens != len(r.prompt) {
		return fmt.Errorf("the worker counts %d tokens of prompt, there are %d", r.answer.promptTokens, len(r.prompt))
	}
	if want := int64(len(r.prompt) / blockSize); d.PromptBlocks != want {
		return fmt.Errorf("the plugin counts %d blocks of prompt, there are %d (%s)", d.PromptBlocks, want, d.TokenSource)
	}
	if has := int64(r.held[d.Prefill.Rank.ID]); d.Prefill.OverlapBlocks != has {
		return fmt.Errorf("the plugin knows of %d blocks at worker %s, which held %d", d.Prefill.OverlapBlocks, r.names.of(d.Prefill.Rank.ID), has)
	}
	if d.Prefill.OverlapBlocks*blockSize != int64(r.answer.cachedTokens) {
		return fmt.Errorf("%d blocks were held, and %d tokens were cached", d.Prefill.OverlapBlocks, r.answer.cachedTokens)
	}
	for id, n := range r.held {
		if n > r.held[d.Prefill.Rank.ID] && d.Attempt == 1 {
			return fmt.Errorf("worker %s was picked with %d blocks, though %s held %d",
				r.names.of(d.Prefill.Rank.ID), r.held[d.Prefill.Rank.ID], r.names.of(id), n)
		}
	}
	return nil
}
