package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// legClient sends the legs that the plugin begins itself. They go through a listener of the
// plugin's Envoy, so that Envoy has the connections to workers, TLS and statistics. A listener
// at a port takes only requests with a sealed x-baton-leg. A leg that has failed is not sent
// to the same worker again: that is left to a fresh attempt. Safe for concurrent use.
type legClient struct {
	http    *http.Transport
	base    string
	address string // of the listener
	log     *slog.Logger
	most    int64                // legs at once; 0: no limit
	runs    atomic.Int64         // legs
	down    atomic.Pointer[down] // the listener cannot be reached, and the log was told; nil: it can, or nobody has tried
}

// down is a listener that cannot be reached.
type down struct {
	why   string
	since time.Time
}

// ListenerDown says that Envoy's listener for the plugin's own legs could not be reached when the
// latest leg was sent there, why, and since when. The address is empty if it could. Safe for
// concurrent use.
func ListenerDown(srv *Server) (address, why string, since time.Time) {
	if c := srv.legClient; c != nil {
		if d := c.down.Load(); d != nil {
			return c.address, d.why, d.since
		}
	}
	return "", "", time.Time{}
}

const (
	legDialTimeout = time.Second
	legIdleConns   = 1024
	// legAnswerLimit bounds the answer of a prefill. The answer holds one token and the
	// hand-off, and with TensorRT-LLM the prompt's token ids. It is longer only if the
	// client asks for facts about its prompt, such as prompt_logprobs.
	legAnswerLimit = 32 << 20
	// legAnswerRead is the same where nothing of the answer goes to decode.
	legAnswerRead = 1 << 20
)

// ParseListener reads the address of Envoy's listener for the legs that the plugin sends
// itself: unix:///path or http://host:port.
func ParseListener(s string) (network, address string, err error) {
	if path, is := strings.CutPrefix(s, "unix://"); is && strings.HasPrefix(path, "/") {
		return "unix", path, nil // not parsed as a URL: a path may have # or %
	}
	u, err := url.Parse(s)
	if err == nil && u.Scheme == "http" && u.Host != "" && strings.Trim(u.Path, "/") == "" {
		if _, _, err := net.SplitHostPort(u.Host); err == nil {
			return "tcp", u.Host, nil
		}
	}
	return "", "", fmt.Errorf("prefill listener %q: expected unix:///path or http://host:port", s)
}

// CheckListener returns an error that names a prefill worker which cannot be used, because
// no listener for the plugin's own legs is configured. It returns nil if there is no such
// worker, and if decode workers have sidecars, which need no listener.
func (srv *Server) CheckListener() error {
	if srv.legClient != nil || srv.cfg.Sidecar {
		return nil
	}
	for _, w := range srv.view.Load().Workers() {
		if w.Role == worker.Prefill && engines.HandOff(w.Engine).PrefillFirst() {
			return fmt.Errorf("prefill worker %s is %s, whose decode needs prefill's answer: expected prefill.listener, the address of "+
				"Envoy's listener sync_leg (unix:///path or http://host:port)", w.ID, w.Engine)
		}
	}
	return nil
}

// full reports whether no further leg may begin.
func (c *legClient) full() bool { return c != nil && c.most > 0 && c.runs.Load() >= c.most }

func newLegClient(listener string, most int64, log *slog.Logger) (*legClient, error) {
	network, address, err := ParseListener(listener)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: legDialTimeout}
	idle := legIdleConns
	if most > 0 {
		idle = int(min(int64(idle), most))
	}
	return &legClient{
		base: "http://baton", address: address, log: log, most: most,
		http: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, address)
			},
			MaxIdleConns: idle, MaxIdleConnsPerHost: idle,
			IdleConnTimeout:    time.Minute,
			DisableCompression: true,
		},
	}, nil
}

// send sends one leg and reads the whole answer. The transport may read the body after send
// has returned: the caller may write to its bytes only if Spent is set in the answer. Of an
// answer longer than limit the bytes are dropped if limit is legAnswerRead, else it is ended.
func (c *legClient) send(ctx context.Context, path string, set []wire.Header, src *legBody, limit int) *leg.OwnAnswer {
	if src.tooOld() { // the transport sends the head before it reads the body
		return &leg.OwnAnswer{Err: errTooOld, Why: whyOf(errTooOld)}
	}
	c.runs.Add(1)
	defer c.runs.Add(-1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, src)
	if err != nil {
		return &leg.OwnAnswer{Err: err}
	}
	req.ContentLength, req.GetBody = int64(len(src.body)), src.reread
	for _, h := range set {
		if h.Name == "host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	if req.Header.Get("user-agent") == "" {
		req.Header["User-Agent"] = nil // else Go adds its own
	}
	began := time.Now()
	resp, err := c.http.RoundTrip(req) // no client: a redirect is the worker's answer
	c.reached(err)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = leg.ErrExpired
		}
		return &leg.OwnAnswer{Err: err, Why: whyOf(err), Sent: src.begun.Load(), Canceled: errors.Is(context.Cause(ctx), errLegAborted)}
	}
	defer resp.Body.Close()
	a := &leg.OwnAnswer{Status: resp.StatusCode, Sent: true, LocalReply: resp.Header.Get(prefill.HeaderLocalReply)}
	a.Made = leg.MadeAt(resp.Header.Get("date"), began, time.Now())
	a.RetryAfter, a.Location = resp.Header.Get("retry-after"), resp.Header.Get("location")
	a.Body, a.Err = readAnswer(resp, limit)
	if errors.Is(a.Err, leg.ErrLong) && limit == legAnswerRead {
		_, a.Err = io.Copy(io.Discard, resp.Body)
		a.Unread = a.Err == nil
	}
	a.Why = whyOf(a.Err)
	if wire.Encoded([]byte(resp.Header.Get("content-encoding"))) {
		a.Body, a.Unread = nil, a.Err == nil // it cannot be read, and is no text for a client
	}
	a.Canceled = a.Err != nil && errors.Is(context.Cause(ctx), errLegAborted)
	a.Spent = a.Err == nil && src.spent()
	return a
}

