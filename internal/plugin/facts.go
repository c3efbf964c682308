package plugin

import (
	"context"
	"log/slog"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/facts"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// asking wraps a source whose workers are asked for what it leaves open.
func (p *plugin) asking(inner discovery.Source) (discovery.Source, error) {
	c, err := p.cfg.Facts.Source()
	if err != nil {
		return nil, err
	}
	c.Inner, c.Log = inner, p.log
	c.APIKeyFile, c.KeySetting = p.cfg.Engines.APIKeyFile, engineKeySetting
	if c.TLS == nil && c.PortOffset == 0 { // else a sidecar has the endpoint's port
		c.TLS, err = p.cfg.Engines.TLS()
		if err != nil {
			return nil, err
		}
	}
	c.Counted = func(err error) {
		outcome := "ok"
		if err != nil {
			outcome = "failed"
		}
		p.tele.Instruments.FactReading(outcome)
	}
	s, err := facts.New(c)
	if err != nil {
		return nil, err
	}
	p.facts = append(p.facts, s)
	return s, nil
}

// firstAnswers bounds how long the plugin is not ready because engines have not been asked
// yet, or have not answered their first question.
const firstAnswers = 10 * time.Second

// awaitAnswers waits until no engine's first answer is missing. A plugin that was ready
// before would serve the first requests undisaggregated, or refuse them, beside replicas
// that know the workers.
func awaitAnswers(ctx context.Context, board *activation.Board, asking []*facts.Source, log *slog.Logger) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	late := time.NewTimer(firstAnswers)
	defer late.Stop()
	for unanswered(board, asking) > 0 {
		select {
		case <-look.C:
		case <-late.C:
			log.Warn("the plugin is ready, but some engines have not told their facts", logkey.Workers, unanswered(board, asking))
			return
		case <-ctx.Done():
			return
		}
	}
}

// unanswered counts the workers whose engines are asked for facts and have neither told
// them nor failed to answer.
func unanswered(board *activation.Board, asking []*facts.Source) (n int) {
	failed := map[worker.ID]bool{}
	for _, s := range asking {
		for _, r := range s.Rows() {
			failed[r.Worker] = r.Failures > 0
		}
	}
	for _, w := range board.Load().Workers() {
		if w.FactsUnknown && !failed[w.ID] {
			n++
		}
	}
	return n
}

// askAgain has a worker asked for its facts soon: its engine may have begun anew.
func (p *plugin) askAgain(id worker.ID) {
	for _, s := range p.facts {
		s.Ask(id)
	}
}

// factRows returns what is known of the facts of each worker that is asked.
func (p *plugin) factRows() map[worker.ID]admin.FactsRow {
	out := make(map[worker.ID]admin.FactsRow)
	for _, s := range p.facts {
		for _, r := range s.Rows() {
			out[r.Worker] = admin.FactsRow{
				State: string(r.State), Since: admin.At(r.Since), URL: r.URL, As: r.As, Version: r.Version, ReadAt: admin.At(r.ReadAt),
				Failures: r.Failures, Error: cut(r.Error), Unread: cut(r.Unread), Events: cut(r.Events),
			}
		}
	}
	return out
}
