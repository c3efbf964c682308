package facts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Reader asks one worker. Safe for concurrent use. Read returns soon after its context
// has ended.
type Reader interface {
	// Read asks the engine at the target; last is the engine that answered there before,
	// "" if none did.
	Read(ctx context.Context, t Target, last worker.Engine) (Reading, error)
}

// maxPage bounds one page of an answer. vLLM's metrics are some 100 KiB.
const maxPage = 4 << 20

// trialTimeout bounds the look at a port for KV events.
const trialTimeout = time.Second

// Engines is the Reader that `extproc register` has, too, for many engines. It keeps no
// connection. The zero value shows no API key and asks by the system's roots.
type Engines struct {
	APIKeyFile string
	KeySetting string // what an operator calls APIKeyFile
	TLS        *tls.Config
	Timeout    time.Duration // of each page; default 5 s
}

// Read implements [Reader].
func (e *Engines) Read(ctx context.Context, t Target, last worker.Engine) (Reading, error) {
	f, err := e.ask(ctx, t, last)
	if err != nil {
		return Reading{}, err
	}
	r := Reading{Facts: f}
	if f.KV.Untold && f.Unread.Events == nil && t.Events != "" {
		r.Tried = try(ctx, above(t.Events, int(f.FirstRank)-int(t.Rank)))
	}
	return r, nil
}

// above returns the address that is higher by so many ports.
func above(at string, by int) string {
	host, text, _ := net.SplitHostPort(at)
	port, _ := strconv.Atoi(text)
	return net.JoinHostPort(host, strconv.Itoa(port+max(by, 0)))
}

// ask asks first as the engine that answered before, which saves the questions by which
// engines are told apart. An engine for which another one could be taken is not asked so.
func (e *Engines) ask(ctx context.Context, t Target, last worker.Engine) (engine.Facts, error) {
	if t.Kind == engine.Auto && engines.Of(last).Recognized {
		f, err := e.askAs(ctx, t, last)
		if err == nil {
			return f, nil
		}
	}
	return e.askAs(ctx, t, t.Kind)
}

func (e *Engines) askAs(ctx context.Context, t Target, k engine.Kind) (engine.Facts, error) {
	c, err := engine.New(engine.Config{
		URL: t.URL, Kind: k, Bootstrap: t.Bootstrap, APIKeyFile: e.APIKeyFile, KeySetting: e.KeySetting,
		TLS: e.TLS, Timeout: e.Timeout, MaxBytes: maxPage,
	})
	if err != nil {
		return engine.Facts{}, err
	}
	defer c.Close()
	return c.Facts(ctx)
}

// try looks whether a publisher of KV events listens at the address. Both sides of a
// ZeroMQ connection send a signature first, so that nothing has to be sent.
// https://rfc.zeromq.org/spec/37/
func try(ctx context.Context, at string) Trial {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	if err := greeted(ctx, at); err != nil {
		return Trial{At: at, Why: plain(err)}
	}
	return Trial{At: at, Found: true}
}

func greeted(ctx context.Context, at string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var signature [10]byte
	n, err := io.ReadFull(conn, signature[:])
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("closed after %d bytes: expected a ZeroMQ signature", n)
	case err != nil:
		return err
	case signature[0] != 0xff || signature[9] != 0x7f:
		return errors.New("what listens there speaks no ZeroMQ")
	}
	return nil
}
