package enginesim

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// noRoom is the answer of SGLang's disaggregated workers to a request without a room
// (docs/engines.md#sglang-triple).
const noRoom = "Invalid request: Disaggregated request received without bootstrap room id"

// route has the routing fields of a request, after headers have replaced them.
type route struct {
	host, port, room []byte
	rank             int // the rank of this worker, or -1
	prefillRank      int // disagg_prefill_dp_rank, or -1
}

// SGLang returns the engine.
func sglangKind() kind {
	return kind{defaults: sglangDefaults, check: sglangCheck, make: func(s *Sim, cfg Config) *engine { return newSGLang(s, cfg).table() }}
}

func sglangDefaults(c *Config) {
	if c.prefills() {
		orDefault(&c.BootstrapListen, "127.0.0.1:0")
	}
}

func sglangCheck(c Config, bad func(format string, a ...any)) {
	if c.SideChannelListen != "" {
		bad("side-channel-listen: sglang has no side channel")
	}
	if c.ScaleOut || c.TrustMMKwargs || c.ResponseStore {
		bad("scale-out, trust-request-mm-kwargs, response-store: sglang has none of them")
	}
	if c.KVLoadFailure == LoadRecompute || c.KVLoadFailure == LoadUnseen || c.NullOnStop {
		bad("kv-load-failure, null-on-stop: sglang has none of them")
	}
}

// sglang is one worker.
type sglang struct {
	s          *Sim
	cfg        Config
	rooms      *rooms // nil, except at a prefill worker
	links      *links
	localAddrs []netip.Addr
}

func newSGLang(s *Sim, cfg Config) *sglang {
	e := &sglang{s: s, cfg: cfg, links: newLinks(s, cfg)}
	if cfg.prefills() {
		e.rooms, e.localAddrs = newRooms(cfg.KVGroup, s.violate), interfaceAddrs()
	}
	return e
}

// table is what the core is given.
func (e *sglang) table() *engine {
	return &engine{
		shape: &sglangShape, owner: "sglang", nodes: true, clearsFirst: true, noResponses: true,
		pages: e.pages, healthy: e.generatesInTime, rendezvous: bootstrap{e}.handler(),
		keyed: func(path string) bool {
			return !slices.ContainsFunc(open(), func(p string) bool { return strings.HasPrefix(path, p) })
		},
		serves: e.serves, space: e.space, plan: e.plan, errorBody: sglangError, appendEvents: appendEventBatch,
		state: e.state, close: e.links.client.CloseIdleConnections,
	}
}

// open are the paths below which the engine requires no key (decide_request_auth of 0.5.23).
func open() []string { return []string{"/health", "/ready", "/metrics"} }

func (e *sglang) state(st *State) {
	st.DecodeWaiting = int(e.links.waiting.Load())
	if e.rooms != nil {
		st.PrefillAlone, st.PrefillMet, st.DecodeAskers = e.rooms.counts()
	}
}

// bootstrapPort is the worker's own bootstrap port, or the default, 8998, if it has none.
func (e *sglang) bootstrapPort() int {
	if e.s.BootstrapAddr() == "" {
		return 8998
	}
	return portOf(e.s.BootstrapAddr())
}

// The page of health asks for one token, and looks each second whether the scheduler has sent
// any since (docs/engines.md#health).
const (
	healthLooks = time.Second
	healthGives = 20 * time.Second
)

// generatesInTime waits as the page of health does. The token that it asks for comes as soon
// as no prompt is being computed; of other requests, whenever one has been.
func (e *sglang) generatesInTime(ctx context.Context) bool {
	asked := time.Now()
	for time.Since(asked) < healthGives {
		if pause(ctx, healthLooks) != nil {
			panic(http.ErrAbortHandler)
		}
		if slices.ContainsFunc(e.s.ranks, func(r *rank) bool { return r.heard(asked) }) {
			return true
		}
	}
	return false
}

// serves understands "base:adapter" and "default".
func (e *sglang) serves(model string) bool {
	base, adapter, ok := strings.Cut(model, ":")
	if !ok || !slices.Contains(e.cfg.Adapters, strings.TrimSpace(adapter)) {
		return model == "default"
	}
	base = strings.TrimSpace(base)
	return base == "" || slices.Contains(e.cfg.Models, base) || slices.Contains(e.cfg.Adapters, base)
}

