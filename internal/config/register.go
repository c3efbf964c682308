package config

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/internal/sources"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Register is the configuration of `extproc register`.
type Register struct {
	Worker    register.Config
	Etcd      sources.EtcdConfig
	LeaseTTL  time.Duration
	Admin     string
	ModelPath string // folder of the model's files; default: none are served
	FilesAt   string // host:port where they are served
	LogLevel  string
	LogFormat string
}

// engineFlags adds the flags that say where the engine is and how it is watched, and binds
// them to c. The function that it returns checks them once they are parsed.
func engineFlags(fs *flag.FlagSet, c *register.Config) func() error {
	fs.StringVar(&c.Engine.URL, "engine-url", "", "`URL` of the engine as it is reached from here, for example http://127.0.0.1:30000; required")
	kind := fs.String("engine", "auto", "auto, "+worker.EngineNames()+"; auto takes vllm-mooncake for vllm")
	fs.StringVar(&c.Advertise, "advertise", "", "`host[:port]` that plugins and Envoy reach the engine at; default: the engine URL's")
	fs.BoolVar(&c.PreferIPv6, "prefer-ipv6", false, "of a name with addresses of both families, advertise the IPv6 one")
	fs.StringVar(&c.AnnotationsFile, "annotations-file", "", "`file` of the pod's annotations (Kubernetes downward API)")
	fs.StringVar(&c.Engine.APIKeyFile, "engine-api-key-file", "", "`file` of the API key that the engine asks for (its --api-key), read again for each request; default: none")
	fs.StringVar(&c.Engine.HealthPath, "health-path", "/health", "`path` of health requests")
	fs.DurationVar(&c.HealthInterval, "health-interval", time.Second, "time between two health requests")
	fs.DurationVar(&c.Engine.HealthTimeout, "health-timeout", 25*time.Second, "time-out of one health request; an announced engine that is silent stays announced")
	fs.IntVar(&c.UnhealthyAfter, "unhealthy-after", 3, "bad answers to health requests, without a good one between them, after which the worker is withdrawn; a refused connection withdraws it at once")
	fs.DurationVar(&c.Refresh, "refresh", 10*time.Second, "time between two readings of the engine's facts, of names and of annotations")
	fs.DurationVar(&c.DrainSettle, "drain-settle", time.Second, "shortest drain, counted from when etcd has the worker as draining")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", 2*time.Minute, "longest drain; an engine that does not count its requests, such as TensorRT-LLM, takes all of it")
	return func() error {
		var err error
		c.Engine.Kind, err = engine.ParseKind(*kind)
		errs := []error{err}
		for _, d := range []struct {
			name string
			v    time.Duration
		}{
			{"health-interval", c.HealthInterval}, {"health-timeout", c.Engine.HealthTimeout}, {"refresh", c.Refresh},
			{"drain-settle", c.DrainSettle}, {"drain-timeout", c.DrainTimeout},
		} {
			if d.v <= 0 {
				errs = append(errs, fmt.Errorf("--%s %v: expected more than 0", d.name, d.v))
			}
		}
		if c.UnhealthyAfter < 1 {
			errs = append(errs, fmt.Errorf("--unhealthy-after %d: expected at least 1", c.UnhealthyAfter))
		}
		if c.Engine.URL == "" {
			errs = append(errs, errors.New("--engine-url: expected http://host:port"))
		}
		return errors.Join(errs...)
	}
}

// overrideFlags adds the flags that override what the engine says, and binds them to o. The
// function that it returns checks and converts them once they are parsed.
func overrideFlags(fs *flag.FlagSet, o *register.Override) func() error {
	role := fs.String("role", "", "prefill, decode or aggregated; default: what SGLang says, aggregated for vLLM; TensorRT-LLM needs it")
	fs.Var((*list)(&o.Models), "model", "`names` that the worker answers to, separated by commas; default: what the engine says")
	fs.StringVar(&o.Namespace, "namespace", "", "`name` that separates fleets of one model")
	fs.StringVar(&o.Deployment, "deployment", "", "`name` of the worker's deployment; decode workers of one deployment come and go together")
	dpSize := fs.Uint("dp-size", 0, "data-parallel `ranks`; 0: what the engine says")
	fs.BoolVar(&o.PortPerRank, "port-per-rank", false, "each rank listens on a port of its own: the advertised one plus the rank")
	blockSize := fs.Uint("block-size", 0, "`tokens` in a KV block; 0: what the engine says, which an older TensorRT-LLM does not")
	fs.Uint64Var(&o.CapacityBlocks, "capacity-blocks", 0, "KV `blocks` of a rank; 0: what the engine says")
	eagle := fs.Bool("eagle", false, "whether its KV blocks are of pairs of tokens (speculation by EAGLE); default: what the engine says")
	fs.StringVar(&o.BootstrapHost, "bootstrap-host", "", "`host` at which decode workers meet this prefill worker; default: annotation, engine, the advertised address")
	bootPort := fs.Uint("bootstrap-port", 0, "`port` of it; 0: annotation, else what the engine says")
	fs.Var((*list)(&o.KVHosts), "kv-events-host", "`host` that publishes the KV events, or, of ranks on several nodes, one of each node, separated by commas; default: what the engine says, else the advertised address")
	kvPort := fs.Int("kv-events-port", 0, "`port` of its first rank's KV events, rank r's is r higher; 0: what the engine says, -1: none are read")
	kvReplay := fs.Uint("kv-replay-port", 0, "`port` of its first rank's replay; 0: what the engine says")
	kvTopic := fs.String("kv-events-topic", "", "`topic` of the KV events; default: what the engine says")
	aggregated := fs.Bool("accepts-aggregated", false, "whether this decode worker can serve without a prefill; default: vLLM yes, SGLang and TensorRT-LLM no")
	fs.BoolVar(&o.HeaderOverrides, "header-overrides", false, "the engine takes bootstrap data as x-override-* headers (SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES)")
	return func() error {
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
		o.DPSize, o.BlockSize = count("dp-size", *dpSize), count("block-size", *blockSize)
		o.BootstrapPort, o.KVReplayPort = port("bootstrap-port", *bootPort), port("kv-replay-port", *kvReplay)
		o.NoKVEvents = *kvPort == -1
		if *kvPort < -1 {
			errs = append(errs, fmt.Errorf("--kv-events-port %d: expected -1 to 65535", *kvPort))
		} else if !o.NoKVEvents {
			o.KVPort = port("kv-events-port", uint(*kvPort))
		}
		if *role != "" {
			var err error
			o.Role, err = worker.ParseRole(*role)
			if err != nil {
				errs = append(errs, fmt.Errorf("--role %q: expected prefill, decode or aggregated", *role))
			}
		}
		o.Eagle, o.AcceptsAggregated = given(fs, "eagle", eagle), given(fs, "accepts-aggregated", aggregated)
		o.KVTopic = given(fs, "kv-events-topic", kvTopic)
		return errors.Join(errs...)
	}
}

