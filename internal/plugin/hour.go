package plugin

import (
	"context"
	"time"

	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// sampleLoads tells the hour of the page how much work is booked, once a step.
func sampleLoads(ctx context.Context, p *plugin) error {
	tick := time.NewTicker(hour.Step)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			p.hour.Sample(now, loadSamples(p, now)...)
		}
	}
}

// loadSamples sums up what is booked on the ranks of each role.
func loadSamples(p *plugin, now time.Time) []hour.Sample {
	var sums [worker.Aggregated + 1]hour.Sample
	for _, w := range p.board.Load().Workers() {
		s := &sums[w.Role]
		s.Role = w.Role
		for dp := range worker.DPRank(w.DPSize) {
			r := worker.Rank{ID: w.ID, DPRank: dp}
			s.QueueSeconds += p.book.Wait(r, now)
			s.DecodeBlocks += p.book.LoadOfAll(r).DecodeBlocks
			s.Ranks++
		}
	}
	var out []hour.Sample
	for _, s := range sums {
		if s.Ranks > 0 {
			out = append(out, s)
		}
	}
	return out
}
