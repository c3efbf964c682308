package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// legClient sends the legs that the plugin begins itself, through the listener
// of its Envoy that takes nothing without a sealed x-baton-leg: connections to
// workers, TLS and statistics are Envoy's. Nobody sends a leg to the same worker
// again: one that fails is a fresh attempt's. Safe for concurrent use.
type legClient struct {
	http *http.Client
	base string
}

const (
	legDialTimeout = time.Second
	legIdleConns   = 1024
	// legAnswerLimit bounds a prefill's answer. It holds one token and the
	// hand-off; TensorRT-LLM's has the prompt's token ids besides. More can only be
	// what the client asks to know of its prompt, such as prompt_logprobs.
	legAnswerLimit = 32 << 20
)

// ParseListener reads the address of Envoy's listener for such legs:
// unix:///path or http://host:port.
func ParseListener(s string) (network, address string, err error) {
	if path, is := strings.CutPrefix(s, "unix://"); is && strings.HasPrefix(path, "/") {
		return "unix", path, nil // as it stands: a path may have # or %
	}
	u, err := url.Parse(s)
	if err == nil && u.Scheme == "http" && u.Host != "" && strings.Trim(u.Path, "/") == "" {
		if _, _, err := net.SplitHostPort(u.Host); err == nil {
			return "tcp", u.Host, nil
		}
	}
	return "", "", fmt.Errorf("prefill listener %q: expected unix:///path or http://host:port", s)
}

// CheckListener reports whether a worker is known that cannot be served for
// want of a listener for legs of our own; nil: none.
func (srv *Server) CheckListener() error {
	if srv.legClient != nil {
		return nil
	}
	for _, w := range srv.view.Load().Workers() {
		if w.Role == worker.Prefill && handoff.KindOf(w.Engine).PrefillFirst() {
			return fmt.Errorf("prefill worker %s is %s, whose decode needs prefill's answer: expected prefill.listener, the address of "+
				"Envoy's listener sync_leg (unix:///path or http://host:port)", w.ID, w.Engine)
		}
	}
	return nil
}

func newLegClient(listener string) (*legClient, error) {
	network, address, err := ParseListener(listener)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: legDialTimeout}
	return &legClient{
		base: "http://baton",
		http: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return dialer.DialContext(ctx, network, address)
				},
				MaxIdleConns: legIdleConns, MaxIdleConnsPerHost: legIdleConns,
				IdleConnTimeout:    time.Minute,
				DisableCompression: true,
			},
		},
	}, nil
}

// send sends one leg and reads its answer whole. The body must not be written to
// until the answer says that it is spent: the transport may read it after send
// has returned.
func (c *legClient) send(ctx context.Context, path string, set []wire.Header, body []byte) *leg.OwnAnswer {
	src := newLegBody(body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, src)
	if err != nil {
		return &leg.OwnAnswer{Err: err}
	}
	req.ContentLength, req.GetBody = int64(len(body)), src.reread
	for _, h := range set {
		if h.Name == "host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = leg.ErrExpired
		}
		return &leg.OwnAnswer{Err: err, Sent: src.begun.Load(), Canceled: errors.Is(context.Cause(ctx), errLegAborted)}
	}
	defer resp.Body.Close()
	a := &leg.OwnAnswer{Status: resp.StatusCode, Sent: true, LocalReply: resp.Header.Get(prefill.HeaderLocalReply)}
	a.RetryAfter = resp.Header.Get("retry-after")
	a.Body, a.Err = readAnswer(resp)
	a.Canceled = a.Err != nil && errors.Is(context.Cause(ctx), errLegAborted)
	a.Spent = a.Err == nil && src.spent()
	return a
}

// legBody is a request's body that knows when nobody reads its memory any more:
// what Read has given is a copy. It is no io.WriterTo for that reason.
type legBody struct {
	r     *bytes.Reader
	body  []byte
	begun atomic.Bool // there is a connection that takes it
	ended atomic.Bool // it was read to its end
	again atomic.Bool // another reader was asked for, to send it anew
}

func newLegBody(body []byte) *legBody { return &legBody{r: bytes.NewReader(body), body: body} }

func (b *legBody) Read(p []byte) (int, error) {
	b.begun.Store(true)
	n, err := b.r.Read(p)
	if b.r.Len() == 0 {
		b.ended.Store(true)
	}
	return n, err
}

func (*legBody) Close() error { return nil }

func (b *legBody) spent() bool { return b.ended.Load() && !b.again.Load() }

// reread is http.Request's GetBody. The memory is the collector's from then on.
func (b *legBody) reread() (io.ReadCloser, error) {
	b.again.Store(true)
	return io.NopCloser(bytes.NewReader(b.body)), nil
}

// errLegAborted is the cause of a leg that its owner ended.
var errLegAborted = errors.New("the leg was ended by its owner")

func readAnswer(resp *http.Response) ([]byte, error) {
	var b bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= legAnswerLimit {
		b.Grow(int(n) + bytes.MinRead)
	}
	n, err := b.ReadFrom(io.LimitReader(resp.Body, legAnswerLimit+1))
	if err == nil && n > legAnswerLimit {
		return nil, leg.ErrLong
	}
	return b.Bytes(), err
}

func (c *legClient) close() { c.http.CloseIdleConnections() }
