package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// doors are the addresses on which a plugin answers.
type doors struct {
	// main is where Envoy calls. nil: nobody listens there until there is a view of the
	// workers, so that Envoy tries again, or goes to another replica.
	main    net.Listener
	at      net.Addr // of main
	held    bool     // main takes no connection until there is a view: what comes waits
	page    *admin.Server
	probes  net.Listener // nil: none
	metrics net.Listener // nil: none
}

// open opens all of them, or none. The caller must run or close them. given are the
// listeners that systemd has passed on.
func (p *plugin) open(given ...net.Listener) (_ *doors, err error) {
	d := &doors{}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if err := d.openMain(&p.cfg, given); err != nil {
		return nil, err
	}
	d.page, err = admin.New(p.adminConfig())
	if err != nil {
		return nil, notBound("admin.listen (--admin)", p.cfg.Admin.Listen, err)
	}
	for _, x := range []struct {
		name, address string
		to            *net.Listener
	}{{"probes.listen", p.cfg.Probes.Listen, &d.probes}, {"metrics.listen", p.cfg.Metrics.Listen, &d.metrics}} {
		if x.address == "" {
			continue
		}
		*x.to, err = net.Listen("tcp", x.address)
		if err != nil {
			return nil, notBound(x.name, x.address, err)
		}
	}
	return d, nil
}

// openMain opens the address where Envoy calls, or shows that it can be opened. A gateway
// asks a picker's readiness there, so its listener is open from the start; so is a port that
// the system chooses, which nobody would know before.
func (d *doors) openMain(c *config.Config, given []net.Listener) error {
	l, err := passed(c.Listen, given)
	d.held = l != nil
	if l == nil && err == nil {
		l, err = listen(c.Listen, c.SocketMode)
	}
	if err != nil {
		return err
	}
	d.at = l.Addr()
	if !d.held && !c.Gateway.Enabled && !strings.HasSuffix(c.Listen, ":0") {
		return l.Close()
	}
	d.main = l
	return nil
}

// passed returns the listener that systemd has passed on for the address of the
// configuration; nil: systemd passes none on.
func passed(at string, given []net.Listener) (net.Listener, error) {
	if len(given) == 0 {
		return nil, nil
	}
	_, address, err := config.ListenAddress(at)
	if err != nil {
		return nil, config.Usage(err)
	}
	var is []string
	for _, l := range given {
		if l == nil { // it takes no connections
			is = append(is, "no stream")
			continue
		}
		is = append(is, l.Addr().String())
	}
	fits := []string{address}
	if strings.HasPrefix(address, ":") { // to systemd a port alone
		fits = []string{"[::]" + address, "0.0.0.0" + address}
	}
	if len(given) != 1 || !slices.Contains(fits, is[0]) {
		return nil, config.Usage(fmt.Errorf("listen (--listen) %q: systemd passes on %q: expected one socket, at the address of listen", at, is))
	}
	return given[0], nil
}

// takeCalls listens where Envoy calls, or takes the connections that have waited there, once
// the workers are known.
func takeCalls(ctx context.Context, p *plugin, d *doors, main *turns) error {
	l := d.main
	if l == nil || d.held {
		awaitKnown(ctx, p)
	}
	if ctx.Err() != nil {
		return nil
	}
	if l == nil {
		var err error
		l, err = listen(p.cfg.Listen, p.cfg.SocketMode)
		if err != nil {
			return err
		}
	}
	main.add(l)
	p.log.Info("takes requests", logkey.Listen, p.cfg.Listen)
	return keepOwnSocket(ctx, p, main, d.held)
}

// notBound names the key of an address that cannot be opened. It drops the address from
// err, since the text has it already.
func notBound(key, address string, err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
		var call *os.SyscallError
		if errors.As(err, &call) {
			err = call.Err
		}
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%s %q: this machine has no such address; choose an address of this machine", key, address)
	}
	return fmt.Errorf("%s %q: %w; choose another address, or end the process that uses it", key, address, err)
}

func (d *doors) close() {
	for _, l := range []net.Listener{d.main, d.probes, d.metrics} {
		if l != nil {
			_ = l.Close()
		}
	}
	if d.page != nil {
		_ = d.page.Close()
	}
}

// tell logs on which addresses the plugin answers.
func (d *doors) tell(p *plugin) {
	where := p.cfg.Listen
	if d.at.Network() == "tcp" { // the system may have chosen the port
		where = d.at.String()
	}
	attrs := []any{logkey.Listen, where, logkey.TLS, p.cfg.TLS.On(), logkey.Admin, "http://" + d.page.Addr().String()}
	if d.probes != nil {
		attrs = append(attrs, logkey.Probes, d.probes.Addr().String())
	}
	if d.metrics != nil {
		attrs = append(attrs, logkey.Metrics, "http://"+d.metrics.Addr().String()+"/metrics")
	}
	what := "baton listens"
	if d.main == nil || d.held {
		what = "baton has started, and takes requests once it knows the workers"
	}
	p.log.Info(what, append(attrs, logkey.Version, Version())...)
	for _, w := range []string{p.cfg.Warning(), p.cfg.KeyWarning(), p.cfg.GoneWarning()} {
		if w != "" {
			p.log.Warn(w)
		}
	}
	if p.cfg.Gateway.ClientsChoose() {
		p.log.Warn("gateway.selection_header is on: any client that sends test-epp-endpoint-selection chooses the endpoint; turn it off except in conformance tests")
	}
}

// serveMetrics serves /metrics and /healthz until ctx ends. Neither shows a request or a
// worker's address.
func (p *plugin) serveMetrics(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.tele.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "alive\n") })
	s := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	return admin.Serve(ctx, "metrics", s, l)
}
