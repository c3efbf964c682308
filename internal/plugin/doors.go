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
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// doors are the addresses on which a plugin answers.
type doors struct {
	main    net.Listener
	page    *admin.Server
	probes  net.Listener // nil: none
	metrics net.Listener // nil: none
}

// open opens all of them, or none. The caller must run or close them.
func (p *plugin) open() (_ *doors, err error) {
	d := &doors{}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	d.main, err = listen(p.cfg.Listen, p.cfg.SocketMode)
	if err != nil {
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
	if d.main.Addr().Network() == "tcp" { // the system may have chosen the port
		where = d.main.Addr().String()
	}
	attrs := []any{logkey.Listen, where, logkey.TLS, p.cfg.TLS.On(), logkey.Admin, "http://" + d.page.Addr().String()}
	if d.probes != nil {
		attrs = append(attrs, logkey.Probes, d.probes.Addr().String())
	}
	if d.metrics != nil {
		attrs = append(attrs, logkey.Metrics, "http://"+d.metrics.Addr().String()+"/metrics")
	}
	p.log.Info("baton listens", append(attrs, logkey.Version, Version())...)
	for _, w := range []string{p.cfg.Warning(), p.cfg.KeyWarning()} {
		if w != "" {
			p.log.Warn(w)
		}
	}
	if p.cfg.Gateway.ClientsChoose() {
		p.log.Warn("gateway.selection_header is on: whoever sends test-epp-endpoint-selection chooses the endpoint; this is for conformance tests alone")
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
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("metrics: serve: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err := s.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	<-served
	return err
}
