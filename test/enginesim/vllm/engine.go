package vllm

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sidechannel"
)

// NIXL returns the engine with NixlConnector in pull mode: prefill runs first, its
// answer has the hand-off, and decode follows (docs/engines.md#vllm-hold,
// docs/engines.md#vllm-handoff).
func NIXL() core.Kind {
	return core.Kind{
		Defaults: defaults, Check: check,
		Make: func(s *core.Sim, cfg core.Config) *core.Engine {
			return newEngine(s, cfg, false, sidechannel.Manner{PerRank: true, Twice: true, OwnOnly: true}).table()
		},
	}
}

func defaults(c *core.Config) {
	if c.Prefills() {
		core.OrDefault(&c.SideChannelListen, "127.0.0.1:0")
	}
}

func check(c core.Config, bad func(format string, a ...any)) {
	lacks(c, bad, c.BootstrapListen != "")
}

// lacks reports settings that the engine has with neither connector, and bootstrap if it is
// another one that this connector lacks.
func lacks(c core.Config, bad func(format string, a ...any), bootstrap bool) {
	if c.SideChannelListen != "" && !c.Prefills() {
		bad("side-channel-listen: only a prefill worker of vllm or trtllm has a side channel")
	}
	if bootstrap || c.HandshakeFirst || c.HeaderOverrides {
		bad("bootstrap-listen, handshake-first, header-overrides: only sglang has them, and vllm-mooncake the first")
	}
}

// engine is one worker.
type engine struct {
	s        *core.Sim
	cfg      core.Config
	mooncake bool // with MooncakeConnector; see mooncake.go
	channel  *sidechannel.Channel
	asleep   atomic.Int32    // the level at which it sleeps; 0: awake
	reads    atomic.Uint64   // of /metrics
	blocks   []atomic.Uint64 // block ids that each rank has named
}

func newEngine(s *core.Sim, cfg core.Config, mooncake bool, m sidechannel.Manner) *engine {
	return &engine{s: s, cfg: cfg, mooncake: mooncake, channel: sidechannel.NewChannel(s, cfg, m), blocks: make([]atomic.Uint64, cfg.DPSize)}
}

// table is what the core is given.
func (v *engine) table() *core.Engine {
	e := &core.Engine{
		Shape: &shape, Members: append(handoffs(), "truncate_prompt_tokens", "truncation_side", "mm_payload"), Owner: "vllm", Reserved: 1, Growing: true, CachedCounts: true,
		Pages: v.pages, Model: v.model, Bind: v.channel.Bind, Close: v.channel.Close,
		Keyed: func(path string) bool {
			return slices.ContainsFunc(guarded(), func(p string) bool { return strings.HasPrefix(path, p) })
		},
		Space: v.space, Plan: v.plan, ErrorBody: errorBody, AppendEvents: v.appendEvents,
		State: v.state, Reset: v.channel.Reset,
	}
	if v.mooncake {
		e.Rendezvous, e.Identity = v.bootstrapHandler(), v.identity
	}
	return e
}

// guarded are the paths below which the engine requires its key (GUARDED_PREFIX of 0.32).
func guarded() []string { return []string{"/v1", "/v2", "/inference", "/cohere"} }

func (v *engine) state(st *core.State) {
	v.channel.State(st)
	st.Reads = v.reads.Load()
}

// space reads the namespace of a request.
func (v *engine) space(q *core.GenRequest, _ int) (core.Namespace, error) {
	ns, err := v.cfg.PlainSpace(q)
	if err == nil && !core.IsNull(q.CacheSalt) && (ns.Salt == "" || len(ns.Salt) > 128) {
		err = core.BadRequest("Parameter 'cache_salt' must be a non-empty string of at most 128 characters.")
	}
	return ns, err
}

// handoffs are the members that may come but once.
func handoffs() []string {
	return []string{"kv_transfer_params", "disaggregated_params", "prompt_token_ids"}
}

// nixlParams has the members of kv_transfer_params that the engine reads.
type nixlParams struct {
	remoteDecode, remotePrefill bool
	transfer                    *sidechannel.Transfer // only with remotePrefill
	transferID                  string                // of MooncakeConnector, only with remoteDecode
}