// space reads the members of a request that keep blocks apart; of a batch they may be lists.
func (e *sglang) space(q *genRequest, i int) (ns namespace, err error) {
	of := func(name string, v []byte) string {
		if err != nil || isNull(v) {
			return ""
		}
		text, ok := unquote(v)
		if ok {
			return text
		}
		if v[0] != '[' {
			err = badRequest("%s: expected a string", name)
			return ""
		}
		var all []string
		_ = eachElem(v, func(e []byte) error { // null: none
			text, _ := unquote(e)
			all = append(all, text)
			return nil
		})
		if len(all) != len(q.prompts) {
			err = badRequest("The length of %s should be equal to the batch size.", name)
			return ""
		}
		return all[i]
	}
	ns.salt, ns.seen = of("cache_salt", q.cacheSalt), q.seen
	ns.extra = of("extra_key", q.extraKey)
	if ns.adapter = e.adapterInModel(q); ns.adapter == "" {
		ns.adapter = of("lora_path", q.loraPath)
	}
	switch {
	case err != nil:
		return ns, err
	case ns.adapter != "" && len(e.cfg.Adapters) == 0:
		return ns, badRequest("LoRA adapter '%s' was requested, but LoRA is not enabled.", ns.adapter)
	case ns.adapter != "" && !slices.Contains(e.cfg.Adapters, ns.adapter):
		return ns, badRequest("Got LoRA adapter that has never been loaded: %s", ns.adapter)
	}
	return ns, nil
}

// adapterInModel returns the adapter in "base:adapter", or ""
// (OpenAIServingBase._parse_model_parameter).
func (e *sglang) adapterInModel(q *genRequest) string {
	if q.api == apiGenerate || slices.Contains(e.cfg.Models, q.model) {
		return ""
	}
	if adapter, ok := strings.CutPrefix(q.model, e.cfg.Models[0]+":"); ok {
		return strings.TrimSpace(adapter)
	}
	_, adapter, _ := strings.Cut(q.model, ":")
	return strings.TrimSpace(adapter)
}

// readRoute merges body fields and headers. X-Data-Parallel-Rank replaces the body's rank
// (docs/engines.md#sglang-rank-header). The x-override-* headers replace that, too, if
// they are switched on, but only on chat and generate (docs/engines.md#sglang-override).
func (e *sglang) readRoute(q *genRequest, h http.Header) (route, error) {
	if q.api == apiMessage { // the chat that is made of it has none of these
		return route{rank: -1, prefillRank: -1}, nil
	}
	rt := route{host: q.bootstrapHost, port: q.bootstrapPort, room: q.bootstrapRoom}
	own, prefill := q.routedRank, q.prefillRank
	if v := h.Get("X-Data-Parallel-Rank"); v != "" {
		own = []byte(v)
	}
	if e.cfg.HeaderOverrides && q.api != apiCompletion && q.api != apiResponse {
		for name, to := range map[string]*[]byte{
			"X-Override-Bootstrap-Port":         &rt.port,
			"X-Override-Bootstrap-Room":         &rt.room,
			"X-Override-Routed-Dp-Rank":         &own,
			"X-Override-Disagg-Prefill-Dp-Rank": &prefill,
		} {
			if v := h.Get(name); v != "" {
				if _, err := strconv.ParseInt(v, 10, 64); err != nil {
					return rt, badRequest("header %s %.40q: expected an integer", strings.ToLower(name), v)
				}
				*to = []byte(v)
			}
		}
		if v := h.Get("X-Override-Bootstrap-Host"); v != "" {
			rt.host = strconv.AppendQuote(nil, v)
		}
	}
	var err error
	if rt.rank, err = readRank("routed_dp_rank", own, e.cfg.DPSize); err != nil {
		return rt, err
	}
	rt.prefillRank, err = readRank("disagg_prefill_dp_rank", prefill, math.MaxInt32)
	return rt, err
}

func readRank(name string, v []byte, size int) (int, error) {
	if isNull(v) {
		return -1, nil
	}
	n, err := strconv.Atoi(string(v))
	if err != nil || n < 0 || n >= size {
		return 0, badRequest("%s %.40q: expected a data-parallel rank from 0 to %d", name, v, size-1)
	}
	return n, nil
}

