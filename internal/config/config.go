package config

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/sources"
	"github.com/seed-60ae5743/baton/internal/strictyaml"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Config is the file that --config names. Unknown keys are refused. `extproc check`
// prints the effective configuration, which reads back as itself.
type Config struct {
	// Listen is where Envoy reaches the plugin: unix:///path or host:port. Default
	// unix:///run/baton/extproc.sock. One plugin per Envoy over a unix socket is the
	// recommended deployment.
	Listen string `yaml:"listen"`
	// SocketMode is the mode of a unix socket, in octal digits. Default 0660: Envoy runs as
	// the same user, or in its group.
	SocketMode SocketMode `yaml:"socket_mode"`
	// InsecureListen allows a listen address that other machines reach without
	// tls.client_ca.
	InsecureListen bool `yaml:"insecure_listen"`
	// TLS is for a listener that is not a unix socket.
	TLS TLSConfig `yaml:"tls"`

	Admin AdminConfig `yaml:"admin"`
	// Probes serves only gRPC health, in plain text.
	Probes PortConfig `yaml:"probes"`
	// Metrics serves only /metrics and /healthz, in plain text.
	Metrics PortConfig `yaml:"metrics"`
	// Gateway makes the plugin an endpoint picker of the Gateway API.
	Gateway GatewayConfig `yaml:"gateway"`
	Log     LogConfig     `yaml:"log"`
	Trace   TraceConfig   `yaml:"trace"`

	Discovery sources.Config `yaml:"discovery"`
	Facts     FactsConfig    `yaml:"facts"`
	Events    EventsConfig   `yaml:"events"`
	Index     IndexConfig    `yaml:"index"`

	// Namespace is the namespace whose models are served. Default: none.
	Namespace string `yaml:"namespace"`
	// EnforceDisagg refuses a request that only one worker alone could serve.
	EnforceDisagg bool `yaml:"enforce_disagg"`
	// Fallback says what happens to a request whose model has prefill workers if no pair
	// can serve it. none: it fails; aggregated: one worker serves it, if one can. Default
	// none.
	Fallback string `yaml:"fallback"`
	// Models holds settings of single models, by their names.
	Models map[string]ModelConfig `yaml:"models"`

	Routing RoutingConfig `yaml:"routing"`
	Prefill PrefillConfig `yaml:"prefill"`
	Request RequestConfig `yaml:"request"`
	Answer  AnswerConfig  `yaml:"answer"`
	Tokens  TokensConfig  `yaml:"tokens"`
	Engines EnginesConfig `yaml:"engines"`
	Health  HealthConfig  `yaml:"health"`
	Leg     LegConfig     `yaml:"leg"`

	Record RecordConfig `yaml:"record"`
	Shadow ShadowConfig `yaml:"shadow"`

	// Journal is how many decisions the status page keeps. Default 256.
	Journal int `yaml:"journal"`
	// DrainTimeout bounds the wait for open requests after SIGTERM. Default 30s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`

	gone []string // keys that the file has and that have no effect any more
}

// ModelConfig holds the settings of one model.
type ModelConfig struct {
	// Disaggregation says whether the model's requests may be split. auto: they may, if
	// the model has workers for prefill and decode; off: one worker serves each, also
	// with enforce_disagg. Default auto.
	Disaggregation string `yaml:"disaggregation"`
	// Tokenizer is the folder with the model's tokenizer.json, from which this process makes
	// the tokens of its prompts itself. Default: none, and engines are asked.
	Tokenizer string `yaml:"tokenizer"`
	// TTFTTarget is within which time the first token of a request is wanted that does not say so itself
	// (x-ttft-target-ms). Default 0: there is no such time.
	TTFTTarget time.Duration `yaml:"ttft_target"`
}

// PortConfig is a port that serves one purpose only.
type PortConfig struct {
	Listen string `yaml:"listen"` // host:port; default: none
}

