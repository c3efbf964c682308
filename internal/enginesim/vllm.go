package enginesim

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
)

// vllmKind returns the engine with NixlConnector in pull mode: prefill runs first, its
// answer has the hand-off, and decode follows (docs/engines.md#vllm-hold,
// docs/engines.md#vllm-handoff).
func vllmKind() kind {
	return kind{
		defaults: vllmDefaults, check: vllmCheck,
		make: func(s *Sim, cfg Config) *engine {
			return newVLLM(s, cfg, false, manner{perRank: true, twice: true, ownOnly: true}).table()
		},
	}
}

func vllmDefaults(c *Config) {
	if c.prefills() {
		orDefault(&c.SideChannelListen, "127.0.0.1:0")
	}
}

func vllmCheck(c Config, bad func(format string, a ...any)) {
	if c.BootstrapListen != "" {
		bad("bootstrap-listen: vllm has a bootstrap server with MooncakeConnector alone")
	}
	vllmLacks(c, bad)
}

// vllmLacks reports settings that the engine has with neither connector.
func vllmLacks(c Config, bad func(format string, a ...any)) {
	if c.SideChannelListen != "" && !c.prefills() {
		bad("side-channel-listen: only a prefill worker has a side channel")
	}
	if c.HandshakeFirst || c.HeaderOverrides {
		bad("handshake-first, header-overrides: vllm has none of them")
	}
}

// vllm is one worker.
type vllm struct {
	s        *Sim
	cfg      Config
	mooncake bool // with MooncakeConnector; see mooncake.go
	channel  *channel
	asleep   atomic.Int32    // the level at which it sleeps; 0: awake
	reads    atomic.Uint64   // of /metrics
	blocks   []atomic.Uint64 // block ids that each rank has named
}

func newVLLM(s *Sim, cfg Config, mooncake bool, m manner) *vllm {
	return &vllm{s: s, cfg: cfg, mooncake: mooncake, channel: newChannel(s, cfg, m), blocks: make([]atomic.Uint64, cfg.DPSize)}
}

// table is what the core is given.
func (v *vllm) table() *engine {
	e := &engine{
		shape: &vllmShape, owner: "vllm", reserved: 1, growing: true, cachedCounts: true,
		pages: v.pages, model: v.model, bind: v.channel.bind, close: v.channel.close,
		keyed: func(path string) bool {
			return slices.ContainsFunc(guarded(), func(p string) bool { return strings.HasPrefix(path, p) })
		},
		space: v.space, plan: v.plan, errorBody: vllmErrorBody, appendEvents: v.appendEvents,
		state: v.state, reset: v.channel.reset,
	}
	if v.mooncake {
		e.rendezvous, e.identity = v.bootstrapHandler(), v.identity
	}
	return e
}

// guarded are the paths below which the engine requires its key (GUARDED_PREFIX of 0.32).
func guarded() []string { return []string{"/v1", "/v2", "/inference", "/cohere"} }

func (v *vllm) state(st *State) {
	v.channel.state(st)
	st.Reads = v.reads.Load()
}

// space reads the namespace of a request.
func (v *vllm) space(q *genRequest, _ int) (namespace, error) {
	ns, err := v.cfg.plainSpace(q)
	if err == nil && !isNull(q.cacheSalt) && (ns.salt == "" || len(ns.salt) > 128) {
		err = badRequest("Parameter 'cache_salt' must be a non-empty string of at most 128 characters.")
	}
	return ns, err
}

// nixlParams has the members of kv_transfer_params that the engine reads.
type nixlParams struct {
	remoteDecode, remotePrefill bool
	transfer                    *transfer // only with remotePrefill
	transferID                  string    // of MooncakeConnector, only with remoteDecode
}

func (v *vllm) plan(c *call, h http.Header) ([]*item, job, error) {
	for _, f := range c.q.twice {
		v.s.violate(Violation{Kind: "repeated_field", Seq: c.seq, Detail: f + " is in the body more than once"})
	}
	if err := v.known(c.q); err != nil {
		return nil, nil, err
	}
	c.q.rid = externalID(c.q, h)
	p, err := v.readParams(c)
	if err != nil {
		return nil, nil, err
	}
	if p.transfer != nil {
		c.handoff = p.transfer.id
	}
	items, err := v.planItems(c, p, h)
	if err != nil {
		// "notify_kv_transfer_request_rejected": if the serving layer refuses a request,
		// the KV at the prefill worker is freed (docs/engines.md#vllm-once).
		v.channel.drop(p.transfer)
		return nil, nil, err
	}
	switch {
	case p.remoteDecode:
		c.leg = legPrefill
	case p.remotePrefill:
		c.leg = legDecode
	case v.cfg.decodes():
		v.channel.local()
	}
	return items, vllmJob{v: v, c: c, transfer: p.transfer, transferID: p.transferID}, nil
}