// reached tells the log, once, that the listener cannot be reached, and once that it can.
func (c *legClient) reached(err error) {
	var op *net.OpError
	switch {
	case err == nil:
		if c.down.Load() != nil && c.down.Swap(nil) != nil {
			c.log.Info("Envoy's listener for the plugin's own legs is reached again", slog.String(logkey.Address, c.address))
		}
	case errors.As(err, &op) && op.Op == "dial" && !errors.Is(err, context.Canceled) && c.down.CompareAndSwap(nil, &down{whyOf(err), time.Now()}):
		c.log.Warn("Envoy's listener for the plugin's own legs cannot be reached, so requests to engines that prefill first fail: "+
			"compare prefill.listener with the address of sync_leg in Envoy's configuration", slog.String(logkey.Address, c.address), slog.String(logkey.Err, whyOf(err)))
	}
}

// TryListener connects to Envoy's listener for the plugin's own legs if that could not be reached
// before: with no request nobody else would find out that it can be.
func TryListener(ctx context.Context, srv *Server) {
	c := srv.legClient
	if c == nil || c.down.Load() == nil {
		return
	}
	conn, err := c.http.DialContext(ctx, "", "")
	if err == nil {
		_ = conn.Close()
	}
	c.reached(err)
}

// whyOf says why a leg has no whole answer. Of errors it tells those of the network alone,
// with the address and the errno: another error may hold bytes of an answer.
func whyOf(err error) string {
	var op *net.OpError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &op):
		return op.Error()
	case errors.Is(err, leg.ErrExpired), errors.Is(err, leg.ErrLong):
		return err.Error()
	case errors.Is(err, context.Canceled):
		return errLegAborted.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed"
	default:
		return "what came is no HTTP answer"
	}
}

// legBody is a request's body that knows when its memory is no longer read. Read gives
// copies, so the memory is free once all of it was read. For the same reason legBody is no
// [io.WriterTo].
type legBody struct {
	r *bytes.Reader
	*legSent
}

// legSent is what is known of a body however often the transport reads it.
type legSent struct {
	body  []byte
	sent  func()      // is called once the whole body was read; nil: nobody wants to know
	until time.Time   // it is not read after that, so that no worker computes it; zero: at any time
	begun atomic.Bool // there is a connection, which reads the body
	ended atomic.Bool // the body was read to its end
	again atomic.Bool // the transport has asked for another reader, to send the body again
}

func newLegBody(body []byte, sent func()) *legBody {
	return &legBody{bytes.NewReader(body), &legSent{body: body, sent: sent}}
}

func (b *legBody) tooOld() bool { return !b.until.IsZero() && time.Now().After(b.until) }

func (b *legBody) Read(p []byte) (int, error) {
	if b.tooOld() {
		return 0, errTooOld
	}
	b.begun.Store(true)
	n, err := b.r.Read(p)
	if b.r.Len() == 0 && b.ended.CompareAndSwap(false, true) && b.sent != nil {
		b.sent()
	}
	return n, err
}

func (*legBody) Close() error { return nil }

func (b *legBody) spent() bool { return b.ended.Load() && !b.again.Load() }

// reread is the GetBody of an [http.Request]. Once it was called, the memory is never
// reused, but left to the garbage collector.
func (b *legBody) reread() (io.ReadCloser, error) {
	b.again.Store(true)
	return &legBody{bytes.NewReader(b.body), b.legSent}, nil
}

// errTooOld is why a leg is not sent whose hand-off has become too old.
var errTooOld = errors.New("the hand-off is too old")

// errLegAborted is the cause with which an attempt cancels a leg of its own.
var errLegAborted = errors.New("the leg was ended by its owner")

func readAnswer(resp *http.Response, limit int) ([]byte, error) {
	var b bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= int64(limit) {
		b.Grow(int(n) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(resp.Body, int64(limit)+1))
	if err == nil && n > int64(limit) {
		return nil, leg.ErrLong
	}
	return b.Bytes(), err
}

func (c *legClient) close() { c.http.CloseIdleConnections() }
