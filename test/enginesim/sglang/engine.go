package sglang

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// Kind returns the engine.
func Kind() core.Kind {
	return core.Kind{Defaults: defaults, Check: check, Make: func(s *core.Sim, cfg core.Config) *core.Engine { return newEngine(s, cfg).table() }}
}

func defaults(c *core.Config) {
	if c.Prefills() {
		core.OrDefault(&c.BootstrapListen, "127.0.0.1:0")
	}
}

func check(c core.Config, bad func(format string, a ...any)) {
	if c.SideChannelListen != "" {
		bad("side-channel-listen: only a prefill worker of vllm or trtllm has a side channel")
	}
	if c.ScaleOut || c.TrustMMKwargs || c.ResponseStore {
		bad("scale-out, trust-request-mm-kwargs, response-store: only vllm has them")
	}
	if c.KVLoadFailure == core.LoadRecompute || c.KVLoadFailure == core.LoadUnseen {
		bad("kv-load-failure: only vllm can recompute, or read what is not held any more")
	}
	if c.NullOnStop {
		bad("null-on-stop: only vllm hands over when a prefill has stopped by itself")
	}
}

// engine is one worker.
type engine struct {
	s          *core.Sim
	cfg        core.Config
	rooms      *rooms // nil, except at a prefill worker
	links      *links
	localAddrs []netip.Addr
}

func newEngine(s *core.Sim, cfg core.Config) *engine {
	e := &engine{s: s, cfg: cfg, links: newLinks(s, cfg)}
	if cfg.Prefills() {
		e.rooms, e.localAddrs = newRooms(cfg.KVGroup, s.Violate), interfaceAddrs()
	}
	return e
}

// table is what the core is given.
func (e *engine) table() *core.Engine {
	return &core.Engine{
		Shape: &shape, Members: append(routing(), "extra_key", "lora_path"), Owner: "sglang", Nodes: true, ClearsFirst: true, NoResponses: true,
		Pages: e.pages, Healthy: e.generatesInTime, Rendezvous: bootstrap{e}.handler(),
		Keyed: func(path string) bool {
			return !slices.ContainsFunc(open(), func(p string) bool { return strings.HasPrefix(path, p) })
		},
		Serves: e.serves, Space: e.space, Plan: e.plan, ErrorBody: errorBody, AppendEvents: appendEvents,
		State: e.state, Close: e.links.client.CloseIdleConnections,
	}
}

// open are the paths below which the engine requires no key (decide_request_auth of 0.5.23).
func open() []string { return []string{"/health", "/ready", "/metrics"} }

func (e *engine) state(st *core.State) {
	st.DecodeWaiting = int(e.links.waiting.Load())
	if e.rooms != nil {
		st.PrefillAlone, st.PrefillMet, st.DecodeAskers = e.rooms.counts()
	}
}

// bootstrapPort is the worker's own bootstrap port, or the default, 8998, if it has none.
func (e *engine) bootstrapPort() int {
	if e.s.BootstrapAddr() == "" {
		return 8998
	}
	return core.PortOf(e.s.BootstrapAddr())
}

// The page of health asks for one token, and looks each second whether the scheduler has sent
// any since (docs/engines.md#health).
const (
	healthLooks = time.Second
	healthGives = 20 * time.Second
)

// generatesInTime waits as the page of health does. The token that it asks for comes as soon
// as no prompt is being computed; of other requests, whenever one has been.
func (e *engine) generatesInTime(ctx context.Context) bool {
	asked := time.Now()
	for time.Since(asked) < healthGives {
		if core.Pause(ctx, healthLooks) != nil {
			panic(http.ErrAbortHandler)
		}
		if slices.ContainsFunc(e.s.Ranks, func(r *core.Rank) bool { return r.Heard(asked) }) {
			return true
		}
	}
	return false
}

