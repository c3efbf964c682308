package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/eppconfig"
	"github.com/seed-60ae5743/baton/internal/sources"
)

// eppForm is the form of a flag's value.
type eppForm int

const (
	eppText eppForm = iota
	eppYesNo
	eppPort
	eppNumber
	eppDuration
)

// eppFate says what Baton does with a reference picker's flag.
type eppFate int

const (
	eppSets    eppFate = iota // it sets a key of Baton's
	eppNoted                  // it is accepted, and has no effect here
	eppReads                  // it names a scheduler's configuration, which internal/eppconfig reads
	eppRefused                // without it other workers would serve, or others could read something
)

// eppFlag is one flag of a reference picker.
type eppFlag struct {
	name string
	def  string // the reference's default
	form eppForm
	fate eppFate
	text string                          // what the flag sets, or why it has no effect or is refused
	set  func(c *Config, v string) error // only with eppSets
	pool bool                            // it says which pods are workers: without effect if another source of workers is set

	// read is only with eppReads.
	read func(v string) (eppconfig.Config, error)
}

// eppFlags lists every flag of the reference pickers: lwepp of the Gateway API inference
// extension, the extension's own former picker, and llm-d-router's. They are applied to
// the configuration in this order.
func eppFlags() []eppFlag {
	return slices.Concat(eppFlagsOfPorts(), eppFlagsOfTLS(), eppFlagsOfLogs(), eppFlagsOfPool(),
		fated(eppNoted, eppFlagsWithoutEffect()), eppFlagsOfScheduler(), fated(eppRefused, eppFlagsRefused()))
}

// fated returns the flags with one fate.
func fated(fate eppFate, flags []eppFlag) []eppFlag {
	for i := range flags {
		flags[i].fate = fate
	}
	return flags
}

// text sets what to points to as the flag says it.
func text[T any](to func(c *T) *string) func(c *T, v string) error {
	return func(c *T, v string) error {
		*to(c) = v
		return nil
	}
}

// everywhere sets an address to the flag's port on all addresses of the machine.
func everywhere(to func(c *Config) *string) func(c *Config, v string) error {
	return func(c *Config, port string) error { return text(to)(c, ":"+port) }
}

func eppFlagsOfPorts() []eppFlag {
	return []eppFlag{
		{name: "grpc-port", def: "9002", form: eppPort, text: "`listen`, on all addresses", set: everywhere(func(c *Config) *string { return &c.Listen })},
		{name: "grpc-health-port", def: "9003", form: eppPort, text: "`probes.listen`, on all addresses", set: everywhere(func(c *Config) *string { return &c.Probes.Listen })},
		{name: "metrics-port", def: "9090", form: eppPort, text: "`metrics.listen`, on all addresses", set: everywhere(func(c *Config) *string { return &c.Metrics.Listen })},
		{name: "drain-timeout", def: "30s", form: eppDuration, text: "`drain_timeout`; new streams are served meanwhile, for half of it at most", set: func(c *Config, v string) (err error) {
			c.DrainTimeout, err = time.ParseDuration(v)
			return err
		}},
	}
}

func eppFlagsOfTLS() []eppFlag {
	return []eppFlag{
		{name: "cert-path", form: eppText, text: "`tls.cert` and `tls.key`: `tls.crt` and `tls.key` of this folder", set: func(c *Config, v string) error {
			c.TLS.Cert, c.TLS.Key = "", ""
			if v != "" {
				c.TLS.Cert, c.TLS.Key = filepath.Join(v, "tls.crt"), filepath.Join(v, "tls.key")
			}
			return nil
		}},
		{name: "secure-serving", def: "true", form: eppYesNo, text: "`tls`: yes, with a certificate made at the start if none is named (`tls.self_signed`); no, plain text", set: func(c *Config, v string) error {
			c.TLS.SelfSigned = yes(v)
			if !c.TLS.SelfSigned {
				c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA = "", "", ""
			}
			return nil
		}},
		{name: "tls-min-version", form: eppText, text: "`tls.min_version`", set: text(func(c *Config) *string { return &c.TLS.MinVersion })},
		{name: "tls-cipher-suites", form: eppText, text: "`tls.cipher_suites`, separated by commas", set: func(c *Config, v string) error {
			c.TLS.CipherSuites = splitList(v)
			return nil
		}},
	}
}

