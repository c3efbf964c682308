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
)

// This file and rooms.go, bootstrap.go and link.go are the SGLang protocol: the fields of
// a request, and how its halves meet. The functions that differ between engines are plan,
// runPrefill and awaitKV.

// meeting is the room and the address at which one prompt of a request meets its other
// half.
type meeting struct {
	room int64
	addr string // "host:port" of the prefill's bootstrap server
	rank int    // prefill rank that decode expects, or -1: the room determines it
}

// noRoom is the answer of SGLang's disaggregated workers to a request without a room
// (docs/engines.md#sglang-triple).
const noRoom = "Invalid request: Disaggregated request received without bootstrap room id"

// route has the routing fields of a request, after headers have replaced them.
type route struct {
	host, port, room []byte
	rank             int // the rank of this worker, or -1
	prefillRank      int // disagg_prefill_dp_rank, or -1
}

// readRoute merges body fields and headers. X-Data-Parallel-Rank replaces the body's rank
// (docs/engines.md#sglang-rank-header). The x-override-* headers replace that, too, if
// they are switched on, but only on chat and generate (docs/engines.md#sglang-override).
func (s *Sim) readRoute(q *genRequest, h http.Header) (route, error) {
	if q.api == apiMessage { // the chat that is made of it has none of these
		return route{rank: -1, prefillRank: -1}, nil
	}
	rt := route{host: q.bootstrapHost, port: q.bootstrapPort, room: q.bootstrapRoom}
	own, prefill := q.routedRank, q.prefillRank
	if v := h.Get("X-Data-Parallel-Rank"); v != "" {
		own = []byte(v)
	}
	if s.cfg.HeaderOverrides && q.api != apiCompletion && q.api != apiResponse {
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
	if rt.rank, err = readRank("routed_dp_rank", own, s.cfg.DPSize); err != nil {
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

// sglang is the protocol of SGLang, with a rendezvous.
type sglang struct{ s *Sim }

// plan checks the request's fields and returns one item for each choice of each prompt. A
// single room number serves the items as room, room+1, …. A list has a room for each
// prompt and is repeated for the choices.
func (e sglang) plan(c *call, h http.Header) ([]*item, error) {
	s, q, seq := e.s, c.q, c.rec.req.Seq
	rt, err := s.readRoute(q, h)
	if err != nil {
		return nil, err
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
			return nil, badRequest("max_new_tokens must be at least 0, got %d.", q.maxTokens)
		}
	}
	if q.maxTokens == 0 && q.api != apiGenerate && q.api != apiResponse {
		return nil, badRequest("max_tokens: expected at least 1")
	}
	items, err := s.newItems(q)
	if err != nil {
		return nil, err
	}
	pd := s.disaggregated()
	if pd && s.cfg.AcceptsAggregated && s.decodes() && isNull(rt.room) {
		pd = false
	}
	if pd {
		if err := s.planMeetings(q, rt, items, seq); err != nil {
			return nil, err
		}
		c.leg = map[bool]leg{true: legPrefill, false: legDecode}[s.prefills()]
	}
	for _, it := range items {
		s.placeItem(it, rt)
		if c.leg == legPrefill {
			if err := s.checkFollow(it, rt, seq); err != nil {
				return nil, err
			}
		}
	}
	return items, nil
}

func (e sglang) prepare(ctx context.Context, c *call, it *item) error {
	switch c.leg {
	case legPrefill:
		return e.s.runPrefill(ctx, c, it)
	case legDecode:
		return e.s.runDecode(ctx, c, it)
	default:
		return e.s.prepareAggregated(ctx, c, it)
	}
}

// output is one token at a prefill worker, whatever the request asks for.
func (e sglang) output(c *call) (int, string) {
	if c.leg == legPrefill {
		return 1, "length"
	}
	return c.limit()
}

func (sglang) handOver(*call, string) {}

func (sglang) errorBody(e *apiError, stream bool) any {
	if stream {
		return map[string]errorBody{"error": e.body()}
	}
	return e.body()
}

func (sglang) appendEvents(dst []byte, ts float64, events []event, rank uint32) []byte {
	return appendEventBatch(dst, ts, events, rank)
}

// newItems returns one item for each choice of each prompt.
func (s *Sim) newItems(q *genRequest) ([]*item, error) {
	if least := q.floor(); q.maxTokens >= 0 && least > q.maxTokens {
		return nil, badRequest("a minimum of %d tokens: expected at most the limit, %d", least, q.maxTokens)
	}
	items := make([]*item, 0, len(q.prompts)*q.n)
	for i, p := range q.prompts {
		space, err := s.spaceOf(q, i)
		if err != nil {
			return nil, err
		}
		if len(p)+max(q.maxTokens, 1) > s.cfg.MaxModelLen {
			return nil, badRequest("prompt of %d tokens and %d of output: expected at most %d together", len(p), max(q.maxTokens, 1), s.cfg.MaxModelLen)
		}
		for range q.n {
			items = append(items, &item{index: len(items), prompt: p, space: space, digest: digest(p)})
		}
	}
	return items, nil
}

// placeItem picks the rank: the one that the request names; at prefill else the room's
// (follow_bootstrap_room, docs/engines.md#sglang-rank); else the next.
func (s *Sim) placeItem(it *item, rt route) {
	switch {
	case rt.rank >= 0:
		it.rank = s.ranks[rt.rank]
	case it.meet != nil && s.prefills():
		it.rank = s.ranks[it.meet.room%int64(len(s.ranks))]
	default:
		it.rank = s.ranks[int(s.nextRank.Add(1)-1)%len(s.ranks)]
	}
}

// checkFollow refuses a prefill rank that decode cannot know: SGLang's
// "follow_bootstrap_room conflict" (docs/engines.md#sglang-rank).
func (s *Sim) checkFollow(it *item, rt route, seq uint64) error {
	byRoom := int(it.meet.room % int64(len(s.ranks)))
	if it.rank.id == byRoom || rt.prefillRank == it.rank.id {
		return nil
	}
	return s.mispaired("rank_conflict", seq, it.meet.room, fmt.Sprintf(
		"follow_bootstrap_room conflict: room %d is rank %d's, the request was routed to rank %d", it.meet.room, byRoom, it.rank.id))
}

func (s *Sim) planMeetings(q *genRequest, rt route, items []*item, seq uint64) error {
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
		addr, err := s.readAddr(hosts[i], ports[i], room, seq)
		if err != nil {
			return err
		}
		it.meet = &meeting{room: room, addr: addr, rank: rt.prefillRank}
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
func (s *Sim) readAddr(host, port []byte, room int64, seq uint64) (string, error) {
	p := s.bootstrapPort()
	if !isNull(port) {
		n, err := strconv.Atoi(string(port))
		if err != nil || n < 1 || n > 65535 {
			return "", badRequest("bootstrap_port %.40s: expected a port from 1 to 65535", port)
		}
		p = n
	}
	h, ok := unquote(host)
	if !ok || h == "" {
		return "", s.mispaired("no_host", seq, room, "Decode handshake failed: the request names a bootstrap room but no bootstrap host")
	}
	if strings.Contains(h, ":") && (h[0] != '[' || h[len(h)-1] != ']') {
		return "", s.mispaired("bad_host", seq, room, fmt.Sprintf(
			"Decode handshake failed: bootstrap host %q is IPv6 without brackets: host:port cannot be told apart", h))
	}
	bare := strings.Trim(h, "[]")
	if s.prefills() && (p != s.bootstrapPort() || !s.ownHost(bare)) {
		return "", s.mispaired("wrong_worker", seq, room, fmt.Sprintf(
			"Prefill transfer failed: the request names bootstrap server %s:%d, this worker's is %s", h, p, s.BootstrapAddr()))
	}
	return net.JoinHostPort(bare, strconv.Itoa(p)), nil
}

// ownHost reports whether a bootstrap host may be this process.
func (s *Sim) ownHost(host string) bool {
	own, _, _ := net.SplitHostPort(s.BootstrapAddr())
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
	return err == nil && (a == b || a.IsUnspecified() && slices.Contains(s.localAddrs, b.Unmap()))
}

// mispaired records a violation and returns the error that the client gets.
func (s *Sim) mispaired(kind string, seq uint64, room int64, msg string) *apiError {
	s.violate(Violation{Kind: kind, Seq: seq, Room: room, Detail: msg})
	return &apiError{status: http.StatusInternalServerError, reason: "pairing", msg: msg}
}

func (sglang) shape() *shape { return &sglangShape }