// serves understands "base:adapter" and "default".
func (e *engine) serves(model string) bool {
	base, adapter, ok := strings.Cut(model, ":")
	if !ok || !slices.Contains(e.cfg.Adapters, strings.TrimSpace(adapter)) {
		return model == "default"
	}
	base = strings.TrimSpace(base)
	return base == "" || slices.Contains(e.cfg.Models, base) || slices.Contains(e.cfg.Adapters, base)
}

// space reads the members of a request that keep blocks apart; of a batch they may be lists.
func (e *engine) space(q *core.GenRequest, i int) (ns core.Namespace, err error) {
	of := func(name string, v []byte) string {
		if err != nil || core.IsNull(v) {
			return ""
		}
		text, ok := core.Unquote(v)
		if ok {
			return text
		}
		if v[0] != '[' {
			err = core.BadRequest("%s: expected a string", name)
			return ""
		}
		var all []string
		_ = core.EachElem(v, func(e []byte) error { // null: none
			text, _ := core.Unquote(e)
			all = append(all, text)
			return nil
		})
		if len(all) != len(q.Prompts) {
			err = core.BadRequest("The length of %s should be equal to the batch size.", name)
			return ""
		}
		return all[i]
	}
	ns.Salt, ns.Seen = of("cache_salt", q.CacheSalt), q.Seen
	ns.Extra = of("extra_key", q.Own("extra_key"))
	ns.Adapter = e.adapterInModel(q)
	if ns.Adapter == "" {
		ns.Adapter = of("lora_path", q.Own("lora_path"))
	}
	switch {
	case err != nil:
		return ns, err
	case ns.Adapter != "" && len(e.cfg.Adapters) == 0:
		return ns, core.BadRequest("LoRA adapter '%s' was requested, but LoRA is not enabled.", ns.Adapter)
	case ns.Adapter != "" && !slices.Contains(e.cfg.Adapters, ns.Adapter):
		return ns, core.BadRequest("Got LoRA adapter that has never been loaded: %s", ns.Adapter)
	}
	return ns, nil
}

// adapterInModel returns the adapter in "base:adapter", or ""
// (OpenAIServingBase._parse_model_parameter).
func (e *engine) adapterInModel(q *core.GenRequest) string {
	if q.API == core.APIGenerate || slices.Contains(e.cfg.Models, q.Model) {
		return ""
	}
	if adapter, ok := strings.CutPrefix(q.Model, e.cfg.Models[0]+":"); ok {
		return strings.TrimSpace(adapter)
	}
	_, adapter, _ := strings.Cut(q.Model, ":")
	return strings.TrimSpace(adapter)
}

// errorBody is the ErrorResponse, and of a response that of its API.
func errorBody(of core.API, e *core.APIError, stream bool) any {
	switch {
	case of == core.APIResponse:
		return map[string]any{"error": map[string]any{"message": e.Msg, "type": "invalid_request_error", "param": nil, "code": e.Status}}
	case stream:
		return map[string]core.ErrorBody{"error": e.Body()}
	}
	return e.Body()
}

// weights is the member in which SGLang says which weights gave the answer.
const weights = `,"metadata":{"weight_version":"default","weight_versions":[{"version":"default","start":0,"end":0}]}`

var shape = core.Shape{
	Message: `,"reasoning_content":null`,
	Delta:   `"reasoning_content":null,`,
	Choice:  [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	Body:    [2]string{weights, weights},
	Usage:   [2]string{`,"reasoning_tokens":0,"completion_tokens_details":null`, `,"reasoning_tokens":0,"completion_tokens_details":null`},

	ChunkChoice: [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	LastChoice:  [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	Chunk:       [2]string{"", `,"usage":null`},
	LastChunk:   [2]string{"", `,"usage":null`},
	StreamUsage: [2]string{`,"reasoning_tokens":0,"completion_tokens_details":null`, `,"reasoning_tokens":0`},
	Ends:        [2]bool{true, false},
}
