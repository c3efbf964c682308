package loads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Outcome is the result of a question.
type Outcome string

// Outcomes.
const (
	OK          Outcome = "ok"
	Unreachable Outcome = "unreachable" // no answer in time
	Refused     Outcome = "refused"     // another status than 200
	Unreadable  Outcome = "unreadable"  // the page does not say what the worker runs
)

// Config sets up a Poller.
type Config struct {
	// Interval is the time between two questions to one address. Default 2 s.
	Interval time.Duration
	// Timeout bounds one question. Default 10 s: SGLang's scheduler answers between batches,
	// and long prompts make long ones.
	Timeout time.Duration
	// Around wraps the transport, to add an API key for example. Default: nothing.
	Around func(http.RoundTripper) http.RoundTripper
	// Transport carries the questions. Default: a transport of the Poller's own, without
	// proxies.
	Transport http.RoundTripper
	// Heard gets each report, and the time at which the answer had come.
	Heard func(Report, time.Time)
	// Asleep gets each rank that is reported to have given up its KV cache, again with
	// each such report. Default: nothing is called.
	Asleep func(worker.Rank)
	// Lost gets how many hand-offs more an engine says to have gone wrong so. Default: nothing is
	// called.
	Lost func(ask.Loss, uint64)
	// Counted gets the outcome of each question. Default: nothing is called.
	Counted func(Outcome)
	Log     *slog.Logger
	// Seed is for the jitter; 0: random.
	Seed uint64
}

// Poller asks engines what they run. Safe for concurrent use.
type Poller struct {
	// set at construction, read-only
	cfg    Config
	client *http.Client
	slots  chan struct{} // one for each question that runs
	wake   chan struct{} // has room for one

	mu     sync.Mutex // guards agenda
	agenda agenda
}

// New returns a Poller that has no worker to ask yet.
func New(c Config) *Poller {
	c.Interval, c.Timeout = cmp.Or(c.Interval, 2*time.Second), cmp.Or(c.Timeout, 10*time.Second)
	if c.Transport == nil {
		c.Transport = &http.Transport{
			DialContext:  (&net.Dialer{Timeout: connectWithin}).DialContext,
			MaxIdleConns: 512, MaxIdleConnsPerHost: 1, IdleConnTimeout: longestPause,
		}
	}
	if c.Around != nil {
		c.Transport = c.Around(c.Transport)
	}
	if c.Counted == nil {
		c.Counted = func(Outcome) {}
	}
	if c.Lost == nil {
		c.Lost = func(ask.Loss, uint64) {}
	}
	if c.Asleep == nil {
		c.Asleep = func(worker.Rank) {}
	}
	c.Seed = cmp.Or(c.Seed, rand.Uint64())
	return &Poller{
		cfg: c, slots: make(chan struct{}, mostAtOnce), wake: make(chan struct{}, 1),
		client: &http.Client{Transport: c.Transport, CheckRedirect: stay},
		agenda: agenda{interval: c.Interval, rng: rand.New(rand.NewPCG(c.Seed, 1))},
	}
}

func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Update replaces the workers of the last snapshot by those of s.
func (p *Poller) Update(s *worker.Snapshot) {
	p.mu.Lock()
	p.agenda.update(s, time.Now())
	p.mu.Unlock()
	p.nudge()
}

// nudge makes Run look at the agenda again.
func (p *Poller) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run asks until ctx ends. It returns nil after the last question has ended.
func (p *Poller) Run(ctx context.Context) error {
	defer p.client.CloseIdleConnections()
	var questions sync.WaitGroup
	defer questions.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		p.mu.Lock()
		x, again := p.agenda.begin(time.Now())
		p.mu.Unlock()
		if x != nil {
			questions.Go(func() {
				p.ask(ctx, x)
				<-p.slots
				p.nudge()
			})
			continue
		}
		<-p.slots
		var fire <-chan time.Time
		if !again.IsZero() {
			timer.Reset(time.Until(again))
			fire = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-fire:
		}
	}
}

// ask asks one question, and passes on the reports.
func (p *Poller) ask(ctx context.Context, x *asked) {
	within, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	page, outcome, err := p.question(within, x)
	var reports []Report
	if err == nil {
		reports, err = x.read(page)
	}
	if err != nil && outcome == OK {
		outcome = Unreadable
	}
	if ctx.Err() != nil {
		return // ctx has ended: the worker has not failed
	}
	now := time.Now()
	for _, r := range reports {
		p.cfg.Heard(r, now)
		if r.Asleep {
			p.cfg.Asleep(r.Rank)
		}
	}
	p.cfg.Counted(outcome)
	p.mu.Lock()
	n := p.agenda.ended(x, err == nil, now)
	var risen map[ask.Loss]uint64
	if page != nil {
		risen = x.losses.read(x.page.Lost(page), now)
	}
	p.mu.Unlock()
	for kind, n := range risen {
		p.cfg.Lost(kind, n)
	}
	who := []any{slog.String(logkey.WorkerID, x.id.String()), slog.String(logkey.Endpoint, x.address), slog.String(logkey.Path, x.page.Path)}
	switch n {
	case silent:
		p.cfg.Log.Warn("an engine does not report its running requests, so its bookings are not corrected", append(who, slog.Any(logkey.Err, err))...)
	case speaks:
		p.cfg.Log.Info("an engine reports its running requests again", who...)
	case nothing:
	}
}

// question returns the page of an address.
func (p *Poller) question(ctx context.Context, x *asked) ([]byte, Outcome, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+x.address+x.page.Path, nil)
	if err != nil {
		return nil, Unreachable, err
	}
	res, err := p.client.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // the log has the rest
		}
		return nil, Unreachable, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, Refused, fmt.Errorf("status %d: expected 200", res.StatusCode)
	}
	page, err := io.ReadAll(io.LimitReader(res.Body, mostPage+1))
	switch {
	case err != nil:
		return nil, Unreachable, err
	case len(page) > mostPage:
		return nil, Unreadable, fmt.Errorf("expected at most %d bytes", mostPage)
	}
	return page, OK, nil
}
