package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/modelfiles"
	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const registerSummary = `Announces an engine to the plugins through etcd, from beside it: reads the engine's
facts, follows its health, and drains it on SIGTERM: it gets no new requests, those that
it has end, then its record is removed. A second SIGTERM ends the command at once.`

func registerCommand(ctx context.Context, args []string, stderr io.Writer) error {
	fs := config.NewFlagSet("register", registerSummary, stderr)
	given := config.RegisterFlags(fs)
	if err := config.ParseFlags(fs, args, 0); err != nil {
		return err
	}
	c, err := given()
	if err != nil {
		return err
	}
	log, err := telemetry.NewLogger(stderr, c.LogLevel, c.LogFormat)
	if err != nil {
		return config.Usage(err)
	}
	defer ignoreHangup(log)()
	c.Worker.Logger = log
	return registerWorker(ctx, c, log)
}

// registerWorker runs until ctx has ended and the worker is drained. The registrar runs
// on until it has removed the record.
func registerWorker(ctx context.Context, c config.Register, log *slog.Logger) error {
	conf, err := c.Etcd.Client()
	if err != nil {
		return config.Usage(err)
	}
	client, err := etcd.Dial(conf)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	var runner *register.Runner // made before the registrar runs, which calls the hooks
	registrar, err := etcd.NewRegistrar(client, etcd.RegistrarConfig{
		Prefix: c.Etcd.Prefix, TTL: c.LeaseTTL, Logger: log,
		Hooks: etcd.RegistrarHooks{
			Registered: func(id worker.ID) { runner.Registered(id) },
			Lost:       func(cause string) { runner.Lost(cause) },
			Failed:     func(err error) { runner.Failed(err) },
		},
	})
	if err != nil {
		return config.Usage(err)
	}
	c.Worker.Others = func(ctx context.Context) ([]*worker.Worker, error) { return etcd.Workers(ctx, client, c.Etcd.Prefix) }
	closeFiles, err := serveModelFiles(&c, log)
	if err != nil {
		return err
	}
	defer closeFiles()
	runner, err = register.New(c.Worker, registrar)
	if err != nil {
		return config.Usage(err)
	}
	closeAdmin, err := serveRegisterAdmin(c.Admin, runner, log)
	if err != nil {
		return err
	}
	defer closeAdmin()
	defer hurryAtSecondSignal(runner.Hurry)()

	keep, letGo := context.WithCancel(context.WithoutCancel(ctx))
	defer letGo()
	kept := make(chan error, 1)
	go func() { kept <- registrar.Run(keep) }()
	err = runner.Run(ctx)
	letGo()
	if keptErr := <-kept; keptErr != nil {
		return keptErr // says the same as err, and more
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // the registrar has removed the record after that
	}
	return err
}

// hurryAtSecondSignal calls hurry at the second signal; the first one ends main's
// context. The function that is returned ends the wait for signals.
func hurryAtSecondSignal(hurry func()) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for range 2 {
			select {
			case <-signals:
			case <-done:
				return
			}
		}
		hurry()
	}()
	return func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}

// serveModelFiles serves the files of --model-path, if it is given, and notes where in the
// worker's record.
func serveModelFiles(c *config.Register, log *slog.Logger) (closeAll func(), err error) {
	if c.ModelPath == "" {
		return func() {}, nil
	}
	files, err := local.Read(os.DirFS(c.ModelPath))
	if err != nil {
		return nil, config.Usage(fmt.Errorf("--model-path %q: %w", c.ModelPath, err))
	}
	packed, err := files.Pack()
	if err != nil {
		return nil, fmt.Errorf("--model-path %q: %w", c.ModelPath, err)
	}
	l, err := net.Listen("tcp", c.FilesAt)
	if err != nil {
		return nil, fmt.Errorf("register: --model-files-listen: %w; choose another address, or end the process that uses it", err)
	}
	at := &c.Worker.Override.ModelFiles
	at.Digest, at.Port = local.Digest(packed), uint16(l.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	log.Info("the model's files are served", logkey.Digest, at.Digest, logkey.URL, l.Addr().String())
	return serveHTTP(l, modelfiles.Handler(packed), time.Minute), nil
}

// serveHTTP serves until closeAll.
func serveHTTP(l net.Listener, h http.Handler, write time.Duration) (closeAll func()) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: write}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	return func() {
		_ = srv.Close()
		<-served
	}
}

// serveRegisterAdmin serves the runner's pages, if addr is not empty.
func serveRegisterAdmin(addr string, runner *register.Runner, log *slog.Logger) (closeAll func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("register: --admin: %w; choose another address, or end the process that uses it", err)
	}
	log.Info("admin address", slog.String(logkey.URL, "http://"+l.Addr().String()))
	return serveHTTP(l, runner.Handler(), 5*time.Second), nil
}