func (v *engine) plan(c *core.Call, h http.Header) ([]*core.Item, core.Job, error) {
	for _, f := range c.Q.Repeated(handoffs()...) {
		v.s.Violate(core.Violation{Kind: "repeated_field", Seq: c.Seq, Detail: f + " is in the body more than once"})
	}
	if err := v.known(c.Q); err != nil {
		return nil, nil, err
	}
	c.Q.Rid = core.ExternalID(c.Q, h)
	p, err := v.readParams(c)
	if err != nil {
		return nil, nil, err
	}
	if p.transfer != nil {
		c.Handoff = p.transfer.ID
	}
	items, err := v.planItems(c, p, h)
	if err != nil {
		// "notify_kv_transfer_request_rejected": if the serving layer refuses a request,
		// the KV at the prefill worker is freed (docs/engines.md#vllm-once).
		v.channel.Drop(p.transfer)
		return nil, nil, err
	}
	switch {
	case p.remoteDecode:
		c.Leg = core.LegPrefill
	case p.remotePrefill:
		c.Leg = core.LegDecode
	case v.cfg.Decodes():
		v.channel.Local()
	}
	return items, job{v: v, c: c, transfer: p.transfer, transferID: p.transferID}, nil
}

// known refuses a model that the worker does not serve, unlike SGLang, and parameters for
// reading pictures if they are not allowed (validate_request_mm_kwargs).
func (v *engine) known(q *core.GenRequest) error {
	if v.s.Serves(q.Model) {
		if q.MmKwargs != nil && !v.cfg.TrustMMKwargs {
			return core.BadRequest("Per-request mm_processor_kwargs are disabled by default.")
		}
		return nil
	}
	return &core.APIError{Status: http.StatusNotFound, Reason: "model", Msg: fmt.Sprintf("The model `%s` does not exist.", q.Model)}
}

func (v *engine) planItems(c *core.Call, p nixlParams, h http.Header) ([]*core.Item, error) {
	q := c.Q
	if err := v.fit(q); err != nil {
		return nil, err
	}
	if err := checkLimits(q); err != nil {
		return nil, err
	}
	rank := c.Asked
	if n, err := strconv.Atoi(h.Get("X-Data-Parallel-Rank")); err == nil { // else ignored: docs/engines.md#vllm-rank
		if n < 0 || n >= len(v.s.Ranks) {
			return nil, core.BadRequest("data_parallel_rank %d is out of range [0, %d).", n, len(v.s.Ranks))
		}
		rank = n
	}
	items, err := c.NewItems()
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		c.Place(it, rank)
	}
	note := func(kind, detail string) {
		v.s.Violate(core.Violation{Kind: kind, Seq: c.Seq, Detail: detail})
	}
	switch {
	case p.transfer != nil && len(items) > 1:
		return nil, c.Broken("parallel_handoff", http.StatusInternalServerError, "one hand-off for %d parallel prompts", len(items))
	case p.remoteDecode:
		if len(items) > 1 {
			note("parallel_handoff", fmt.Sprintf("%d parallel prompts are held, and one is told of", len(items)))
		}
		if q.MaxTokens != 1 {
			note("prefill_long", "prefill is to make one token, max_tokens says otherwise")
		}
		if q.Stream {
			note("prefill_stream", "a stream does not bring the hand-off")
		}
	}
	return items, nil
}

// checkLimits refuses limits that vLLM's request validation refuses. A router that makes
// a prefill request of a client's body may well produce such limits.
func checkLimits(q *core.GenRequest) error {
	if q.MaxTokens == 0 {
		return core.BadRequest("max_tokens must be at least 1, got 0.")
	}
	if q.StreamOptions && !q.Stream {
		return core.BadRequest("Stream options can only be defined when `stream=True`.")
	}
	if !core.IsNull(q.MinTokens) {
		n, err := strconv.Atoi(string(q.MinTokens))
		if err != nil || n < 0 {
			return core.BadRequest("min_tokens %.20s: expected a number of at least 0", q.MinTokens)
		}
		if q.MaxTokens > 0 && n > q.MaxTokens {
			return core.BadRequest("min_tokens must be less than or equal to max_tokens=%d, got %d.", q.MaxTokens, n)
		}
	}
	return nil
}

// readParams reads kv_transfer_params and refuses a request that this worker cannot
// serve.
func (v *engine) readParams(c *core.Call) (nixlParams, error) {
	var p nixlParams
	raw := c.Q.Own("kv_transfer_params")
	if core.IsNull(raw) {
		return p, nil
	}
	f, err := sidechannel.ReadHandoff(c, "kv_transfer_params", raw)
	if err != nil {
		return p, err
	}
	p.remoteDecode, err = f.Flag("do_remote_decode")
	if err != nil {
		return p, err
	}
	p.remotePrefill, err = f.Flag("do_remote_prefill")
	if err != nil {
		return p, err
	}
	switch {
	case p.remoteDecode && p.remotePrefill:
		return p, c.Broken("bad_handoff", http.StatusInternalServerError, "kv_transfer_params: do_remote_decode and do_remote_prefill at once")
	case p.remoteDecode && !v.cfg.Prefills(), p.remotePrefill && !v.cfg.Decodes():
		return p, c.Broken("wrong_role", http.StatusInternalServerError, "kv_transfer_params ask a %s worker for the other half", v.cfg.Role)
	case v.mooncake && (p.remoteDecode || p.remotePrefill):
		err = v.readMooncake(&p, f)
	case p.remotePrefill:
		p.transfer, err = v.readTransfer(f)
	}
	return p, err
}

