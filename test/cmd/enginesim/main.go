// Command enginesim runs one simulated engine worker (test/enginesim) as a
// process of its own. When it is ready it prints one JSON line that says who
// it is and where it can be reached, and serves until SIGTERM or SIGINT.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the command; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if errors.Is(err, errTold) {
		return 2
	}
	var sim *enginesim.Sim
	if err == nil {
		cfg.Die = func() { os.Exit(137) }
		cfg.Logger = slog.New(slog.NewTextHandler(stderr, nil))
		sim, err = enginesim.New(cfg)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "enginesim:", err)
		return 2
	}
	// The listeners accept from here on, whatever Run has started by then.
	if err := json.NewEncoder(stdout).Encode(sim.Identity()); err != nil {
		_, _ = fmt.Fprintln(stderr, "enginesim:", err)
		return 1
	}
	if err := sim.Run(ctx); err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// errTold marks errors that the flag package has printed already.
var errTold = errors.New("told")

const usage = `Usage: enginesim --role prefill|decode|aggregated [flags]

A simulated SGLang, vLLM or TensorRT-LLM worker: OpenAI HTTP API, KV events over
ZMQ, prefix cache, and how prefill and decode come together, enforced. Prints one
JSON line when ready. Read it with GET /sim/state and /sim/requests?since=N; break
it with POST /sim/fault {"mode":"none|hang|error|slow|die|early200|finish_abort|
truncate|refuse|finish|no_handoff|bad_handoff|apart","when":"before|mid|after",
"status":500,"reason":"stop|content_filter|length","form":"text|list|twice|broken",
"delay_ms":0,"factor":10,"count":0,"for_ms":0,"health":false}.

Flags:
`

// parseFlags reads the configuration. Errors other than errTold are the
// caller's to print.
func parseFlags(args []string, stderr io.Writer) (enginesim.Config, error) {
	var cfg enginesim.Config
	fs := flag.NewFlagSet("enginesim", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		_, _ = io.WriteString(stderr, usage)
		fs.PrintDefaults()
	}
	role := fs.String("role", "", "prefill, decode or aggregated (required)")
	engine := fs.String("engine", "sglang", "sglang, vllm or trtllm")
	modelFlags(fs, &cfg)
	id := fs.String("id", "", "instance id, decimal (default random)")
	fs.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "HTTP API; port 0 picks a free one, as everywhere")
	fs.StringVar(&cfg.BootstrapListen, "bootstrap-listen", "", "a prefill worker's bootstrap server (default 127.0.0.1:0)")
	fs.StringVar(&cfg.ControlListen, "control-listen", "", "a second address for /sim/* that no fault touches")
	fs.IntVar(&cfg.KVEventsPort, "kv-events-port", 0, "PUB socket of rank 0, rank r is r higher; -1: no events")
	fs.IntVar(&cfg.ReplayPort, "replay-port", 0, "replay socket of rank 0, rank r is r higher; -1: no replay")
	fs.StringVar(&cfg.Topic, "kv-events-topic", "", "topic frame of event messages")
	fs.IntVar(&cfg.ReplayBuffer, "replay-buffer", 10_000, "event batches kept for replay")
	fs.BoolVar(&cfg.NoDecodeEvents, "no-decode-events", false, "a decode worker publishes no block, as SGLang's without a radix cache")
	fs.IntVar(&cfg.PageSize, "page-size", 16, "tokens per KV block")
	fs.IntVar(&cfg.CapacityBlocks, "capacity-blocks", 65_536, "KV blocks per rank")
	fs.BoolVar(&cfg.EvictBlocks, "evict-blocks", false, "evict block by block, as vLLM does (SGLang: a radix node at a time)")
	fs.IntVar(&cfg.DPSize, "dp-size", 1, "data-parallel ranks")
	fs.BoolVar(&cfg.PortPerRank, "port-per-rank", false, "each rank listens on a port of its own: that of --listen is rank 0's, rank r's is r higher")
	fs.IntVar(&cfg.MaxModelLen, "max-model-len", 1<<20, "tokens of prompt and output together")
	base := fs.Float64("prefill-base-us", 0, "µs per prompt")
	perPrompt := fs.Float64("prefill-us-per-token", 20, "µs per uncached prompt token")
	perOutput := fs.Float64("decode-us-per-token", 2000, "µs per output token")
	fs.BoolVar(&cfg.SerialPrefill, "serial-prefill", false, "compute the prompts of a rank one after the other")
	fs.IntVar(&cfg.MaxRunning, "max-running", 2048, "requests that run at once, per rank")
	fs.IntVar(&cfg.StreamInterval, "stream-interval", 1, "tokens per SSE chunk")
	fs.DurationVar(&cfg.WaitingTimeout, "waiting-timeout", 300*time.Second, "decode waits so long for its KV")
	fs.DurationVar(&cfg.BootstrapTimeout, "bootstrap-timeout", 300*time.Second, "prefill waits so long for its decode")
	fs.DurationVar(&cfg.HeartbeatInterval, "heartbeat-interval", 5*time.Second, "between a decode's looks at a prefill worker")
	fs.IntVar(&cfg.HeartbeatFailures, "heartbeat-failures", 2, "looks without an answer until it is dead")
	fs.BoolVar(&cfg.HandshakeFirst, "handshake-first", false, "prefill computes only when its decode has come")
	fs.BoolVar(&cfg.HeaderOverrides, "header-overrides", false, "take x-override-* headers")
	fs.BoolVar(&cfg.AcceptsAggregated, "accepts-aggregated", false, "decode serves requests without a room (no SGLang does)")
	fs.BoolVar(&cfg.ResponseStore, "response-store", false, "vllm: keep responses (VLLM_ENABLE_RESPONSES_API_STORE)")
	failure := handoffFlags(fs, &cfg)
	fs.IntVar(&cfg.LogRequests, "log-requests", 1000, "requests kept for /sim/requests")
	fs.IntVar(&cfg.LogBodyBytes, "log-body-bytes", 256<<10, "bytes kept of one body; -1: none")
	fs.IntVar(&cfg.LogTotalBytes, "log-total-bytes", 32<<20, "bytes kept of all bodies")
	if err := fs.Parse(args); err != nil {
		return cfg, errors.Join(errTold, err)
	}
	if fs.NArg() > 0 {
		return cfg, fmt.Errorf("argument %q: expected flags only", fs.Arg(0))
	}
	cfg.KVLoadFailure = enginesim.LoadFailure(*failure)
	cfg.Engine = worker.Engine(*engine)
	cfg.PrefillBase, cfg.PrefillPerToken, cfg.DecodePerToken = micros(*base), micros(*perPrompt), micros(*perOutput)
	var errRole, errID error
	cfg.Role, errRole = worker.ParseRole(*role)
	if *id != "" {
		cfg.ID, errID = worker.ParseID(*id)
	}
	return cfg, cmp.Or(errRole, errID)
}

