package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// knockEvery is the time between two requests of somebody who waits for the
// decode workers.
const knockEvery = 10 * time.Millisecond

// activationReady is what the plugin says of a model whose requests are served
// with prefill and decode apart, or not at all.
const activationReady = "prefill-ready"

// awayCodes are the refusals that are right while no decode worker lives: the
// dead ones are still on the list, or not any more.
var awayCodes = []string{"decode_unreachable", "no_decode_worker"}

// comeBack is the fourth chapter: every decode worker dies while prefill lives,
// and others come in their place.
func (s *show) comeBack(ctx context.Context, travel, kitchen *conversation) error {
	s.out.chapter("4. All decode workers die, and others come",
		"Prefill lives on, but nobody can write an answer. A request gets a 503 with a code that says so, and is never\n"+
			"served by one worker alone. When decode workers register, under new ids, the next request is served again.\n"+
			"Nothing is restarted, and only etcd tells the plugin.")
	dan := &conversation{name: "Dan"}
	s.out.tableHead()
	if err := s.turn(ctx, dan, knock); err != nil {
		return err
	}
	usual := s.served[len(s.served)-1].answer.firstToken
	s.out.printf("\n")
	if err := s.killDecode(ctx, dan); err != nil {
		return err
	}
	r, back, err := s.knockUntilServed(ctx, dan)
	if err != nil {
		return err
	}
	s.out.tableHead()
	if err := s.check(r); err != nil {
		return err
	}
	if !slices.ContainsFunc(back, func(p *pod) bool { return p.id == r.last().Decode.Rank.ID }) {
		return fmt.Errorf("decode worker %s answered, which is none of those that came", r.names.of(r.last().Decode.Rank.ID))
	}
	if err := s.turn(ctx, travel, travelTurns[6]); err != nil {
		return err
	}
	if err := s.turn(ctx, kitchen, kitchenTurns[5]); err != nil {
		return err
	}
	state, err := s.admin.activation(ctx)
	if err != nil || state != activationReady {
		return errors.Join(fmt.Errorf("the model is %q to the plugin, expected %q", state, activationReady), err)
	}
	s.out.printf("\n")
	first := slices.MinFunc(back, func(a, b *pod) int { return a.since.Compare(b.since) })
	s.out.checked("%s after etcd had the registration of %s, Dan had his first token, from prefill %s and decode %s (at the first time, %s after he had asked)",
		millis(r.answer.at.Add(r.answer.firstToken).Sub(first.since)), first.name,
		r.names.of(r.last().Prefill.Rank.ID), r.names.of(r.last().Decode.Rank.ID), millis(usual))
	s.out.checked("each of the %d requests before it was refused with a typed 503 and retry-after; none was served by one worker alone", s.refused)
	s.out.checked("each one after it was served at its first attempt, and conversations found their blocks")
	return nil
}

// killDecode kills every decode worker, and shows what a client gets before and
// after their leases have run out.
func (s *show) killDecode(ctx context.Context, dan *conversation) error {
	doomed := s.st.living(s.st.decode)
	if err := s.faultless(ctx, doomed); err != nil { // there is nobody to ask later
		return err
	}
	killed := time.Now()
	s.out.printf("  %s\n", s.out.paint(red, killText(doomed...)+", the pods of all decode workers"))
	for _, p := range doomed {
		if err := s.st.kill(p); err != nil {
			return err
		}
	}
	tell := func() error {
		ok, err := s.ask(ctx, s.nextKnock(dan))
		var no *refusal
		switch {
		case ok:
			return errors.New("a request was answered, and no decode worker lives")
		case !errors.As(err, &no):
			return err
		}
		s.out.printf("  %4.1f s after the kill: %d %s, retry-after %s: %s\n", time.Since(killed).Seconds(), no.status, no.code, no.retryAfter, no.message)
		return nil
	}
	if err := tell(); err != nil {
		return err
	}
	if err := s.offTheList(ctx); err != nil {
		return err
	}
	return tell()
}

// knockUntilServed starts as many decode workers as have died and sends one
// request after the other until one is served. It returns that one, and the
// new pods.
func (s *show) knockUntilServed(ctx context.Context, dan *conversation) (r *served, back []*pod, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		back, err = s.st.startPods(worker.Decode, len(s.st.decode))
		return err
	})
	before := s.refused
	g.Go(func() error {
		ctx, cancel := context.WithTimeout(gctx, soon)
		defer cancel()
		for {
			r = s.nextKnock(dan)
			ok, err := s.ask(ctx, r)
			if ok {
				return nil
			}
			var no *refusal
			if !errors.As(err, &no) {
				return err
			}
			if err := pause(ctx, knockEvery); err != nil {
				return fmt.Errorf("nobody was served in %s after the new workers' start: %w", soon, no)
			}
		}
	})
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	s.st.decode = append(s.st.decode, back...)
	for _, p := range back {
		if err := s.st.awaitRegistered(ctx, p); err != nil {
			return nil, nil, err
		}
		s.out.printf("  %s has come: worker %s\n", p.name, p.id)
	}
	s.names.learn(back)
	s.served = append(s.served, r)
	s.out.printf("  meanwhile Dan has asked every %s, and was refused %d times\n\n", millis(knockEvery), s.refused-before)
	return r, back, s.learn(ctx, r)
}

// nextKnock is a request that asks the same each time.
func (s *show) nextKnock(dan *conversation) *served {
	dan.messages = nil
	r := s.next(dan, knock)
	s.served = s.served[:len(s.served)-1] // it may not be
	return r
}

// ask sends a request that may be refused. A refusal that is not right while no
// decode worker lives is an error that is no *refusal.
func (s *show) ask(ctx context.Context, r *served) (ok bool, err error) {
	r.answer, err = ask(ctx, s.st.envoy.URL, r.user, r.messages, answerTokens)
	var no *refusal
	if !errors.As(err, &no) {
		return err == nil, err
	}
	r.conversation.turns--
	if no.status != http.StatusServiceUnavailable || !slices.Contains(awayCodes, no.code) || no.retryAfter == "" {
		return false, fmt.Errorf("expected a 503 with retry-after and one of %v; got %s, retry-after %q", awayCodes, no.Error(), no.retryAfter)
	}
	s.refused++
	return false, err
}
