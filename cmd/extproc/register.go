package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// registerConfig is what `extproc register` is told.
type registerConfig struct {
	worker    register.Config
	etcd      EtcdConfig
	leaseTTL  time.Duration
	admin     string
	logLevel  string
	logFormat string
}

// engineFlags adds the flags that say where the engine is and how it is
// watched, and returns a function that puts them into c.
func engineFlags(fs *flag.FlagSet) func(c *register.Config) error {
	url := fs.String("engine-url", "", "`URL` of the engine as it is reached from here, for example http://127.0.0.1:30000; required")
	kind := fs.String("engine", "auto", "auto, sglang, vllm, vllm-mooncake or trtllm; auto takes vllm-mooncake for vllm")
	advertise := fs.String("advertise", "", "`host[:port]` that plugins and Envoy reach the engine at; default: the engine URL's")
	ipv6 := fs.Bool("prefer-ipv6", false, "of a name with addresses of both families, advertise the IPv6 one")
	annotations := fs.String("annotations-file", "", "`file` of the pod's annotations (Kubernetes downward API)")
	key := fs.String("engine-api-key-file", "", "`file` of the API key that the engine asks for (its --api-key), read again for each request; default: none")
	path := fs.String("health-path", "/health", "`path` to ask for health")
	interval := fs.Duration("health-interval", time.Second, "between two questions after health")
	timeout := fs.Duration("health-timeout", 5*time.Second, "of one question after health")
	after := fs.Int("unhealthy-after", 3, "bad answers in a row that take the worker away; a refused connection does at once")
	refresh := fs.Duration("refresh", 10*time.Second, "between two readings of what the engine tells, of names and of annotations")
	settle := fs.Duration("drain-settle", time.Second, "shortest drain, from when etcd holds that the worker drains")
	drain := fs.Duration("drain-timeout", 2*time.Minute, "longest drain; all of it if the engine does not count its requests, as TensorRT-LLM")
	return func(c *register.Config) error {
		k, err := engine.ParseKind(*kind)
		errs := []error{err}
		for _, d := range []struct {
			name string
			v    time.Duration
		}{
			{"health-interval", *interval}, {"health-timeout", *timeout}, {"refresh", *refresh},
			{"drain-settle", *settle}, {"drain-timeout", *drain},
		} {
			if d.v <= 0 {
				errs = append(errs, fmt.Errorf("--%s %v: expected more than 0", d.name, d.v))
			}
		}
		if *after < 1 {
			errs = append(errs, fmt.Errorf("--unhealthy-after %d: expected at least 1", *after))
		}
		if *url == "" {
			errs = append(errs, errors.New("--engine-url: expected http://host:port"))
		}
		c.Engine = engine.Config{URL: *url, Kind: k, APIKeyFile: *key, HealthPath: *path, HealthTimeout: *timeout}
		c.Advertise, c.PreferIPv6, c.AnnotationsFile = *advertise, *ipv6, *annotations
		c.HealthInterval, c.UnhealthyAfter, c.Refresh = *interval, *after, *refresh
		c.DrainSettle, c.DrainTimeout = *settle, *drain
		return errors.Join(errs...)
	}
}