func (c *PortConfig) validate(name string) error {
	if c.Listen != "" && !HostPort(c.Listen) {
		return fmt.Errorf("%s.listen %q: expected host:port, with a port of 0 to 65535, or nothing", name, c.Listen)
	}
	return nil
}

// AdminConfig is the address of the status page and of the metrics.
type AdminConfig struct {
	Listen string   `yaml:"listen"` // default 127.0.0.1:9902
	Hosts  []string `yaml:"hosts"`  // Host headers that are answered, besides those of loopback
	Pprof  bool     `yaml:"pprof"`
}

// LogConfig is the log on standard error.
type LogConfig struct {
	Level  string `yaml:"level"`  // debug, info, warn, error; default info
	Format string `yaml:"format"` // text, json; default text
}

// TraceConfig says where spans go.
type TraceConfig struct {
	Endpoint string  `yaml:"endpoint"` // OTLP gRPC host:port; empty: no spans
	Insecure bool    `yaml:"insecure"` // plain text to an address that is not loopback
	Ratio    float64 `yaml:"ratio"`    // share of the requests without a parent span; default 1
}

// RoutingConfig says how each role is picked, and what is shown of the decision.
type RoutingConfig struct {
	Prefill    PickConfig `yaml:"prefill"`
	Decode     PickConfig `yaml:"decode"`
	Aggregated PickConfig `yaml:"aggregated"`
	// Headers says by which names headers show the decision: plain, dynamo, both, or
	// llm-d, which is plain and names the prefill worker to the sidecar of decode's pod
	// where a gateway carries one leg. Default plain.
	Headers string `yaml:"headers"`
	// DebugHeader answers x-debug-decision with the cost table. Default false. The table
	// shows loads, worker ids, and how much of a prompt is cached, to any client that asks.
	DebugHeader bool `yaml:"debug_header"`
	// CachedHeader tells with each answer of a pair, in x-baton-cached-tokens, how many tokens of the
	// prompt prefill had cached, where its engine tells it. Default false. It tells any client
	// whether somebody has sent the prompt before.
	CachedHeader bool `yaml:"cached_header"`
	// RequestOverrides allows a request to set the weights of its own picks, in
	// nvext.router_config_override, and to bind them, in nvext.routing_constraints.
	// Default true.
	RequestOverrides *bool `yaml:"request_overrides"`
	// Conditional says which requests one worker serves although the model has prefill
	// workers.
	Conditional ConditionalConfig `yaml:"conditional"`
	// RoutedTTL is how long a routed prompt counts as cached on a rank without KV events.
	// Default 2m.
	RoutedTTL time.Duration `yaml:"routed_ttl"`
	// PredictedTTL is how long a routed prompt counts as cached on a rank with KV events,
	// until its events come. Default 10s; 0: not at all.
	PredictedTTL time.Duration `yaml:"predicted_ttl"`
}

// sidecar reports whether decode workers have llm-d's sidecar.
func (c *RoutingConfig) sidecar() bool { return c.Headers == prefill.DialectLLMD }

// PickConfig is the policy of one role; see picker.Params.
type PickConfig struct {
	Mode                         string   `yaml:"mode"` // kv, round-robin, random, least-loaded, power-of-two
	Cost                         string   `yaml:"cost"` // of the mode kv: seconds, or blocks
	OverlapScoreCredit           *float64 `yaml:"overlap_score_credit"`
	PrefillLoadScale             *float64 `yaml:"prefill_load_scale"`
	SharedCacheMultiplier        *float64 `yaml:"shared_cache_multiplier"`
	FetchCost                    *float64 `yaml:"fetch_cost"`
	Temperature                  *float64 `yaml:"temperature"`
	TrackPrefillTokens           *bool    `yaml:"track_prefill_tokens"`
	ActivePrefillTokensThreshold *int64   `yaml:"active_prefill_tokens_threshold"`
	ActiveDecodeBlocksThreshold  *float64 `yaml:"active_decode_blocks_threshold"`
	ServeOverloaded              *bool    `yaml:"serve_overloaded"`
}