// plan checks the request's fields and returns one item for each choice of each prompt. A
// single room number serves the items as room, room+1, …. A list has a room for each
// prompt and is repeated for the choices.
func (e *sglang) plan(c *call, h http.Header) ([]*item, job, error) {
	s, q, seq := e.s, c.q, c.seq
	rt, err := e.readRoute(q, h)
	if err != nil {
		return nil, nil, err
	}
	if c.asked >= 0 {
		rt.rank = c.asked
	}
	for _, f := range q.repeated {
		s.violate(Violation{Kind: "repeated_field", Seq: seq, Detail: f + " is in the body more than once"})
	}
	if q.api == apiResponse && q.maxTokens >= 0 {
		const headroom = 2 // ResponsesRequest.to_sampling_params
		if q.maxTokens -= headroom; q.maxTokens < 0 {
			return nil, nil, badRequest("max_new_tokens must be at least 0, got %d.", q.maxTokens)
		}
	}
	if q.maxTokens == 0 && q.api != apiGenerate && q.api != apiResponse {
		return nil, nil, badRequest("max_tokens: expected at least 1")
	}
	items, err := c.newItems()
	if err != nil {
		return nil, nil, err
	}
	pd := e.cfg.disaggregated()
	if pd && e.cfg.AcceptsAggregated && e.cfg.decodes() && isNull(rt.room) {
		pd = false
	}
	if pd {
		if err := e.planMeetings(q, rt, items, seq); err != nil {
			return nil, nil, err
		}
		c.leg = map[bool]leg{true: legPrefill, false: legDecode}[e.cfg.prefills()]
	}
	for _, it := range items {
		e.placeItem(c, it, rt)
		if c.leg == legPrefill {
			if err := e.checkFollow(it, rt, seq); err != nil {
				return nil, nil, err
			}
		}
	}
	return items, &sglangJob{e: e, c: c, prefillRank: rt.prefillRank, halves: make([]*prefillHalf, len(items))}, nil
}

func sglangError(of api, e *apiError, stream bool) any {
	switch {
	case of == apiResponse:
		return map[string]any{"error": map[string]any{"message": e.msg, "type": "invalid_request_error", "param": nil, "code": e.status}}
	case stream:
		return map[string]errorBody{"error": e.body()}
	}
	return e.body()
}

// placeItem picks the rank: the one that the request names; at prefill else the room's
// (follow_bootstrap_room, docs/engines.md#sglang-rank); else the next.
func (e *sglang) placeItem(c *call, it *item, rt route) {
	rank := rt.rank
	if rank < 0 && it.meet != nil && e.cfg.prefills() {
		rank = int(it.meet.room % int64(len(e.s.ranks)))
	}
	c.place(it, rank)
}

// checkFollow refuses a prefill rank that decode cannot know: SGLang's
// "follow_bootstrap_room conflict" (docs/engines.md#sglang-rank).
func (e *sglang) checkFollow(it *item, rt route, seq uint64) error {
	byRoom := int(it.meet.room % int64(len(e.s.ranks)))
	if it.rank.id == byRoom || rt.prefillRank == it.rank.id {
		return nil
	}
	return e.mispaired("rank_conflict", seq, it.meet.room, fmt.Sprintf(
		"follow_bootstrap_room conflict: room %d is rank %d's, the request was routed to rank %d", it.meet.room, byRoom, it.rank.id))
}

func (e *sglang) planMeetings(q *genRequest, rt route, items []*item, seq uint64) error {
	if isNull(rt.room) {
		return badRequest(noRoom)
	}
	rooms, err := perItem("bootstrap_room", rt.room, len(q.prompts), q.n)
	if err != nil {
		return err
	}
	hosts, err := perItem("bootstrap_host", rt.host, len(q.prompts), q.n)
	if err != nil {
		return err
	}
	ports, err := perItem("bootstrap_port", rt.port, len(q.prompts), q.n)
	if err != nil {
		return err
	}
	for i, it := range items {
		room, err := strconv.ParseInt(string(rooms[i]), 10, 64)
		if err != nil || room < 0 {
			return badRequest("bootstrap_room %.40s: expected an integer from 0 to 2^63-1", rooms[i])
		}
		if rt.room[0] != '[' {
			if room > math.MaxInt64-int64(len(items)-1) {
				return badRequest("bootstrap_room %d: %d parallel prompts go past 2^63-1", room, len(items))
			}
			room += int64(i)
		}
		addr, err := e.readAddr(hosts[i], ports[i], room, seq)
		if err != nil {
			return err
		}
		it.meet = &meeting{room: room, addr: addr}
	}
	return nil
}

