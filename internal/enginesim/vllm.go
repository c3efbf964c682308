package enginesim

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// vllm is the protocol of vLLM. With NixlConnector in pull mode prefill runs first, its
// answer has the hand-off, and decode follows (docs/engines.md#vllm-hold,
// docs/engines.md#vllm-handoff).
type vllm struct {
	s        *Sim
	mooncake bool // with MooncakeConnector instead; see mooncake.go
}

func newVLLM(s *Sim) protocol { return vllm{s: s, mooncake: s.cfg.Engine == worker.VLLMMooncake} }

// nixlParams has the members of kv_transfer_params that the engine reads.
type nixlParams struct {
	remoteDecode, remotePrefill bool
	transfer                    *transfer // only with remotePrefill
	transferID                  string    // of MooncakeConnector, only with remoteDecode
}

func (vllm) shape() *shape { return &vllmShape }

func (v vllm) plan(c *call, h http.Header) ([]*item, error) {
	for _, f := range c.q.twice {
		v.s.violate(Violation{Kind: "repeated_field", Seq: c.rec.req.Seq, Detail: f + " is in the body more than once"})
	}
	if err := v.known(c.q); err != nil {
		return nil, err
	}
	c.q.rid = externalID(c.q, h)
	p, err := v.readParams(c)
	if err != nil {
		return nil, err
	}
	c.transfer, c.transferID = p.transfer, p.transferID
	items, err := v.planItems(c, p, h)
	if err != nil {
		// "notify_kv_transfer_request_rejected": if the serving layer refuses a request,
		// the KV at the prefill worker is freed (docs/engines.md#vllm-once).
		v.s.dropTransfer(c.transfer)
		return nil, err
	}
	switch {
	case p.remoteDecode:
		c.leg = legPrefill
	case p.remotePrefill:
		c.leg = legDecode
	case v.s.decodes():
		v.s.pulls.local.Add(1)
	}
	return items, nil
}

// externalID is the id of the answer. X-Request-Id sets it
// (docs/engines.md#vllm-request-id).
func externalID(q *genRequest, h http.Header) string {
	id := h.Get("X-Request-Id")
	if id == "" {
		id = drawnID()
	}
	switch q.api {
	case apiResponse: // its own member alone sets it
		return q.rid
	case apiTokens:
		return "generate-tokens-" + id
	case apiChat, apiMessage:
		return "chatcmpl-" + id
	default:
		return "cmpl-" + id
	}
}

// known refuses a model that the worker does not serve, unlike SGLang, and parameters for
// reading pictures if they are not allowed (validate_request_mm_kwargs).
func (v vllm) known(q *genRequest) error {
	if v.s.names(q) {
		if q.mmKwargs != nil && !v.s.cfg.TrustMMKwargs {
			return badRequest("Per-request mm_processor_kwargs are disabled by default.")
		}
		return nil
	}
	return &apiError{status: http.StatusNotFound, reason: "model", msg: fmt.Sprintf("The model `%s` does not exist.", q.model)}
}

func (v vllm) planItems(c *call, p nixlParams, h http.Header) ([]*item, error) {
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
	items, err := v.s.newItems(q)
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		v.s.placeItem(it, route{rank: rank})
	}
	note := func(kind, detail string) {
		v.s.violate(Violation{Kind: kind, Seq: c.rec.req.Seq, Detail: detail})
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
func (v vllm) readParams(c *call) (nixlParams, error) {
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
	case p.remoteDecode && v.s.cfg.Role != worker.Prefill, p.remotePrefill && v.s.cfg.Role != worker.Decode:
		return p, c.broken("wrong_role", http.StatusInternalServerError, "kv_transfer_params ask a %s worker for the other half", v.s.cfg.Role)
	case v.mooncake && (p.remoteDecode || p.remotePrefill):
		err = v.readMooncake(&p, f)
	case p.remotePrefill:
		p.transfer, err = v.readTransfer(f)
	}
	return p, err
}

// readTransfer reads where the KV is. If a field is missing, the engine waits for KV for
// ever, or an assertion ends it; here the request fails.
func (v vllm) readTransfer(f handoffFields) (*transfer, error) {
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

func (v vllm) prepare(ctx context.Context, c *call, it *item) error {
	switch c.leg {
	case legPrefill:
		if err := c.admit(ctx, it, c.output()-1); err != nil { // the last token's KV is not computed
			return err
		}
		return c.computeNow(ctx, it, true)
	case legDecode:
		return v.s.receive(ctx, c, it, func(err error) error {
			if v.s.cfg.KVLoadFailure == LoadRecompute {
				v.s.pulls.recomputed.Add(1)
				return c.computeNow(ctx, it, false)
			}
			return &apiError{status: http.StatusInternalServerError, reason: "kv_load", msg: "KV load failure: " + err.Error()}
		})
	default:
		return v.s.prepareAggregated(ctx, c, it)
	}
}

func (v vllm) output(c *call) (int, string) { return c.limit() }

// handOver writes the hand-off into a prefill's answer and holds the KV, if the prefill
// ended by length or by itself (docs/engines.md#vllm-stop-holds). For other reasons the
// hand-off is null.
func (v vllm) handOver(c *call, reason string) {
	text := "null"
	ended := reason == "length" || reason == "stop" && !v.s.cfg.NullOnStop && !v.mooncake
	if c.leg == legPrefill && ended && c.fault.Mode != FaultNoHandoff {
		for _, it := range c.items {
			if v.mooncake {
				v.s.keep(c, it, c.transferID, "{}")
				continue
			}
			id := fmt.Sprintf("%s-%08x", c.q.rid, rand.Uint32())
			if c.q.api == apiCompletion {
				id = fmt.Sprintf("%s-%d-%08x", c.q.rid, it.index, rand.Uint32())
			}
			text = v.handoff(it, id)
			v.s.keep(c, it, id, text)
		}
	}
	c.bodyTail = append([]byte{','}, c.fault.spoil("kv_transfer_params", text)...)
}

// handoff is what 0.32 answers, with one more field, unless PlainHandoff, that stands for
// those of later versions. A router changes that field if it copies the hand-off by names,
// reads numbers into floats, or writes numbers anew.
func (v vllm) handoff(it *item, id string) string {
	host, port, _ := net.SplitHostPort(v.s.sideAddrs[it.rank.id])
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	page := v.s.page()
	ids := it.rank.blockIDs((len(it.prompt)+page-1)/page, v.s.cfg.CapacityBlocks)
	engine, _ := json.Marshal(v.s.engineID(it.rank.id))
	request, _ := json.Marshal(id)
	later := ""
	if !v.s.cfg.PlainHandoff {
		later = fmt.Sprintf(`,"sim_later_field":{"z": %d, "a": 1.50}`, uint64(math.MaxInt64)-uint64(rand.Uint32()))
	}
	return fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[%s]],"remote_engine_id":%s,`+
		`"remote_request_id":%s,"remote_host":"%s","remote_port":%s,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":%d,`+
		`"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":%d%s}`,
		strings.Join(ids, ","), engine, request, host, port, len(it.prompt), it.cached, later)
}

// blockIDs returns n ids of blocks, from 1 to capacity, that follow the ids of the last
// call. They are only compared, not used.
func (r *rank) blockIDs(n, capacity int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, n)
	for i := range out {
		out[i] = strconv.Itoa(r.nextBlockID%capacity + 1)
		r.nextBlockID++
	}
	return out
}