// PrefillConfig says when a prefill leg counts as failed, and what follows.
type PrefillConfig struct {
	StartTimeout    time.Duration `yaml:"start_timeout"`     // default 1s
	Timeout         time.Duration `yaml:"timeout"`           // default 5m
	OverdueBase     time.Duration `yaml:"overdue_base"`      // default 2s
	OverduePerToken time.Duration `yaml:"overdue_per_token"` // default 1ms, for each token booked on the rank
	OrphanGrace     time.Duration `yaml:"orphan_grace"`      // default 30s
	// HandOffLease is how long the engines hold a hand-off's KV for a decode, if they were
	// started with another lease than their default. Default 0: the engine's.
	HandOffLease time.Duration `yaml:"handoff_lease"`
	// MaxQueuedISLTokens refuses new requests for a model with 429 while so many prompt
	// tokens are queued at its prefill workers. Default 0: no limit. Choose as many tokens
	// as the whole pool prefills in the longest wait that is better than a refusal. A
	// higher number lets more requests wait, and longer.
	MaxQueuedISLTokens int64 `yaml:"max_queued_isl_tokens"`
	HoldResponse       *bool `yaml:"hold_response"` // default true

	// Listener is where Envoy takes the legs that the plugin itself begins, which vLLM
	// and TensorRT-LLM need: unix:///path or http://host:port. Default prefill.sock
	// beside the plugin's own socket, if it listens on one.
	Listener string `yaml:"listener"`
}

// RequestConfig sets the bounds of a request.
type RequestConfig struct {
	DefaultTimeout time.Duration `yaml:"default_timeout"` // default 10m
	MaxTimeout     time.Duration `yaml:"max_timeout"`     // default 1h
	MaxWait        time.Duration `yaml:"max_wait"`        // default 1m
	MaxBodyBytes   int           `yaml:"max_body_bytes"`  // default 64 MiB
	// MaxBodiesBytes bounds the bytes of all bodies that are in flight. Default: an
	// eighth of the memory.
	MaxBodiesBytes int64 `yaml:"max_bodies_bytes"`
	MaxAttempts    int   `yaml:"max_attempts"` // default 3; at most Envoy's num_retries + 1
	// PassOtherPaths sends a request on a path that Baton does not read to one worker of
	// the model that its body names. Default true.
	PassOtherPaths *bool `yaml:"pass_other_paths"`
	// HandedOver names members of requests' bodies that go to prefill and decode apart, though
	// it is not known what the engines make of them (docs/engines.md#members).
	HandedOver []string `yaml:"handed_over"`
}

// AnswerConfig says how answers are handled.
type AnswerConfig struct {
	// FirstToken says what happens to a streamed answer before its first token. hold: it
	// waits, and an error in place of the first token becomes a fresh attempt; off: it
	// goes on at once, and Envoy's access log reports such an error. Default hold.
	FirstToken extproc.FirstToken `yaml:"first_token"`
	// OverdueBase is how long decode may take for its response headers before anything
	// has been learned of it.
	OverdueBase time.Duration `yaml:"overdue_base"` // default 10s
}

// TokensConfig says how prompts are counted; see tokens.Config.
type TokensConfig struct {
	Mode     string        `yaml:"mode"`     // auto, estimate, off; default auto
	Pictures string        `yaml:"pictures"` // auto, estimate; default estimate
	Wait     time.Duration `yaml:"wait"`     // default 100ms
	// FilesDir is a folder in which the files of models are kept that workers serve.
	// Default: none; they are read again by each new process.
	FilesDir string `yaml:"files_dir"`
}

// HealthConfig says when a worker is set aside.
type HealthConfig struct {
	ServerErrors  int           `yaml:"server_errors"`  // in a row; default 3
	ProbeInterval time.Duration `yaml:"probe_interval"` // default 1s
}

