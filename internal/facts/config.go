package facts

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// Config configures a [Source]. internal/config has the defaults of Refresh and Timeout, and
// the bounds of what an operator can set; New does not check those again.
type Config struct {
	// Inner is the source whose workers are asked. Required.
	Inner discovery.Source

	// Defaults are for the workers of Inner.
	Defaults Defaults

	// PortOffset is how much higher the port is at which a decode worker's engine answers
	// than that of its endpoint, where a sidecar has the endpoint's port; llm-d's: 200.
	// Default 0. A worker with [worker.Worker.FactsPort] is asked there.
	PortOffset int

	// TLS asks over HTTPS. Nil: HTTP.
	TLS *tls.Config

	// Refresh is the time between two questions to a worker whose facts are known, give
	// or take a fifth, and the longest pause of one that does not answer. With a higher
	// value, a new adapter is known later, and engines are asked less.
	Refresh time.Duration
	// Retry is the pause after the first question without an answer; it doubles with each
	// further one. Default 1 s.
	Retry time.Duration
	// Timeout bounds one question, with all its pages. The first question to a worker
	// takes at most 1 s.
	Timeout time.Duration
	// AtOnce is how many questions may run at a time. Default 16. With a higher value,
	// workers that hang delay the others less.
	AtOnce int
	// PerHost is how many questions may run at one IP address at a time. Default 2.
	PerHost int
	// PerSecond is how many questions may begin within a second. Default 100.
	PerSecond int

	// Reader asks. Default: [Engines] with APIKeyFile, KeySetting and TLS.
	Reader     Reader
	APIKeyFile string
	KeySetting string // what an operator calls APIKeyFile

	// Counted gets the result of each question: nil, or why there was no answer. Default:
	// nothing is called.
	Counted func(error)
	Log     *slog.Logger // nil means no log
	Seed    uint64       // for the jitter; 0: random
}

func (c Config) withDefaults() Config {
	c.Defaults = c.Defaults.WithDefaults()
	c.Retry = min(cmp.Or(c.Retry, time.Second), c.Refresh)
	c.AtOnce = cmp.Or(c.AtOnce, 16)
	c.PerHost = cmp.Or(c.PerHost, 2)
	c.PerSecond = cmp.Or(c.PerSecond, 100)
	if c.Counted == nil {
		c.Counted = func(error) {}
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return c
}