// readTransfer reads where the KV is. If a field is missing, the engine waits for KV for
// ever, or an assertion ends it; here the request fails.
func (v *engine) readTransfer(f sidechannel.HandoffFields) (*sidechannel.Transfer, error) {
	t := &sidechannel.Transfer{By: f.C.Name(), Fields: string(f.Raw)}
	var host string
	for name, to := range map[string]*string{"remote_engine_id": &t.Engine, "remote_request_id": &t.ID, "remote_host": &host} {
		var err error
		*to, err = f.Text(name)
		if err != nil {
			return nil, err
		}
	}
	port, err := f.Number("remote_port", 1, 65535)
	if err != nil {
		return nil, err
	}
	t.Addr = net.JoinHostPort(host, strconv.FormatInt(port, 10))
	blocks, err := f.Value("remote_block_ids", "[")
	if err != nil {
		return nil, err
	}
	n := 0
	err = core.EachElem(blocks, func(group []byte) error {
		ids, err := core.TokenIDs(group)
		n += len(ids)
		return err
	})
	if err != nil {
		return nil, f.C.Broken("bad_handoff", http.StatusBadRequest, "remote_block_ids: expected a list of lists of block ids: %v", err)
	}
	if n == 0 {
		return nil, f.C.Broken("bad_handoff", http.StatusInternalServerError, "remote_block_ids: no block in it")
	}
	return t, nil
}

// handoff is what 0.32 answers, with one more field, unless PlainHandoff, that stands for
// those of later versions. A router changes that field if it copies the hand-off by names,
// reads numbers into floats, or writes numbers anew.
func (v *engine) handoff(it *core.Item, id string) string {
	host, port, _ := net.SplitHostPort(v.s.SideAddrs()[it.Rank.ID])
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	page := v.s.Page()
	ids := v.blockIDs(it.Rank.ID, (len(it.Prompt)+page-1)/page)
	engine, _ := json.Marshal(v.channel.EngineID(it.Rank.ID))
	request, _ := json.Marshal(id)
	later := ""
	if !v.cfg.PlainHandoff {
		later = fmt.Sprintf(`,"sim_later_field":{"z": %d, "a": 1.50}`, uint64(math.MaxInt64)-uint64(rand.Uint32()))
	}
	return fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[%s]],"remote_engine_id":%s,`+
		`"remote_request_id":%s,"remote_host":"%s","remote_port":%s,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":%d,`+
		`"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":%d%s}`,
		strings.Join(ids, ","), engine, request, host, port, len(it.Prompt), it.Cached, later)
}

// blockIDs returns n ids of a rank's blocks, from 1 to its capacity, that follow the ids of
// the last call. They are only compared, not used.
func (v *engine) blockIDs(rank, n int) []string {
	first := int(v.blocks[rank].Add(uint64(n))) - n //nolint:gosec // a count
	out := make([]string, n)
	for i := range out {
		out[i] = strconv.Itoa((first+i)%v.cfg.CapacityBlocks + 1)
	}
	return out
}

var shape = core.Shape{
	Message: `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null`,
	Choice: [2]string{
		`,"stop_reason":null,"token_ids":null,"routed_experts":null`,
		`,"stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null`,
	},
	Body: [2]string{
		`,"service_tier":null,"system_fingerprint":"sim","prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"ec_transfer_params":null,"metrics":null`,
		`,"service_tier":null,"system_fingerprint":"sim","ec_transfer_params":null,"metrics":null`,
	},
	Usage:   [2]string{`,"completion_tokens_details":null`, `,"completion_tokens_details":null`},
	Details: [2]string{`,"multimodal_tokens":null`, `,"created_cache_tokens":null,"multimodal_tokens":null`},
	ChatIDs: true,

	ChunkChoice: [2]string{`,"token_ids":null`, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null`},
	LastChoice:  [2]string{`,"stop_reason":null,"token_ids":null`, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null`},
	RoleChunk:   `,"prompt_token_ids":null,"prompt_text":null`,
	LastChunk:   [2]string{`,"system_fingerprint":"sim"`, `,"system_fingerprint":"sim"`},
	UsageChunk:  `,"system_fingerprint":"sim"`,
	RolesFirst:  true,

	Begins: true, BreaksOff: true, Completes: true, Created: true,
}
