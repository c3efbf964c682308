package plugin

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/seed-60ae5743/baton/internal/apikey"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/loads"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// engineKeySetting names the key's file in errors and logs.
const engineKeySetting = "engines.api_key_file"

// keyed returns the wrapper that adds the API key to the transports by which the plugin
// itself asks engines: for tokens, for health, and for what they run.
func keyed(c config.EnginesConfig, view *discovery.View, log *slog.Logger) (func(http.RoundTripper) http.RoundTripper, error) {
	key, err := apikey.Open(c.APIKeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", engineKeySetting, err)
	}
	trusts := func(host string) bool { return vouched(view.Load(), host) }
	return (&apikey.Transport{Key: key, Trusts: trusts, Setting: engineKeySetting, Log: log}).Around, nil
}

// vouched reports whether the source of the worker at an address knows who has written it.
func vouched(workers *worker.Snapshot, host string) bool {
	at, err := netip.ParseAddrPort(host)
	w, _ := workers.RankAt(at)
	return err == nil && w != nil && !w.Unvouched
}

// newReports makes the poller that asks engines what they run, and passes the reports to
// the book.
func (p *plugin) newReports(keyed func(http.RoundTripper) http.RoundTripper) *loads.Poller {
	return loads.New(loads.Config{
		Interval: p.cfg.Engines.ReportInterval, Around: keyed, Log: p.log,
		Heard: func(r loads.Report, at time.Time) {
			prompts := r.Waiting
			if r.Prefills {
				prompts += r.Requests
			} else {
				p.book.Report(r.Rank, load.Report{Blocks: r.Blocks, Requests: r.Requests}, at)
			}
			p.book.ReportQueue(r.Rank, prompts, at)
		},
		Lost:    func(l ask.Loss, n uint64) { p.tele.Instruments.HandOffsLost(string(l), n) },
		Asleep:  func(r worker.Rank) { p.events.Emptied(r) },
		Counted: func(o loads.Outcome) { p.tele.Instruments.EngineReport(string(o)) },
	})
}
