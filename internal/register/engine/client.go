package engine

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/apikey"
	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxBody bounds one answer. vLLM's metrics are the largest page, some 100 KiB.
const maxBody = 8 << 20

// Config says where an engine is, and which engine to expect. Kind and the times are not checked:
// internal/config checks them.
type Config struct {
	URL  string // http://host:port, or https
	Kind Kind   // default Auto

	// Bootstrap is the port of Mooncake's bootstrap server, at the URL's host; 0: that
	// server is not asked. Only for VLLMMooncake.
	Bootstrap uint16

	// APIKeyFile holds the key that the engine asks for. It is read again for each
	// request. Default: no key is sent.
	APIKeyFile string
	// KeySetting is what an operator calls APIKeyFile, for errors; default
	// --engine-api-key-file.
	KeySetting string

	// TLS is for an https URL; nil: the system's roots.
	TLS *tls.Config

	// Timeout bounds each request except those for health; default 5 s.
	Timeout time.Duration
	// MaxBytes bounds each answer; default 8 MiB.
	MaxBytes int64
	// HealthPath is the path that is asked for health; default /health. SGLang computes a
	// token for each such request, unless configured otherwise.
	HealthPath string
	// HealthTimeout bounds a request for health, which needs it. SGLang's page waits while a
	// prompt is computed and gives up by itself after 20 s. A longer one finds a stuck
	// engine later.
	HealthTimeout time.Duration
}

func (c Config) withDefaults() Config {
	c.Kind = cmp.Or(c.Kind, Auto)
	c.KeySetting = cmp.Or(c.KeySetting, "--engine-api-key-file")
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.MaxBytes = cmp.Or(c.MaxBytes, maxBody)
	c.HealthPath = cmp.Or(c.HealthPath, "/health")
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	_, _, host := HostPort(c.URL)
	_, key := apikey.Open(c.APIKeyFile)
	errs := []error{host, key}
	if c.HealthPath != "" && !strings.HasPrefix(c.HealthPath, "/") {
		errs = append(errs, fmt.Errorf("health path %q: expected one that begins with /", c.HealthPath))
	}
	return errors.Join(errs...)
}

// HostPort returns the host and port of an engine's URL. A URL with more than these is an
// error.
func HostPort(engineURL string) (host, port string, err error) {
	u, err := url.Parse(engineURL)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https",
		u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "", u.User != nil:
		return "", "", fmt.Errorf("engine url %q: expected http://host:port", engineURL)
	}
	port = u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Hostname(), port, nil
}

// Client asks one engine. Safe for concurrent use.
type Client struct {
	// set at construction, read-only
	cfg    Config
	base   string
	key    *apikey.File // nil: there is none
	http   *http.Client // for facts and counts
	health *http.Client // has one kept connection; see Lost
	watch  *watch

	mu   sync.Mutex // guards the fields below
	kind Kind       // by which facts are asked for: what Auto has found last, or Auto
	last Kind       // by which requests are counted: the same, and kept while facts cannot be read
}

// New returns a client. It opens no connection.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	key, err := apikey.Open(cfg.APIKeyFile)
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, key: key, base: strings.TrimSuffix(cfg.URL, "/"), kind: cfg.Kind, last: cfg.Kind, watch: newWatch()}
	// No proxies: the engine itself has to answer.
	c.http = &http.Client{Transport: &http.Transport{MaxIdleConns: 2, IdleConnTimeout: time.Minute, TLSClientConfig: cfg.TLS}, CheckRedirect: stay}
	c.health = &http.Client{
		Transport:     &http.Transport{MaxConnsPerHost: 1, DialContext: c.watch.dial, IdleConnTimeout: time.Hour, TLSClientConfig: cfg.TLS},
		CheckRedirect: stay,
	}
	return c, nil
}

func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes idle connections. The client may still be used.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.watch.idle.Store(false)
	c.health.CloseIdleConnections()
}

// Get implements [ask.Pages].
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	return c.getFrom(ctx, c.base, path)
}

// GetAt implements [ask.Pages].
func (c *Client) GetAt(ctx context.Context, port uint16, path string) (page []byte, at string, err error) {
	host, _, err := HostPort(c.cfg.URL)
	if err != nil {
		return nil, "", err
	}
	at = "http://" + net.JoinHostPort(host, strconv.Itoa(int(port)))
	page, err = c.getFrom(ctx, at, path)
	return page, at, err
}

// Named implements [ask.Pages].
func (c *Client) Named() worker.Engine {
	if c.cfg.Kind == Auto {
		return ""
	}
	return c.cfg.Kind
}

// BootstrapPort implements [ask.Pages].
func (c *Client) BootstrapPort() uint16 { return c.cfg.Bootstrap }