// known refuses a model that the worker does not serve, unlike SGLang, and parameters for
// reading pictures if they are not allowed (validate_request_mm_kwargs).
func (v *vllm) known(q *genRequest) error {
	if v.s.names(q.model) {
		if q.mmKwargs != nil && !v.cfg.TrustMMKwargs {
			return badRequest("Per-request mm_processor_kwargs are disabled by default.")
		}
		return nil
	}
	return &apiError{status: http.StatusNotFound, reason: "model", msg: fmt.Sprintf("The model `%s` does not exist.", q.model)}
}

func (v *vllm) planItems(c *call, p nixlParams, h http.Header) ([]*item, error) {
	q := c.q
	if err := v.fit(q); err != nil {
		return nil, err
	}
	if err := checkLimits(q); err != nil {
		return nil, err
	}
	rank := c.asked
	if n, err := strconv.Atoi(h.Get("X-Data-Parallel-Rank")); err == nil { // else ignored: docs/engines.md#vllm-rank
		if n < 0 || n >= len(v.s.ranks) {
			return nil, badRequest("data_parallel_rank %d is out of range [0, %d).", n, len(v.s.ranks))
		}
		rank = n
	}
	items, err := c.newItems()
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		c.place(it, rank)
	}
	note := func(kind, detail string) {
		v.s.violate(Violation{Kind: kind, Seq: c.seq, Detail: detail})
	}
	switch {
	case p.transfer != nil && len(items) > 1:
		return nil, c.broken("parallel_handoff", http.StatusInternalServerError, "one hand-off for %d parallel prompts", len(items))
	case p.remoteDecode:
		if len(items) > 1 {
			note("parallel_handoff", fmt.Sprintf("%d parallel prompts are held, and one is told of", len(items)))
		}
		if q.maxTokens != 1 {
			note("prefill_long", "prefill is to make one token, max_tokens says otherwise")
		}
		if q.stream {
			note("prefill_stream", "a stream does not bring the hand-off")
		}
	}
	return items, nil
}

// checkLimits refuses limits that vLLM's request validation refuses. A router that makes
// a prefill request of a client's body may well produce such limits.
func checkLimits(q *genRequest) error {
	if q.maxTokens == 0 {
		return badRequest("max_tokens must be at least 1, got 0.")
	}
	if q.streamOptions && !q.stream {
		return badRequest("Stream options can only be defined when `stream=True`.")
	}
	if !isNull(q.minTokens) {
		n, err := strconv.Atoi(string(q.minTokens))
		if err != nil || n < 0 {
			return badRequest("min_tokens %.20s: expected a number of at least 0", q.minTokens)
		}
		if q.maxTokens > 0 && n > q.maxTokens {
			return badRequest("min_tokens must be less than or equal to max_tokens=%d, got %d.", q.maxTokens, n)
		}
	}
	return nil
}

// readParams reads kv_transfer_params and refuses a request that this worker cannot
// serve.
func (v *vllm) readParams(c *call) (nixlParams, error) {
	var p nixlParams
	raw := c.q.transfer
	if isNull(raw) {
		return p, nil
	}
	f, err := readHandoff(c, "kv_transfer_params", raw)
	if err != nil {
		return p, err
	}
	if p.remoteDecode, err = f.flag("do_remote_decode"); err != nil {
		return p, err
	}
	if p.remotePrefill, err = f.flag("do_remote_prefill"); err != nil {
		return p, err
	}
	switch {
	case p.remoteDecode && p.remotePrefill:
		return p, c.broken("bad_handoff", http.StatusInternalServerError, "kv_transfer_params: do_remote_decode and do_remote_prefill at once")
	case p.remoteDecode && !v.cfg.prefills(), p.remotePrefill && !v.cfg.decodes():
		return p, c.broken("wrong_role", http.StatusInternalServerError, "kv_transfer_params ask a %s worker for the other half", v.cfg.Role)
	case v.mooncake && (p.remoteDecode || p.remotePrefill):
		err = v.readMooncake(&p, f)
	case p.remotePrefill:
		p.transfer, err = v.readTransfer(f)
	}
	return p, err
}

