package core

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Off switches a port of [Config] off.
const Off = -1

// None makes a latency of [Config] zero; a plain zero means the default.
const None = time.Duration(-1)

// Config describes one simulated worker. A zero field means the default in its comment.
type Config struct {
	ID     worker.ID     // default: random, above 2^53, so that a reader that uses floats is noticed
	Role   worker.Role   // required
	Engine worker.Engine // worker.SGLang (default), worker.VLLM, worker.VLLMMooncake or worker.TensorRTLLM
	Models []string      // names of the served model; default "sim"
	// Adapters are the loaded LoRA adapters of the model; default none.
	Adapters []string

	// Addresses. Port 0 picks a free one; methods of [Sim] return which.
	Listen          string // HTTP API; default "127.0.0.1:0"
	PortPerRank     bool   // each rank serves the API on its own port: rank r's is r above Listen's
	BootstrapListen string // a prefill worker's rendezvous; default "127.0.0.1:0"
	ControlListen   string // a second address for /sim/* only, which no fault affects; default none
	KVEventsPort    int    // PUB socket of rank 0; rank r's is r higher; 0 picks ports, Off publishes nothing
	ReplayPort      int    // ROUTER socket of rank 0; rank r's is r higher; 0 picks ports, Off offers no replay
	Topic           string // first frame of every event message; default ""
	ReplayBuffer    int    // event batches kept for replay, per rank; default 10,000, as in the engines

	PageSize       int // tokens per KV block; default 16
	CapacityBlocks int // KV blocks per rank; default 65,536
	DPSize         int // data-parallel ranks; default 1
	// How it was launched, as its pages and events show it.
	FirstRank       int      // what it calls its first rank: vLLM's --data-parallel-rank or --data-parallel-start-rank; default 0
	ContextParallel int      // devices that share each block, of PageSize tokens in all: --decode-context-parallel-size, --dcp-size; default 1
	EventHosts      []string // the nodes of its ranks, in their order; default: that of Listen
	SystemPorts     bool     // the endpoint of KV events is tcp://*:0
	OlderPages      bool     // vLLM has no /kv_event_sources, and names the block of one device only, as 0.29
	Speculative     string   // SGLang's --speculative-algorithm; only its page shows it

	Published   *Published // the tokens of all prompts; default: those of [Tokenize] and [ChatTokens]
	MaxModelLen int        // tokens of prompt and output together; default 1,048,576
	EndShare    float64    // the share of answers whose first token is drawn to be the end; default 0
	KVGroup     string     // no KV goes to or comes from a worker of another one; default: none, which takes part with all
	Poison      string     // every worker answers 500 to a request whose body has this text; default none

	CutForAnswer  bool // vLLM leaves room for the answer's limit when it cuts a prompt to what fits, as older versions do
	PlainHandoff  bool // vLLM's hand-offs have the fields of 0.32 alone, for what reads and writes them anew
	ScaleOut      bool // vLLM serves /render (--enable-scale-out)
	ResponseStore bool // vLLM keeps responses (VLLM_ENABLE_RESPONSES_API_STORE)
	TrustMMKwargs bool // requests to vLLM may say how pictures are read (--trust-request-mm-kwargs)

	APIKey string // the key that requests must have (--api-key); default none

	// Latencies. Zero means the default; None, or any negative value, means none.
	PrefillBase     time.Duration // per prompt; default none
	PrefillPerToken time.Duration // per uncached prompt token; default 20 µs
	DecodePerToken  time.Duration // per output token after the first; default 2 ms
	EvictBlocks     bool          // evict single blocks, as vLLM does, where SGLang evicts a node of its radix tree
	SerialPrefill   bool          // compute a rank's prompts one after the other, as one device does
	MaxRunning      int           // requests that run on a rank; others wait, first in, first out; default 2,048
	StreamInterval  int           // tokens per SSE chunk (SGLang's stream_interval); default 1

	// Rendezvous.
	WaitingTimeout    time.Duration // decode waits this long for the KV; default 300 s
	BootstrapTimeout  time.Duration // prefill waits this long for its decode; default 300 s
	HeartbeatInterval time.Duration // time between decode's requests for a sign of life from prefill's bootstrap server; default 5 s
	HeartbeatFailures int           // failures in a row after which prefill counts as dead; default 2
	HandshakeFirst    bool          // prefill computes only after its decode has arrived; see doc.go
	HeaderOverrides   bool          // apply x-override-* headers (SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES)
	AcceptsAggregated bool          // a decode worker serves requests without a room; no SGLang does
	NoDecodeEvents    bool          // a decode worker publishes no blocks, as SGLang's without a radix cache

	// The hand-off of vLLM and TensorRT-LLM; see doc.go.
	SideChannelListen string        // address from which a prefill worker's KV is taken; rank r's is r ports higher (vLLM); default "127.0.0.1:0"
	KVLease           time.Duration // time after which KV that was not taken is freed; default 30 s (vLLM), 480 s (with MooncakeConnector), 60 s (TensorRT-LLM)
	PullTimeout       time.Duration // time that decode waits for a side channel's answer; default 5 s
	KVLoadFailure     LoadFailure   // what decode does if it cannot get the KV; default LoadFail; only vLLM has another
	NullOnStop        bool          // vLLM hands over only if prefill ended by "length", as versions before 0.19 did

	// Limits of what is kept for inspection.
	LogRequests   int // requests; default 1,000
	LogBodyBytes  int // bytes of one body; default 256 KiB; a negative value keeps none
	LogTotalBytes int // bytes of all bodies; default 32 MiB; the oldest bodies are dropped first

	// Die ends the process for the fault "die". If it is nil (embedded use), all sockets
	// are closed at once instead, and Run returns ErrDied.
	Die func()

	Logger *slog.Logger // nil means slog.DiscardHandler
}