// getFrom gets a page of the engine, or of a server beside it.
func (c *Client) getFrom(ctx context.Context, base, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return nil, err
	}
	if base == c.base {
		c.key.Show(req)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, bare(err))
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, c.cfg.MaxBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case res.StatusCode != http.StatusOK:
		return nil, &ask.StatusError{Path: path, Status: res.StatusCode}
	case int64(len(body)) > c.cfg.MaxBytes:
		return nil, fmt.Errorf("%s: expected at most %d bytes", path, c.cfg.MaxBytes)
	}
	return body, nil
}

// bare returns the error of the HTTP client without the URL, which the log has already.
func bare(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// Facts asks for the engine's facts. Without an error, [Facts].Unread may still name
// pages that could not be read.
func (c *Client) Facts(ctx context.Context) (Facts, error) {
	f, err := c.facts(ctx, c.present())
	err = c.keyless(err)
	if err != nil {
		f = Facts{}
	}
	if err != nil && c.cfg.Kind == Auto {
		c.found(Auto) // another engine may be started at this address
	}
	if err == nil {
		c.found(f.Engine)
	}
	for i, text := range f.Pair {
		if (&worker.Worker{Pair: worker.PairFacts{text}}).CheckTexts() != nil {
			f.Pair[i] = "" // as not known: it is not worth the worker
		}
	}
	return f, err
}

func (c *Client) facts(ctx context.Context, k Kind) (Facts, error) {
	if k != Auto {
		return engines.Of(k).Pages.Facts(ctx, c)
	}
	var tried []string
	var errs []any
	foreign := false // some page is there
	for _, e := range engines.Unnamed() {
		f, err := e.Pages.Facts(ctx, c)
		switch {
		case err == nil:
			return f, nil
		case refused(err), unauthorized(err), ctx.Err() != nil: // the others would have the same
			return Facts{}, err
		}
		tried, errs = append(tried, e.Pages.Title+" (%w)"), append(errs, err)
		foreign = foreign || !ask.Missing(err)
	}
	last := len(tried) - 1
	text := "tried " + strings.Join(tried[:last], ", ") + " and " + tried[last]
	if !foreign {
		text += ": a server of SGLang with --node-rank above 0 has no such page, nor is it a worker: expected that of node 0"
	}
	return Facts{}, fmt.Errorf(text, errs...)
}

func (c *Client) present() Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind
}

func (c *Client) counted() Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

func (c *Client) found(k Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kind = k
	if k != Auto {
		c.last = k
	}
}

// InFlight counts the engine's requests. The error is ErrNotCounted if the engine was
// reached and gives no count.
func (c *Client) InFlight(ctx context.Context) (int, error) {
	k := c.counted()
	if k != Auto {
		return engines.Of(k).Pages.Count(ctx, c)
	}
	var gauges []string
	for _, e := range engines.Unnamed() {
		gauges = append(gauges, e.Pages.Gauges...)
	}
	return ask.Sum(ctx, c, gauges)
}

// Health asks for health. The error says why it is not Healthy.
func (c *Client) Health(ctx context.Context) (Health, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.HealthTimeout)
	defer cancel()
	h, err := c.askHealth(ctx)
	if se := (*ask.StatusError)(nil); h == Unhealthy && !errors.As(err, &se) && ctx.Err() == nil {
		// The connection broke during the question: a second one shows at once whether
		// the engine still listens.
		return c.askHealth(ctx)
	}
	return h, err
}

func (c *Client) askHealth(ctx context.Context) (Health, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+c.cfg.HealthPath, nil)
	if err != nil {
		return Unhealthy, err
	}
	c.key.Show(req)
	c.watch.idle.Store(false)
	res, err := c.health.Do(req)
	if err != nil {
		if refused(err) {
			return Refused, bare(err)
		}
		return late(ctx), fmt.Errorf("%s: %w", c.cfg.HealthPath, bare(err))
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, c.cfg.MaxBytes)); err != nil {
		return late(ctx), fmt.Errorf("%s: %w", c.cfg.HealthPath, err)
	}
	// If the engine closes after each answer, a closed connection means nothing.
	c.watch.idle.Store(!res.Close)
	if res.StatusCode/100 != 2 {
		err := c.keyless(&ask.StatusError{Path: c.cfg.HealthPath, Status: res.StatusCode})
		if k := c.counted(); k != Auto && engines.Of(k).HealthComputes && res.StatusCode == http.StatusServiceUnavailable {
			return Silent, err
		}
		return Unhealthy, err
	}
	return Healthy, nil
}

// late is the health that an error in a question shows.
func late(ctx context.Context) Health {
	if ctx.Err() != nil {
		return Silent
	}
	return Unhealthy
}

// Lost receives a message when the engine has closed the connection for health between
// two questions. It holds at most one.
func (c *Client) Lost() <-chan struct{} { return c.watch.lost }

// refused reports whether nothing listens at the address.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
