package plugin

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/modelfiles"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// newTokens makes the part that counts prompts. around is for the transport to engines.
func newTokens(p *plugin, around func(http.RoundTripper) http.RoundTripper) error {
	t := p.cfg.Tokens.Resolver()
	t.Around, t.OnTokenize = around, func(took time.Duration, outcome tokens.Reason) {
		p.tele.Instruments.Tokenized(telemetry.SourceEngineTokenize, string(outcome), took)
	}
	t.OnLocal = func(took time.Duration) {
		p.tele.Instruments.Tokenized(telemetry.SourceLocal, string(tokens.ReasonLocal), took)
	}
	t.Told = func(r worker.Rank, chain []kvindex.LocalHash) bool { return holdsAll(p.index, p.slots, r, chain) }
	t.OnCompared = func(end tokens.Compared) { p.tele.Instruments.Compared(string(end)) }
	t.OnStanding = func(s tokens.Standing) { logStanding(p.log, s) }
	var err error
	t.Local, err = models(p.cfg.Models)
	if err != nil {
		return err
	}
	p.tokens, err = tokens.New(t)
	if err != nil {
		return err
	}
	own := map[string]bool{}
	for model := range t.Local {
		own[model] = true
	}
	p.files = modelfiles.New(modelfiles.Config{
		Use: p.tokens.Use, Configured: own, Dir: p.cfg.Tokens.FilesDir, Log: p.log, Counted: p.tele.Instruments.ModelFiles,
	})
	return nil
}

// models reads the folders of the models whose tokens are made here. The error has every
// folder that cannot be used.
func models(all map[string]config.ModelConfig) (map[string]*local.Model, error) {
	var errs []error
	out := make(map[string]*local.Model)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		folder := all[name].Tokenizer
		if folder == "" {
			continue
		}
		f, err := local.Read(os.DirFS(folder))
		if err == nil {
			out[name], err = local.New(f, local.Limits{})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("models.%s.tokenizer %q: %w", name, folder, err))
		}
	}
	return out, errors.Join(errs...)
}

// holdsAll reports whether a rank is known to hold all blocks of a chain by its events.
func holdsAll(index kvindex.Index, slots *kvindex.Slots, r worker.Rank, chain []kvindex.LocalHash) bool {
	var all kvindex.Overlap
	generation := slots.Generation()
	index.Overlap(chain, &all)
	s, ok := slots.Slot(r)
	if !ok || slots.Generation() != generation {
		return false // ranks have come or gone, and slots may mean others
	}
	held := slots.Held(s, &all)
	return int(held.Device+held.Host+held.Disk) >= len(chain)
}

// logStanding logs whether a model's files give the tokens that its engines give.
func logStanding(log *slog.Logger, s tokens.Standing) {
	prompts := "text"
	if s.Chat {
		prompts = "messages"
	}
	at := []any{logkey.Model, s.Model, logkey.Prompts, prompts, logkey.Outcome, string(s.State)}
	if s.State == tokens.Exact {
		log.Info("a model's tokenizer files give the same tokens as its engine, and are used", at...)
		return
	}
	log.Warn("a model's tokenizer files are not used: its engines are asked for the tokens", append(at, logkey.Reason, s.Why)...)
}
