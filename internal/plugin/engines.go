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
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// engineKeySetting names the key's file in errors and logs.
const engineKeySetting = "engines.api_key_file"

// toEngines returns the wrapper of the transports by which the plugin itself asks engines: for
// tokens, for health, and for what they run. It adds the API key, and TLS if they serve that.
func toEngines(c *config.EnginesConfig, workers func() *worker.Snapshot, log *slog.Logger) (func(http.RoundTripper) http.RoundTripper, error) {
	key, err := apikey.Open(c.APIKeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", engineKeySetting, err)
	}
	conf, err := c.TLS()
	if err != nil {
		return nil, err
	}
	trusts := func(host string) bool { return vouched(workers(), host) }
	keyed := (&apikey.Transport{Key: key, Trusts: trusts, Setting: engineKeySetting, Log: log}).Around
	if conf == nil {
		return keyed, nil
	}
	return func(rt http.RoundTripper) http.RoundTripper {
		t := rt.(*http.Transport) // the parts that ask engines have no other
		t.TLSClientConfig = conf
		return keyed(&overTLS{Transport: t, workers: workers})
	}, nil
}

// overTLS asks workers over HTTPS. A bootstrap server, which is no worker's endpoint, serves HTTP.
type overTLS struct {
	*http.Transport
	workers func() *worker.Snapshot
}

func (x *overTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	if workerAt(x.workers(), r.URL.Host) != nil {
		r = r.Clone(r.Context()) // a request is its caller's
		r.URL.Scheme = "https"
	}
	return x.Transport.RoundTrip(r)
}

// workerAt returns the worker of which host is an endpoint; nil: of none.
func workerAt(workers *worker.Snapshot, host string) *worker.Worker {
	at, err := netip.ParseAddrPort(host)
	if err != nil {
		return nil
	}
	w, _ := workers.RankAt(at)
	return w
}

// vouched reports whether the source of the worker at an address knows who has written it.
func vouched(workers *worker.Snapshot, host string) bool {
	w := workerAt(workers, host)
	return w != nil && !w.Unvouched
}

// newReports makes the poller that asks engines what they run, and passes the reports to
// the book.
func (p *plugin) newReports(around func(http.RoundTripper) http.RoundTripper) *loads.Poller {
	return loads.New(loads.Config{
		Interval: p.cfg.Engines.ReportInterval, Around: around, Log: p.log,
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