// LoadFailure is vLLM's kv_load_failure_policy.
type LoadFailure string

// The policies of vLLM (docs/engines.md#vllm-load-failure).
const (
	LoadFail      LoadFailure = "fail"      // the request fails with 500
	LoadRecompute LoadFailure = "recompute" // decode computes the prompt itself
	// LoadUnseen is no policy, but what is reported (vllm #52234): decode does not notice that
	// the lease has run out. It reads what other requests have written, and answers with 200.
	LoadUnseen LoadFailure = "unseen"
)

// OrDefault sets a zero value to its default.
func OrDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func latency(d *time.Duration, def time.Duration) {
	switch {
	case *d < 0:
		*d = 0
	case *d == 0:
		*d = def
	}
}

// Prefills reports whether the role is prefill.
func (c Config) Prefills() bool { return c.Role == worker.Prefill }

// Decodes reports whether the role is decode.
func (c Config) Decodes() bool { return c.Role == worker.Decode }

// Disaggregated reports whether the role serves one half of a request.
func (c Config) Disaggregated() bool { return c.Prefills() || c.Decodes() }

// WithDefaults sets what is not set, for an engine.
func (c Config) WithDefaults(k Kind) Config {
	k.Defaults(&c)
	OrDefault(&c.ID, worker.ID(rand.Uint64()|1<<54))
	if len(c.Models) == 0 {
		c.Models = []string{"sim"}
	}
	c.Models = slices.Clone(c.Models)
	OrDefault(&c.Listen, "127.0.0.1:0")
	OrDefault(&c.KVLease, 30*time.Second)
	OrDefault(&c.PullTimeout, 5*time.Second)
	OrDefault(&c.KVLoadFailure, LoadFail)
	OrDefault(&c.ReplayBuffer, 10_000)
	OrDefault(&c.PageSize, 16)
	OrDefault(&c.CapacityBlocks, 65_536)
	OrDefault(&c.DPSize, 1)
	OrDefault(&c.ContextParallel, 1)
	OrDefault(&c.MaxModelLen, 1<<20)
	latency(&c.PrefillBase, 0)
	latency(&c.PrefillPerToken, 20*time.Microsecond)
	latency(&c.DecodePerToken, 2*time.Millisecond)
	OrDefault(&c.MaxRunning, 2048)
	OrDefault(&c.StreamInterval, 1)
	OrDefault(&c.WaitingTimeout, 300*time.Second)
	OrDefault(&c.BootstrapTimeout, 300*time.Second)
	OrDefault(&c.HeartbeatInterval, 5*time.Second)
	OrDefault(&c.HeartbeatFailures, 2)
	OrDefault(&c.LogRequests, 1000)
	OrDefault(&c.LogBodyBytes, 256<<10)
	OrDefault(&c.LogTotalBytes, 32<<20)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// validate returns all faults of the configuration, joined, or nil.
func (c Config) validate(k Kind) error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.Role < worker.Prefill || c.Role > worker.Aggregated {
		bad("role: expected prefill, decode or aggregated")
	}
	for _, a := range []struct{ name, addr string }{
		{"listen", c.Listen}, {"bootstrap-listen", c.BootstrapListen}, {"control-listen", c.ControlListen},
		{"side-channel-listen", c.SideChannelListen},
	} {
		if _, _, err := net.SplitHostPort(a.addr); a.addr != "" && err != nil {
			bad("%s %q: expected host:port", a.name, a.addr)
		}
	}
	if c.BootstrapListen != "" && c.Role != worker.Prefill {
		bad("bootstrap-listen: only a prefill worker has a bootstrap server")
	}
	switch c.KVLoadFailure {
	case "", LoadFail, LoadRecompute, LoadUnseen:
	default:
		bad("kv-load-failure %q: expected fail, recompute or unseen", string(c.KVLoadFailure))
	}
	if c.KVLease < 0 || c.PullTimeout < 0 {
		bad("kv-lease, pull-timeout: expected more than 0")
	}
	c.validateAdapters(bad)
	k.Check(c, bad)
	for _, n := range []struct {
		name string
		v    int
	}{
		{"page-size", c.PageSize}, {"capacity-blocks", c.CapacityBlocks}, {"dp-size", c.DPSize},
		{"max-running", c.MaxRunning}, {"stream-interval", c.StreamInterval}, {"max-model-len", c.MaxModelLen},
		{"heartbeat-failures", c.HeartbeatFailures}, {"log-requests", c.LogRequests}, {"replay-buffer", c.ReplayBuffer},
	} {
		if n.v < 0 {
			bad("%s %d: expected at least 1", n.name, n.v)
		}
	}
	for _, p := range []struct {
		name string
		v    int
	}{{"kv-events-port", c.KVEventsPort}, {"replay-port", c.ReplayPort}} {
		if p.v < Off || p.v > 65535 {
			bad("%s %d: expected -1 (off) to 65535", p.name, p.v)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("enginesim: %w", errors.Join(errs...))
}
