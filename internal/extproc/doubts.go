package extproc

import (
	"log/slog"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// doubts are the models of which two prefill workers have counted a prompt's tokens alike,
// and not as Baton has: its tokenizer, or the template, is not the engines'. For doubtKept the
// tokens of such a model count as estimated, so that the next requests are not computed twice.
// Safe for concurrent use.
type doubts struct {
	counts *telemetry.Instruments
	log    *slog.Logger

	mu     sync.Mutex
	models recent.Map[string, struct{}] // guarded by mu
}

const (
	doubtKept = time.Hour
	doubtMost = 1024
)

func newDoubts(counts *telemetry.Instruments, log *slog.Logger) doubts {
	return doubts{counts: counts, log: log, models: recent.Map[string, struct{}]{Keep: doubtKept, Most: doubtMost}}
}

// add returns false if the model was doubted before.
func (d *doubts) add(model string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, had := d.models.Get(model, now)
	return !had && d.models.Put(model, struct{}{}, now)
}

func (d *doubts) has(model string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, had := d.models.Get(model, now)
	return had
}

// proved counts what an answer of prefill's proves. If what was expected of the model's
// prompts is wrong, it says so.
func (d *doubts) proved(model string, r *leg.Report, now time.Time) {
	d.counts.PrefillProof(string(r.Proof))
	if r.Proof == leg.Believed && d.add(model, now) {
		d.log.Warn("two prefill workers count the tokens of a prompt alike, and not as Baton does: for an hour the tokens of the model's prompts count as estimated; "+
			"check that its tokenizer and chat template are those of its engines",
			logkey.Model, model, logkey.ISLTokens, r.Expected, logkey.ToldTokens, r.Told.Prompt)
	}
}
