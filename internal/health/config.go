package health

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// mostProbes is the highest number of probes a second: what one machine can be expected
// to do.
const mostProbes = 100_000

// probePath is the page that probes request; all engines have it.
const probePath = "/health"

// Config sets up a Tracker. The zero value stands for the documented defaults.
type Config struct {
	// MaxShare is the share of the workers of one key and role that may be set aside for
	// what requests have met, rounded up. Default 0.5. A higher share removes more
	// failing workers, and leaves more work to the others. Workers that cannot be reached
	// are set aside beyond it.
	MaxShare float64

	// ServerErrors is how many in a row set a worker aside that fails more than its pools
	// do. Default 3. A higher number tolerates more failed requests before.
	ServerErrors int

	// ProbeInterval is the time before the first probe and between probes of one worker,
	// ±20 % at random. Default 1 s. A shorter one finds a recovered worker sooner, with
	// more probes.
	ProbeInterval time.Duration

	// ProbeTimeout bounds one probe; after one that had no answer in time, the next may
	// take twice as long. Default 5 s: SGLang answers when a prefill batch has ended. With
	// a shorter one, a worker that is aside and answers more slowly does not come back.
	ProbeTimeout time.Duration

	// MaxProbes is how many begin in a second, over all workers. Default 200. A lower
	// number costs less, and finds recovered workers later when many are aside.
	MaxProbes int

	// MaxHold bounds the time before the first probe of a worker that fails repeatedly
	// while it recovers. Default 30 s.
	MaxHold time.Duration

	// Client sends the probes. Default: a client without kept connections, proxies and
	// redirects.
	Client *http.Client

	// Around wraps the transport of the default client, to add an API key for example.
	// Default: nothing.
	Around func(http.RoundTripper) http.RoundTripper

	// Seed is for the jitter; 0: random.
	Seed uint64

	Hooks Hooks
}

func (c Config) withDefaults() Config {
	if c.MaxShare == 0 {
		c.MaxShare = 0.5
	}
	if c.ServerErrors == 0 {
		c.ServerErrors = 3
	}
	if c.ProbeInterval == 0 {
		c.ProbeInterval = time.Second
	}
	if c.ProbeTimeout == 0 {
		c.ProbeTimeout = 5 * time.Second
	}
	if c.MaxProbes == 0 {
		c.MaxProbes = 200
	}
	if c.MaxHold == 0 {
		c.MaxHold = 30 * time.Second
	}
	if c.Client == nil {
		c.Client = NewClient(c.Around)
	}
	return c
}

// NewClient returns a client for questions to engines that must say something about them: each
// makes a connection of its own, and follows no redirect. If around is not nil, it wraps the
// transport.
func NewClient(around func(http.RoundTripper) http.RoundTripper) *http.Client {
	var t http.RoundTripper = &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: connectWithin}).DialContext}
	if around != nil {
		t = around(t)
	}
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if !(c.MaxShare > 0 && c.MaxShare <= 1) {
		errs = append(errs, fmt.Errorf("max_share %v: expected a number above 0, at most 1", c.MaxShare))
	}
	if c.ServerErrors < 1 {
		errs = append(errs, fmt.Errorf("server_errors %d: expected at least 1", c.ServerErrors))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"probe_interval", c.ProbeInterval}, {"probe_timeout", c.ProbeTimeout}} {
		if d.v < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s %v: expected at least 1ms", d.name, d.v))
		}
	}
	if c.MaxProbes < 1 || c.MaxProbes > mostProbes {
		errs = append(errs, fmt.Errorf("max_probes %d: expected 1 to %d", c.MaxProbes, mostProbes))
	}
	if c.MaxHold < c.ProbeInterval {
		errs = append(errs, fmt.Errorf("max_hold %v: expected at least probe_interval %v", c.MaxHold, c.ProbeInterval))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("health: %w", errors.Join(errs...))
}