// perItem returns the field's value for each of prompts × n items.
func perItem(name string, v []byte, prompts, n int) ([][]byte, error) {
	out := make([][]byte, 0, prompts*n)
	if len(v) == 0 || v[0] != '[' {
		for range prompts * n {
			out = append(out, v)
		}
		return out, nil
	}
	count := 0
	_ = eachElem(v, func(e []byte) error { // the body is valid JSON
		count++
		for range n {
			out = append(out, e)
		}
		return nil
	})
	if count != prompts {
		return nil, badRequest("%s: a list of %d for %d prompts", name, count, prompts)
	}
	return out, nil
}

// readAddr makes the address that decode asks from the bootstrap host and port. If the
// port is missing, it is the worker's own, as in SGLang's scheduler.
func (e *sglang) readAddr(host, port []byte, room int64, seq uint64) (string, error) {
	p := e.bootstrapPort()
	if !isNull(port) {
		n, err := strconv.Atoi(string(port))
		if err != nil || n < 1 || n > 65535 {
			return "", badRequest("bootstrap_port %.40s: expected a port from 1 to 65535", port)
		}
		p = n
	}
	h, ok := unquote(host)
	if !ok || h == "" {
		return "", e.mispaired("no_host", seq, room, "Decode handshake failed: the request names a bootstrap room but no bootstrap host")
	}
	if strings.Contains(h, ":") && (h[0] != '[' || h[len(h)-1] != ']') {
		return "", e.mispaired("bad_host", seq, room, fmt.Sprintf(
			"Decode handshake failed: bootstrap host %q is IPv6 without brackets: host:port cannot be told apart", h))
	}
	bare := strings.Trim(h, "[]")
	if e.cfg.prefills() && (p != e.bootstrapPort() || !e.ownHost(bare)) {
		return "", e.mispaired("wrong_worker", seq, room, fmt.Sprintf(
			"Prefill transfer failed: the request names bootstrap server %s:%d, this worker's is %s", h, p, e.s.BootstrapAddr()))
	}
	return net.JoinHostPort(bare, strconv.Itoa(p)), nil
}

// ownHost reports whether a bootstrap host may be this process.
func (e *sglang) ownHost(host string) bool {
	own, _, _ := net.SplitHostPort(e.s.BootstrapAddr())
	if host == own {
		return true
	}
	a, err := netip.ParseAddr(own)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return a.IsLoopback() || a.IsUnspecified()
	}
	b, err := netip.ParseAddr(host)
	return err == nil && (a == b || a.IsUnspecified() && slices.Contains(e.localAddrs, b.Unmap()))
}

// mispaired records a violation and returns the error that the client gets.
func (e *sglang) mispaired(kind string, seq uint64, room int64, msg string) *apiError {
	e.s.violate(Violation{Kind: kind, Seq: seq, Room: room, Detail: msg})
	return &apiError{status: http.StatusInternalServerError, reason: "pairing", msg: msg}
}

// interfaceAddrs are the addresses of this machine.
func interfaceAddrs() []netip.Addr {
	var out []netip.Addr
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out
}

// weights is the member in which SGLang says which weights gave the answer.
const weights = `,"metadata":{"weight_version":"default","weight_versions":[{"version":"default","start":0,"end":0}]}`

var sglangShape = shape{
	message: `,"reasoning_content":null`,
	delta:   `"reasoning_content":null,`,
	choice:  [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	body:    [2]string{weights, weights},
	usage:   [2]string{`,"reasoning_tokens":0,"completion_tokens_details":null`, `,"reasoning_tokens":0,"completion_tokens_details":null`},

	chunkChoice: [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	lastChoice:  [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	chunk:       [2]string{"", `,"usage":null`},
	lastChunk:   [2]string{"", `,"usage":null`},
	streamUsage: [2]string{`,"reasoning_tokens":0,"completion_tokens_details":null`, `,"reasoning_tokens":0`},
	ends:        [2]bool{true, false},
}
