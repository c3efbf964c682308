package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-60ae5743/baton/internal/apikey"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/loads"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// EnginesConfig says what the plugin's own questions to engines carry.
type EnginesConfig struct {
	// APIKeyFile holds the API key that the engines ask for (their --api-key). It is read
	// again for each question, so that the key can be changed by writing the file. Default:
	// none is shown.
	APIKeyFile string `yaml:"api_key_file"`
	// ReportInterval is how often each decode engine is asked what it runs, which puts
	// right what is booked on it. Default 2s; 0: none is asked.
	ReportInterval time.Duration `yaml:"report_interval"`
}

// leastReportInterval is what an engine can be asked without minding: its page costs it
// milliseconds.
const leastReportInterval = 100 * time.Millisecond

// keyed returns what goes around the transports of all that the plugin asks engines
// itself: for tokens, for health and for what they run.
func (c EnginesConfig) keyed(log *slog.Logger) (func(http.RoundTripper) http.RoundTripper, error) {
	const setting = "engines.api_key_file"
	key, err := apikey.Open(c.APIKeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	return (&apikey.Transport{Key: key, Setting: setting, Log: log}).Around, nil
}

// newReports makes what asks engines what they run, and has the book heed it.
func (p *plugin) newReports(keyed func(http.RoundTripper) http.RoundTripper) *loads.Poller {
	return loads.New(loads.Config{
		Interval: p.cfg.Engines.ReportInterval, Around: keyed, Log: p.log,
		Heard: func(r loads.Report, at time.Time) {
			p.book.Report(r.Rank, load.Report{Blocks: r.Blocks, Requests: r.Requests}, at)
		},
		Asleep:  func(r worker.Rank) { p.events.Emptied(r) },
		Counted: func(o loads.Outcome) { p.tele.Instruments.EngineReport(string(o)) },
	})
}