// overrideFlags adds the flags that beat what the engine says.
func overrideFlags(fs *flag.FlagSet) func(o *register.Override) error {
	role := fs.String("role", "", "prefill, decode or aggregated; default: what SGLang says, aggregated for vLLM; TensorRT-LLM needs it")
	models := fs.String("model", "", "`names` that the worker answers to, separated by commas; default: what the engine says")
	namespace := fs.String("namespace", "", "`name` that separates fleets of one model")
	deployment := fs.String("deployment", "", "`name` of what the worker was started with; decode workers of one come and go together")
	dpSize := fs.Uint("dp-size", 0, "data-parallel `ranks`; 0: what the engine says")
	portPerRank := fs.Bool("port-per-rank", false, "each rank listens on a port of its own: the advertised one plus the rank")
	blockSize := fs.Uint("block-size", 0, "`tokens` in a KV block; 0: what the engine says, which an older TensorRT-LLM does not")
	capacity := fs.Uint64("capacity-blocks", 0, "KV `blocks` of a rank; 0: what the engine says")
	eagle := fs.Bool("eagle", false, "whether its KV blocks are of pairs of tokens (speculation by EAGLE); default: what the engine says")
	bootHost := fs.String("bootstrap-host", "", "`host` at which decode workers meet this prefill worker; default: annotation, engine, the advertised address")
	bootPort := fs.Uint("bootstrap-port", 0, "`port` of it; 0: annotation, else what the engine says")
	kvHost := fs.String("kv-events-host", "", "`host` that publishes the KV events; default: what the engine says, else the advertised address")
	kvPort := fs.Int("kv-events-port", 0, "`port` of rank 0's KV events; 0: what the engine says, -1: none are read")
	kvReplay := fs.Uint("kv-replay-port", 0, "`port` of rank 0's replay; 0: what the engine says")
	kvTopic := fs.String("kv-events-topic", "", "`topic` of the KV events; default: what the engine says")
	aggregated := fs.Bool("accepts-aggregated", false, "whether this decode worker can serve without a prefill; default: vLLM yes, SGLang and TensorRT-LLM no")
	headers := fs.Bool("header-overrides", false, "the engine takes bootstrap data as x-override-* headers (SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES)")
	return func(o *register.Override) error {
		var errs []error
		port := func(name string, n uint) uint16 {
			if n > 65535 {
				errs = append(errs, fmt.Errorf("--%s %d: expected a port up to 65535", name, n))
			}
			return uint16(n)
		}
		count := func(name string, n uint) uint32 {
			if n > 1<<31 {
				errs = append(errs, fmt.Errorf("--%s %d: expected at most %d", name, n, 1<<31))
			}
			return uint32(n)
		}
		*o = register.Override{
			Models: splitList(*models), Namespace: *namespace, Deployment: *deployment,
			DPSize: count("dp-size", *dpSize), PortPerRank: *portPerRank, BlockSize: count("block-size", *blockSize), CapacityBlocks: *capacity,
			BootstrapHost: *bootHost, BootstrapPort: port("bootstrap-port", *bootPort),
			NoKVEvents: *kvPort == -1, KVHost: *kvHost, KVReplayPort: port("kv-replay-port", *kvReplay), HeaderOverrides: *headers,
		}
		if *kvPort < -1 {
			errs = append(errs, fmt.Errorf("--kv-events-port %d: expected -1 to 65535", *kvPort))
		} else if !o.NoKVEvents {
			o.KVPort = port("kv-events-port", uint(*kvPort))
		}
		if *role != "" {
			var err error
			if o.Role, err = worker.ParseRole(*role); err != nil {
				errs = append(errs, fmt.Errorf("--role %q: expected prefill, decode or aggregated", *role))
			}
		}
		o.Eagle, o.AcceptsAggregated = given(fs, "eagle", eagle), given(fs, "accepts-aggregated", aggregated)
		o.KVTopic = given(fs, "kv-events-topic", kvTopic)
		return errors.Join(errs...)
	}
}

// given returns the value of a flag that was given, else nil: to be told no is
// not to be told nothing.
func given[T any](fs *flag.FlagSet, name string, v *T) *T {
	var out *T
	fs.Visit(func(f *flag.Flag) {
		if f.Name == name {
			out = v
		}
	})
	return out
}