func eppFlagsOfLogs() []eppFlag {
	return []eppFlag{
		{name: "v", def: "2", form: eppNumber, text: "`log.level`: from 4 on `debug`, else `info`", set: setVerbosity},
		{name: "zap-log-level", form: eppText, text: "`log.level`: `debug`, `info`, `error`, `panic` (errors) or a number as with `--v`, over which it wins", set: func(c *Config, v string) error {
			switch v {
			case "debug", "info", "error":
				c.Log.Level = v
			case "panic":
				c.Log.Level = "error"
			default:
				if setVerbosity(c, v) != nil {
					return errors.New("expected debug, info, error, panic or a number")
				}
			}
			return nil
		}},
		{name: "zap-encoder", form: eppText, text: "`log.format`: `json`, or `console`, which is text", set: func(c *Config, v string) error {
			format, ok := map[string]string{"json": "json", "console": "text"}[v]
			if !ok {
				return errors.New("expected json or console")
			}
			c.Log.Format = format
			return nil
		}},
		{name: "tracing", def: "true", form: eppYesNo, text: "`trace.endpoint`: no empties it; yes leaves it, and OTEL_… variables are not read", set: func(c *Config, v string) error {
			if !yes(v) {
				c.Trace.Endpoint = ""
			}
			return nil
		}},
		{name: "enable-pprof", def: "true", form: eppYesNo, text: "`admin.pprof`, at the admin address and not at the metrics port; without the flag it is off", set: func(c *Config, v string) error {
			c.Admin.Pprof = yes(v)
			return nil
		}},
	}
}

// eppFlagsOfPool say which pods are workers. They are laid over the file's first pool.
func eppFlagsOfPool() []eppFlag {
	const first = "`discovery.kubernetes[0].%s`%s; %s where `--workers`, `--etcd-endpoints` or the file name other workers alone"
	sets := func(name, def, key, more string, set func(k *sources.KubernetesConfig, v string) error) eppFlag {
		otherwise := "no effect"
		if strings.HasPrefix(name, "endpoint-") {
			otherwise = "refused"
		}
		return eppFlag{name: name, def: def, text: fmt.Sprintf(first, key, more, otherwise), pool: true, set: func(c *Config, v string) error {
			d := &c.Discovery
			if len(d.Kubernetes) == 0 {
				d.Kubernetes = []sources.KubernetesConfig{{}}
			}
			return set(&d.Kubernetes[0], v)
		}}
	}
	return []eppFlag{
		sets("pool-name", "", "pool", "", text(func(k *sources.KubernetesConfig) *string { return &k.Pool })),
		sets("pool-namespace", "", "namespace", "", text(func(k *sources.KubernetesConfig) *string { return &k.Namespace })),
		sets("pool-group", "inference.networking.k8s.io", "group", "", text(func(k *sources.KubernetesConfig) *string { return &k.Group })),
		sets("kubeconfig", "", "kubeconfig", "", text(func(k *sources.KubernetesConfig) *string { return &k.Kubeconfig })),
		sets("endpoint-selector", "", "selector", ", in place of a pool", text(func(k *sources.KubernetesConfig) *string { return &k.Selector })),
		sets("endpoint-target-ports", "", "target_ports", ", separated by commas", func(k *sources.KubernetesConfig, v string) error {
			k.TargetPorts = nil
			for _, part := range splitList(v) {
				n, err := strconv.Atoi(part)
				if err != nil {
					return errors.New("expected ports, separated by commas")
				}
				k.TargetPorts = append(k.TargetPorts, n)
			}
			return nil
		}),
	}
}

func setVerbosity(c *Config, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil {
		return err
	}
	c.Log.Level = "info"
	if n >= 4 {
		c.Log.Level = "debug"
	}
	return nil
}