// LegConfig is for legs that reach another replica, or another life of this process.
type LegConfig struct {
	// KeyFile holds the key that seals leg tokens, at least 16 bytes. All replicas behind
	// one Envoy need the same key. Default: a key drawn at start; legs that began before
	// a restart are then refused.
	KeyFile string `yaml:"key_file"`
	// Advertise is the address at which other replicas reach this one.
	Advertise string `yaml:"advertise"`
	// Share says that replicas tell each other what they have booked. Default true; it
	// takes KeyFile and Advertise.
	Share *bool `yaml:"share"`
	// Replicas are addresses of the others; a name stands for all that it resolves to.
	// Default: none. Those in discovery's etcd are known without.
	Replicas []string `yaml:"replicas"`
	// ReplicasService is a headless Service, as name or namespace/name, whose pods are replicas.
	ReplicasService string `yaml:"replicas_service"`
}

// Default returns the configuration without a file and flags.
func Default() Config {
	yes := true
	return Config{
		Listen: "unix:///run/baton/extproc.sock", SocketMode: "0660",
		TLS:      TLSConfig{MinVersion: "VersionTLS12"},
		Admin:    AdminConfig{Listen: "127.0.0.1:9902"},
		Gateway:  GatewayConfig{Endpoints: 1, UnknownModels: unknownRefuse},
		Fallback: fallbackNone,
		Log:      LogConfig{Level: "info", Format: "text"},
		Trace:    TraceConfig{Ratio: 1},

		Discovery: sources.Default(),
		Facts:     defaultFacts(),
		Index:     IndexConfig{MaxBytes: kvindex.DefaultMaxBytes, DumpInterval: time.Minute},
		Routing: RoutingConfig{
			Prefill: PickConfig{Mode: "kv", Cost: "seconds"}, Decode: PickConfig{Mode: "kv", Cost: "seconds"}, Aggregated: PickConfig{Mode: "kv", Cost: "seconds"},
			Headers: prefill.DialectPlain, RequestOverrides: &yes, RoutedTTL: 2 * time.Minute,
			PredictedTTL: 10 * time.Second,
		},
		Prefill: PrefillConfig{
			StartTimeout: time.Second, Timeout: 5 * time.Minute, OverdueBase: 2 * time.Second,
			OverduePerToken: time.Millisecond, OrphanGrace: 30 * time.Second, HoldResponse: &yes,
		},
		Request: RequestConfig{
			DefaultTimeout: 10 * time.Minute, MaxTimeout: time.Hour, MaxWait: time.Minute,
			MaxBodyBytes: 64 << 20, MaxAttempts: 3, PassOtherPaths: &yes,
		},
		Answer:       AnswerConfig{FirstToken: extproc.FirstTokenHold, OverdueBase: 10 * time.Second},
		Tokens:       TokensConfig{Mode: "auto", Pictures: "estimate", Wait: 100 * time.Millisecond},
		Engines:      EnginesConfig{ReportInterval: 2 * time.Second},
		Health:       HealthConfig{ServerErrors: 3, ProbeInterval: time.Second},
		Leg:          LegConfig{Share: &yes},
		Record:       RecordConfig{MaxBytes: 1 << 30},
		Journal:      256,
		DrainTimeout: 30 * time.Second,
	}
}

// Read returns the defaults, overlaid with the file, if one is named.
func Read(file string) (Config, error) {
	c, _, err := readOver(Default(), file)
	return c, err
}

// Hint says where a setting is, to a user who looks for it under a key that does not
// exist.
func (*Config) Hint(key string) string {
	if key == "workers" {
		return "workers are listed in a file of their own: name it in discovery.file (--workers)"
	}
	return ""
}

// readOver overlays c with the file, and returns the place of each key in the file.
func readOver(c Config, file string) (Config, strictyaml.Places, error) {
	if file == "" {
		return c, strictyaml.Places{}, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return c, strictyaml.Places{}, fmt.Errorf("config: %w", err)
	}
	places, err := strictyaml.Read(file, data, &c)
	c.gone = slices.DeleteFunc(gone(), func(key string) bool { return !places.Given(key) })
	return c, places, err
}
