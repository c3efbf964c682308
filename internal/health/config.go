package health

import (
	"cmp"
	"net"
	"net/http"
	"time"
)

// probePath is the page that probes request; all engines have it.
const probePath = "/health"

// Config sets up a Tracker. The zero value stands for the documented defaults. New does not
// check the values: internal/config has the bounds of what an operator can set.
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
	// while it recovers. Default 30 s; at least ProbeInterval.
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
	c.MaxShare = cmp.Or(c.MaxShare, 0.5)
	c.ServerErrors = cmp.Or(c.ServerErrors, 3)
	c.ProbeInterval = cmp.Or(c.ProbeInterval, time.Second)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, 5*time.Second)
	c.MaxProbes = cmp.Or(c.MaxProbes, 200)
	c.MaxHold = max(cmp.Or(c.MaxHold, 30*time.Second), c.ProbeInterval)
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