func eppFlagsWithoutEffect() []eppFlag {
	const (
		scrape  = "these metrics are not read: load is what is booked, corrected by `engines.report_interval`; caches are followed by KV events"
		message = "gRPC messages have no limit of their own; bodies have `request.max_body_bytes`"
		zap     = "the log is not zap's"
	)
	return []eppFlag{
		{name: "ha-enable-leader-election", def: "false", form: eppYesNo, text: "every replica is ready and serves; give them one `leg.key_file`"},
		{name: "health-checking", def: "false", form: eppYesNo, text: "health is always served, at the gRPC port too"},
		{name: "metrics-endpoint-auth", def: "true", form: eppYesNo, text: "no credentials are checked: anyone who reaches the metrics port reads the metrics, which name models and workers' ids, never a prompt; close the port to others in the network"},
		{name: "enable-grpc-stream-metrics", def: "false", form: eppYesNo, text: "streams are always counted: `baton_streams_in_flight`"},
		{name: "emit-endpoint-scores", def: "false", form: eppYesNo, text: "costs are in the header `x-baton-decision` and on the status page, not in metadata"},
		{name: "enable-cert-reload", def: "false", form: eppYesNo, text: "a certificate whose files change is always read again"},
		{name: "fairness-id-metric-label-limit", def: "1000", form: eppNumber, text: "no metric has that label"},
		{name: "grpc-max-recv-msg-size", text: message},
		{name: "grpc-max-send-msg-size", text: message},
		{name: "allow-experimental-plugins", def: "false", form: eppYesNo, text: "there are no plugins"},
		{name: "plugin-state-staleness-threshold", def: "5m", form: eppDuration, text: "a booking ends with its request, however long that takes"},
		{name: "refresh-metrics-interval", def: "50ms", form: eppDuration, text: scrape},
		{name: "refresh-prometheus-metrics-interval", def: "5s", form: eppDuration, text: scrape},
		{name: "metrics-staleness-threshold", def: "2s", form: eppDuration, text: scrape},
		{name: "total-queued-requests-metric", def: "vllm:num_requests_waiting", text: scrape},
		{name: "total-running-requests-metric", def: "vllm:num_requests_running", text: scrape},
		{name: "kv-cache-usage-percentage-metric", def: "vllm:kv_cache_usage_perc", text: scrape},
		{name: "lora-info-metric", def: "vllm:lora_requests_info", text: scrape},
		{name: "cache-info-metric", def: "vllm:cache_config_info", text: scrape},
		{name: "model-server-metrics-scheme", def: "http", text: scrape},
		{name: "model-server-metrics-path", def: "/metrics", text: scrape},
		{name: "model-server-metrics-port", def: "0", form: eppPort, text: scrape},
		{name: "model-server-metrics-https-insecure-skip-verify", def: "true", form: eppYesNo, text: scrape},
		{name: "enable-multi-engine", def: "false", form: eppYesNo, text: "a worker's registration names its engine"},
		{name: "engine-label-key", def: "inference.networking.k8s.io/engine-type", text: "a worker's registration names its engine"},
		{name: "zap-devel", def: "true", form: eppYesNo, text: zap},
		{name: "zap-stacktrace-level", text: zap},
		{name: "zap-time-encoding", text: zap},
	}
}

// mostScheduler bounds the file of --config-file, as internal/strictyaml bounds the text.
const mostScheduler = 256 << 10

func eppFlagsOfScheduler() []eppFlag {
	const text = "another picker's scheduler: its plugins are checked by name, one warning says what Baton does instead, and `routing.headers` becomes `llm-d` if it splits ([more](#the-schedulers-configuration))"
	return []eppFlag{
		{name: "config-file", fate: eppReads, text: text, read: func(v string) (eppconfig.Config, error) {
			data, err := readFile(v, mostScheduler)
			if err != nil {
				return eppconfig.Config{}, fmt.Errorf("--config-file: %w", err)
			}
			return eppconfig.Read(v, data)
		}},
		{name: "config-text", fate: eppReads, text: text, read: func(v string) (eppconfig.Config, error) {
			return eppconfig.Read("--config-text", []byte(v))
		}},
	}
}

// readFile reads a file, of which at most so many bytes are wanted: one byte more shows
// whoever reads the content that there are too many.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most+1))
}

func eppFlagsRefused() []eppFlag {
	const (
		scheduler = "it configures another picker's scheduler, whose plugins would pick the workers; configure Baton with `--baton-config`"
		metrics   = "metrics are served in plain text, to anyone who reaches the port"
	)
	return []eppFlag{
		{name: "feature-gates", text: scheduler},
		{name: "disable-endpoint-subset-filter", def: "false", form: eppYesNo, text: "the protocol allows no pick outside the subset; `=false` is accepted"},
		{name: "metrics-cert-dir", text: metrics},
		{name: "metrics-client-ca-file", text: metrics},
	}
}

// yes reads a value that has passed the check of eppYesNo.
func yes(v string) bool {
	b, _ := strconv.ParseBool(v)
	return b
}

// check returns an error if v does not have the form.
func (f eppForm) check(v string) error {
	switch f {
	case eppYesNo:
		if _, err := strconv.ParseBool(v); err != nil {
			return errors.New("expected true or false")
		}
	case eppPort:
		if _, err := strconv.ParseUint(v, 10, 16); err != nil {
			return errors.New("expected a port, 0 to 65535")
		}
	case eppNumber:
		if _, err := strconv.Atoi(v); err != nil {
			return errors.New("expected a number")
		}
	case eppDuration:
		if _, err := time.ParseDuration(v); err != nil {
			return errors.New("expected a duration, as 30s")
		}
	case eppText:
	}
	return nil
}

// outcome says in one line what Baton does with the flag.
func (f *eppFlag) outcome() string {
	return [...]string{eppSets: "sets ", eppNoted: "no effect: ", eppReads: "reads ", eppRefused: "refused: "}[f.fate] + f.text
}

// plain returns text without backquotes, for a terminal.
func plain(text string) string { return strings.ReplaceAll(text, "`", "") }