// readTransfer reads where the KV is. If a field is missing, the engine waits for KV for
// ever, or an assertion ends it; here the request fails.
func (v *vllm) readTransfer(f handoffFields) (*transfer, error) {
	t := &transfer{by: f.c.name(), fields: string(f.raw)}
	var host string
	for name, to := range map[string]*string{"remote_engine_id": &t.engine, "remote_request_id": &t.id, "remote_host": &host} {
		var err error
		if *to, err = f.text(name); err != nil {
			return nil, err
		}
	}
	port, err := f.number("remote_port", 1, 65535)
	if err != nil {
		return nil, err
	}
	t.addr = net.JoinHostPort(host, strconv.FormatInt(port, 10))
	blocks, err := f.value("remote_block_ids", "[")
	if err != nil {
		return nil, err
	}
	n := 0
	err = eachElem(blocks, func(group []byte) error {
		ids, err := tokenIDs(group)
		n += len(ids)
		return err
	})
	if err != nil {
		return nil, f.c.broken("bad_handoff", http.StatusBadRequest, "remote_block_ids: expected a list of lists of block ids: %v", err)
	}
	if n == 0 {
		return nil, f.c.broken("bad_handoff", http.StatusInternalServerError, "remote_block_ids: no block in it")
	}
	return t, nil
}

// handoff is what 0.32 answers, with one more field, unless PlainHandoff, that stands for
// those of later versions. A router changes that field if it copies the hand-off by names,
// reads numbers into floats, or writes numbers anew.
func (v *vllm) handoff(it *item, id string) string {
	host, port, _ := net.SplitHostPort(v.s.SideAddrs()[it.rank.id])
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	page := v.s.page()
	ids := v.blockIDs(it.rank.id, (len(it.prompt)+page-1)/page)
	engine, _ := json.Marshal(v.channel.engineID(it.rank.id))
	request, _ := json.Marshal(id)
	later := ""
	if !v.cfg.PlainHandoff {
		later = fmt.Sprintf(`,"sim_later_field":{"z": %d, "a": 1.50}`, uint64(math.MaxInt64)-uint64(rand.Uint32()))
	}
	return fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[%s]],"remote_engine_id":%s,`+
		`"remote_request_id":%s,"remote_host":"%s","remote_port":%s,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":%d,`+
		`"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":%d%s}`,
		strings.Join(ids, ","), engine, request, host, port, len(it.prompt), it.cached, later)
}

// blockIDs returns n ids of a rank's blocks, from 1 to its capacity, that follow the ids of
// the last call. They are only compared, not used.
func (v *vllm) blockIDs(rank, n int) []string {
	first := int(v.blocks[rank].Add(uint64(n))) - n //nolint:gosec // a count
	out := make([]string, n)
	for i := range out {
		out[i] = strconv.Itoa((first+i)%v.cfg.CapacityBlocks + 1)
	}
	return out
}

var vllmShape = shape{
	message: `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null`,
	choice: [2]string{
		`,"stop_reason":null,"token_ids":null,"routed_experts":null`,
		`,"stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null`,
	},
	body: [2]string{
		`,"service_tier":null,"system_fingerprint":"sim","prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"ec_transfer_params":null,"metrics":null`,
		`,"service_tier":null,"system_fingerprint":"sim","ec_transfer_params":null,"metrics":null`,
	},
	usage:   [2]string{`,"completion_tokens_details":null`, `,"completion_tokens_details":null`},
	details: [2]string{`,"multimodal_tokens":null`, `,"created_cache_tokens":null,"multimodal_tokens":null`},
	chatIDs: true,

	chunkChoice: [2]string{`,"token_ids":null`, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null`},
	lastChoice:  [2]string{`,"stop_reason":null,"token_ids":null`, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null`},
	roleChunk:   `,"prompt_token_ids":null,"prompt_text":null`,
	lastChunk:   [2]string{`,"system_fingerprint":"sim"`, `,"system_fingerprint":"sim"`},
	usageChunk:  `,"system_fingerprint":"sim"`,
	rolesFirst:  true,

	begins: true, breaksOff: true, completes: true, created: true,
}
