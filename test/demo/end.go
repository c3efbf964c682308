package main

import (
	"context"
	"fmt"
)

// end checks that nothing is left over.
func (s *show) end(ctx context.Context) error {
	s.out.chapter("5. What is left over", "Every request has ended, so nothing may be booked, held or broken.")
	if err := s.offTheList(ctx); err != nil {
		return err
	}
	err := s.st.await(ctx, "every booking to be released", func(ctx context.Context) (bool, error) {
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
	living := s.st.living(s.st.pods())
	for _, p := range living {
		err := s.st.await(ctx, "worker "+p.name+" to hold no KV", func(ctx context.Context) (bool, error) {
			st, err := p.engine.Sim.State(ctx, false)
			return st.KVHeldBlocks == 0, err
		})
		if err != nil {
			return err
		}
	}
	if err := s.faultless(ctx, living); err != nil {
		return err
	}
	s.out.checked("no booking is left in the plugin, no KV is held by any living worker, no dead worker is on the list")
	s.out.checked("no worker was sent a request that breaks SGLang's rules: each half met the right other half")
	retried := 0
	for _, r := range s.served {
		retried += len(r.attempts) - 1
	}
	s.out.printf("\n%s %d requests answered in full, %d fresh attempt after a worker's death; %d refused while no decode worker lived.\n",
		s.out.paint(bold, "Summary:"), len(s.served), retried, s.refused)
	return nil
}

// faultless asks workers whether each request that they were sent was one half
// of a pair, as SGLang's rules have it.
func (s *show) faultless(ctx context.Context, pods []*pod) error {
	for _, p := range pods {
		st, err := p.engine.Sim.State(ctx, false)
		if err != nil {
			return err
		}
		if len(st.Violations) > 0 {
			return fmt.Errorf("worker %s was sent something wrong: %+v", p.name, st.Violations)
		}
		log, err := p.engine.Sim.Requests(ctx, 0)
		if err != nil {
			return err
		}
		for _, q := range log {
			if q.Room < 0 {
				return fmt.Errorf("worker %s was sent a whole request, for it alone: %s", p.name, q.Body)
			}
		}
	}
	return nil
}