// modelFlags defines the flags of what requests name and show.
func modelFlags(fs *flag.FlagSet, cfg *enginesim.Config) {
	fs.Float64Var(&cfg.EndShare, "end-share", 0, "the `share` of answers whose first token is drawn to be the end")
	fs.StringVar(&cfg.KVGroup, "kv-group", "", "`name`: no KV goes to or comes from a worker of another one")
	fs.StringVar(&cfg.Poison, "poison", "", "answer 500 to each request whose body has this `text`")
	list := func(name, usage string, to *[]string) {
		fs.Func(name, usage, func(v string) error {
			*to = strings.Split(v, ",")
			return nil
		})
	}
	fs.StringVar(&cfg.APIKey, "api-key", "", "the `key` that requests have to show")
	fs.BoolVar(&cfg.CutForAnswer, "cut-for-answer", false, "vllm: a prompt that is cut to what fits leaves room for the answer's limit, as in older versions")
	fs.BoolVar(&cfg.PlainHandoff, "plain-handoff", false, "vllm: hand-offs have the fields of 0.32 alone, for sidecars that read and write them anew")
	fs.BoolVar(&cfg.ScaleOut, "scale-out", false, "vllm: answer /v1/chat/completions/render")
	fs.BoolVar(&cfg.TrustMMKwargs, "trust-request-mm-kwargs", false, "vllm: take mm_processor_kwargs and media_io_kwargs of requests")
	fs.Func("tokens", "a `file` with the token ids of all requests, by a published tokenizer: a JSON object a line, with request, tokens, and asked (whether /tokenize tells them, else 503)", func(v string) (err error) {
		cfg.Published, err = enginesim.ReadPublished(v)
		return err
	})
	list("model", "`names` it answers to, separated by commas (default sim)", &cfg.Models)
	list("adapters", "LoRA adapters that it has loaded, as `names` separated by commas", &cfg.Adapters)
}

// handoffFlags defines the flags of vLLM and TensorRT-LLM.
func handoffFlags(fs *flag.FlagSet, cfg *enginesim.Config) (failure *string) {
	fs.StringVar(&cfg.SideChannelListen, "side-channel-listen", "", "vllm, trtllm: where a prefill worker's KV is taken from (default 127.0.0.1:0)")
	fs.DurationVar(&cfg.KVLease, "kv-lease", 0, "vllm, trtllm: KV that nobody takes is freed after so long (default 30s, 60s)")
	fs.DurationVar(&cfg.PullTimeout, "pull-timeout", 5*time.Second, "vllm, trtllm: decode gives a prefill worker so long to hand over")
	failure = fs.String("kv-load-failure", "fail", "vllm: fail, or recompute where the KV cannot be had; unseen: a lease that has run out is not noticed")
	fs.BoolVar(&cfg.NullOnStop, "null-on-stop", false, "vllm: only a prefill ended by length hands over, as before 0.19")
	return failure
}

// micros turns a flag into a latency of Config, where zero means the default.
func micros(us float64) time.Duration {
	if us <= 0 {
		return enginesim.None
	}
	return time.Duration(us * float64(time.Microsecond))
}