// registerFlags adds every flag and returns a function that gives the
// configuration once they are parsed.
func registerFlags(fs *flag.FlagSet) func() (registerConfig, error) {
	watched := engineFlags(fs)
	overrides := overrideFlags(fs)
	topology := topologyFlags(fs)
	store := etcdFlags(fs)
	ttl := fs.Duration("lease-ttl", 10*time.Second, "how long etcd keeps the worker after this process died; whole seconds")
	admin := fs.String("admin", "", "`host:port` of /healthz, /readyz, /state and /metrics; default: none")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	format := fs.String("log-format", "text", "text or json")
	return func() (registerConfig, error) {
		c := registerConfig{leaseTTL: *ttl, admin: *admin, logLevel: *level, logFormat: *format}
		c.etcd.Prefix = etcd.DefaultPrefix
		errs := []error{watched(&c.worker), overrides(&c.worker.Override), topology(&c.worker.Override)}
		if c.worker.Engine.Kind == engine.VLLMMooncake && c.worker.Override.Role == worker.Prefill {
			c.worker.Engine.Bootstrap = cmp.Or(c.worker.Override.BootstrapPort, engine.DefaultMooncakeBootstrap)
		}
		store(&c.etcd)
		if len(c.etcd.Endpoints) == 0 {
			errs = append(errs, errors.New("--etcd-endpoints: expected at least one address"))
		}
		if *admin != "" {
			if _, _, err := net.SplitHostPort(*admin); err != nil {
				errs = append(errs, fmt.Errorf("--admin %q: expected host:port", *admin))
			}
		}
		errs = append(errs, etcd.RegistrarConfig{Prefix: c.etcd.Prefix}.Validate())
		if *ttl < time.Second || *ttl > time.Hour || *ttl%time.Second != 0 {
			errs = append(errs, fmt.Errorf("--lease-ttl %v: expected whole seconds, from 1s to 1h", *ttl))
		}
		err := errors.Join(errs...)
		if err == nil {
			err = c.worker.Validate()
		}
		if err != nil {
			return c, usageError{err}
		}
		return c, nil
	}
}

const registerSummary = `Keeps the engine beside it known to the plugins through etcd: reads what the engine
tells of itself, follows its health, and on SIGTERM drains it: no new requests are
sent to it, those that it has end, then it is gone. A second SIGTERM ends at once.`

func registerCommand(ctx context.Context, args []string, stderr io.Writer) error {
	fs := newFlagSet("register", registerSummary, stderr)
	config := registerFlags(fs)
	if err := parseFlags(fs, args, 0); err != nil {
		return err
	}
	c, err := config()
	if err != nil {
		return err
	}
	log, err := telemetry.NewLogger(stderr, c.logLevel, c.logFormat)
	if err != nil {
		return usageError{err}
	}
	c.worker.Logger = log
	return registerWorker(ctx, c, log)
}

// registerWorker runs until ctx has ended and the worker is drained. The
// registrar goes on until the record has been let go of.
func registerWorker(ctx context.Context, c registerConfig, log *slog.Logger) error {
	conf, err := c.etcd.client()
	if err != nil {
		return usageError{err}
	}
	client, err := etcd.Dial(conf)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	var runner *register.Runner // made before the registrar runs and calls its hooks
	registrar, err := etcd.NewRegistrar(client, etcd.RegistrarConfig{
		Prefix: c.etcd.Prefix, TTL: c.leaseTTL, Logger: log,
		Hooks: etcd.RegistrarHooks{
			Registered: func(id worker.ID) { runner.Registered(id) },
			Lost:       func(cause string) { runner.Lost(cause) },
			Failed:     func(err error) { runner.Failed(err) },
		},
	})
	if err != nil {
		return usageError{err}
	}
	runner, err = register.New(c.worker, registrar)
	if err != nil {
		return usageError{err}
	}
	closeAdmin, err := serveRegisterAdmin(c.admin, runner, log)
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
		return keptErr // says the same, and more
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // the registrar has let go since
	}
	return err
}

// hurryAtSecondSignal calls hurry at the second signal; the first one ends the
// context of main. The function that it returns ends it.
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

// serveRegisterAdmin serves the runner's pages, if there is an address.
func serveRegisterAdmin(addr string, runner *register.Runner, log *slog.Logger) (closeAll func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	srv := &http.Server{Handler: runner.Handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	log.Info("admin address", slog.String("url", "http://"+l.Addr().String()))
	return func() {
		_ = srv.Close()
		<-served
	}, nil
}