// pairFlags adds the flags of what the worker's partner must share with it, and binds them
// to o.
func pairFlags(fs *flag.FlagSet, o *register.Override) {
	for fact, usage := range map[worker.PairFact]string{
		worker.KVGroup:       "`name` of a group: a worker of another one is no partner; default: the annotation baton.dev/kv-group, else none",
		worker.EngineVersion: "`version` that its partner must have, too; default: what the engine says",
		worker.Weights:       "`path` and revision of the weights that its partner must have, too; default: what the engine says",
		worker.KVDType:       "`type` of the KV cache that its partner must have, too; default: what the engine says",
	} {
		fs.StringVar(&o.Pair[fact], strings.ReplaceAll(fact.String(), "_", "-"), "", usage)
	}
}

// given returns the value of a flag, or nil if the command line does not have the flag:
// false, if given, differs from nothing.
func given[T any](fs *flag.FlagSet, name string, v *T) *T {
	var out *T
	fs.Visit(func(f *flag.Flag) {
		if f.Name == name {
			out = v
		}
	})
	return out
}

// RegisterFlags adds every flag of register. The function that it returns gives the
// configuration once the flags are parsed.
func RegisterFlags(fs *flag.FlagSet) func() (Register, error) {
	var c Register
	o := &c.Worker.Override
	watched, overrides, topology := engineFlags(fs, &c.Worker), overrideFlags(fs, o), topologyFlags(fs, o)
	pairFlags(fs, o)
	store := addSettings(fs, sources.EtcdConfig{Prefix: etcd.DefaultPrefix}, etcdSettings())
	fs.DurationVar(&c.LeaseTTL, "lease-ttl", 0, "how long etcd keeps the worker after this process died; whole seconds (default 10s, and 5m0s with --etcd-user)")
	fs.StringVar(&c.Admin, "admin", "", "`host:port` of /healthz, /readyz, /state and /metrics; default: none")
	fs.StringVar(&c.ModelPath, "model-path", "", "`folder` with the engine's model as it is published (tokenizer.json and so on): plugins then make the tokens of its prompts themselves; default: none")
	fs.StringVar(&c.FilesAt, "model-files-listen", ":9904", "`host:port` where plugins read these files, at the address that is advertised")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "text", "text or json")
	return func() (Register, error) {
		c.Etcd.Prefix = etcd.DefaultPrefix
		errs := []error{watched(), overrides(), topology()}
		if port := engines.Of(c.Worker.Engine.Kind).Bootstrap; port != 0 && o.Role == worker.Prefill {
			c.Worker.Engine.Bootstrap = cmp.Or(o.BootstrapPort, port)
		}
		store(&c.Etcd, func(string) {})
		if len(c.Etcd.Endpoints) == 0 {
			errs = append(errs, errors.New("--etcd-endpoints: expected at least one address"))
		}
		if c.Admin != "" {
			if _, _, err := net.SplitHostPort(c.Admin); err != nil {
				errs = append(errs, fmt.Errorf("--admin %q: expected host:port", c.Admin))
			}
		}
		if !HostPort(c.FilesAt) {
			errs = append(errs, fmt.Errorf("--model-files-listen %q: expected host:port", c.FilesAt))
		}
		errs = append(errs, etcd.RegistrarConfig{Prefix: c.Etcd.Prefix}.Validate())
		if c.LeaseTTL != 0 && (c.LeaseTTL < time.Second || c.LeaseTTL > time.Hour || c.LeaseTTL%time.Second != 0) {
			errs = append(errs, fmt.Errorf("--lease-ttl %v: expected whole seconds, from 1s to 1h", c.LeaseTTL))
		}
		err := errors.Join(errs...)
		if err == nil {
			err = c.Worker.Validate()
		}
		if err != nil {
			return c, Usage(err)
		}
		return c, nil
	}
}
