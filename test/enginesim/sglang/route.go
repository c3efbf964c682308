package sglang

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// NoRoom is the answer of SGLang's disaggregated workers to a request without a room
// (docs/engines.md#sglang-triple).
const NoRoom = "Invalid request: Disaggregated request received without bootstrap room id"

// route has the routing fields of a request, after headers have replaced them.
type route struct {
	host, port, room []byte
	rank             int // the rank of this worker, or -1
	prefillRank      int // disagg_prefill_dp_rank, or -1
}

// routing are the members by which halves meet, and by which a rank is asked for.
func routing() []string {
	return []string{"bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank", "data_parallel_rank"}
}

// readRoute merges body fields and headers. X-Data-Parallel-Rank replaces the body's rank
// (docs/engines.md#sglang-rank-header). The x-override-* headers replace that, too, if
// they are switched on, but only on chat and generate (docs/engines.md#sglang-override).
func (e *engine) readRoute(q *core.GenRequest, h http.Header) (route, error) {
	if q.API == core.APIMessage { // the chat that is made of it has none of these
		return route{rank: -1, prefillRank: -1}, nil
	}
	rt := route{host: q.Own("bootstrap_host"), port: q.Own("bootstrap_port"), room: q.Own("bootstrap_room")}
	own, prefill := q.Own("routed_dp_rank"), q.Own("disagg_prefill_dp_rank")
	if own == nil {
		own = q.Own("data_parallel_rank") // its older name
	}
	if v := h.Get("X-Data-Parallel-Rank"); v != "" {
		own = []byte(v)
	}
	if e.cfg.HeaderOverrides && q.API != core.APICompletion && q.API != core.APIResponse {
		for name, to := range map[string]*[]byte{
			"X-Override-Bootstrap-Port":         &rt.port,
			"X-Override-Bootstrap-Room":         &rt.room,
			"X-Override-Routed-Dp-Rank":         &own,
			"X-Override-Disagg-Prefill-Dp-Rank": &prefill,
		} {
			if v := h.Get(name); v != "" {
				if _, err := strconv.ParseInt(v, 10, 64); err != nil {
					return rt, core.BadRequest("header %s %.40q: expected an integer", strings.ToLower(name), v)
				}
				*to = []byte(v)
			}
		}
		if v := h.Get("X-Override-Bootstrap-Host"); v != "" {
			rt.host = strconv.AppendQuote(nil, v)
		}
	}
	var err error
	rt.rank, err = readRank("routed_dp_rank", own, e.cfg.DPSize)
	if err != nil {
		return rt, err
	}
	rt.prefillRank, err = readRank("disagg_prefill_dp_rank", prefill, math.MaxInt32)
	return rt, err
}

func readRank(name string, v []byte, size int) (int, error) {
	if core.IsNull(v) {
		return -1, nil
	}
	n, err := strconv.Atoi(string(v))
	if err != nil || n < 0 || n >= size {
		return 0, core.BadRequest("%s %.40q: expected a data-parallel rank from 0 to %d", name, v, size-1)
	}
	return n, nil
}

// plan checks the request's fields and returns one item for each choice of each prompt. A
// single room number serves the items as room, room+1, …. A list has a room for each
// prompt and is repeated for the choices.
func (e *engine) plan(c *core.Call, h http.Header) ([]*core.Item, core.Job, error) {
	s, q, seq := e.s, c.Q, c.Seq
	rt, err := e.readRoute(q, h)
	if err != nil {
		return nil, nil, err
	}
	if c.Asked >= 0 {
		rt.rank = c.Asked
	}
	for _, f := range q.Repeated(routing()...) {
		s.Violate(core.Violation{Kind: "repeated_field", Seq: seq, Detail: f + " is in the body more than once"})
	}
	if q.API == core.APIResponse && q.MaxTokens >= 0 {
		const headroom = 2 // ResponsesRequest.to_sampling_params
		q.MaxTokens -= headroom
		if q.MaxTokens < 0 {
			return nil, nil, core.BadRequest("max_new_tokens must be at least 0, got %d.", q.MaxTokens)
		}
	}
	if q.MaxTokens == 0 && q.API != core.APIGenerate && q.API != core.APIResponse {
		return nil, nil, core.BadRequest("max_tokens: expected at least 1")
	}
	items, err := c.NewItems()
	if err != nil {
		return nil, nil, err
	}
	pd := e.cfg.Disaggregated()
	if pd && e.cfg.AcceptsAggregated && e.cfg.Decodes() && core.IsNull(rt.room) {
		pd = false
	}
	if pd {
		if err := e.planMeetings(q, rt, items, seq); err != nil {
			return nil, nil, err
		}
		c.Leg = map[bool]core.Leg{true: core.LegPrefill, false: core.LegDecode}[e.cfg.Prefills()]
	}
	for _, it := range items {
		e.placeItem(c, it, rt)
		if c.Leg == core.LegPrefill {
			if err := e.checkFollow(it, rt, seq); err != nil {
				return nil, nil, err
			}
		}
	}
	return items, &job{e: e, c: c, prefillRank: rt.prefillRank, halves: make([]*prefillHalf, len(items))}, nil
}

// placeItem picks the rank: the one that the request names; at prefill else the room's
// (follow_bootstrap_room, docs/engines.md#sglang-rank); else the next.
func (e *engine) placeItem(c *core.Call, it *core.Item, rt route) {
	rank := rt.rank
	if rank < 0 && it.Meet != nil && e.cfg.Prefills() {
		rank = int(it.Meet.Room % int64(len(e.s.Ranks)))
	}
	c.Place(it, rank)
}

// checkFollow refuses a prefill rank that decode cannot know: SGLang's
// "follow_bootstrap_room conflict" (docs/engines.md#sglang-rank).
func (e *engine) checkFollow(it *core.Item, rt route, seq uint64) error {
	byRoom := int(it.Meet.Room % int64(len(e.s.Ranks)))
	if it.Rank.ID == byRoom || rt.prefillRank == it.Rank.ID {
		return nil
	}
	return e.mispaired("rank_conflict", seq, it.Meet.Room, fmt.Sprintf(
		"follow_bootstrap_room conflict: room %d is rank %d's, the request was routed to rank %d", it.Meet.Room, byRoom, it.Rank.ID))
}

func (e *engine) planMeetings(q *core.GenRequest, rt route, items []*core.Item, seq uint64) error {
	if core.IsNull(rt.room) {
		return core.BadRequest(NoRoom)
	}
	rooms, err := perItem("bootstrap_room", rt.room, len(q.Prompts), q.N)
	if err != nil {
		return err
	}
	hosts, err := perItem("bootstrap_host", rt.host, len(q.Prompts), q.N)
	if err != nil {
		return err
	}
	ports, err := perItem("bootstrap_port", rt.port, len(q.Prompts), q.N)
	if err != nil {
		return err
	}
	for i, it := range items {
		room, err := strconv.ParseInt(string(rooms[i]), 10, 64)
		if err != nil || room < 0 {
			return core.BadRequest("bootstrap_room %.40s: expected an integer from 0 to 2^63-1", rooms[i])
		}
		if rt.room[0] != '[' {
			if room > math.MaxInt64-int64(len(items)-1) {
				return core.BadRequest("bootstrap_room %d: %d parallel prompts go past 2^63-1", room, len(items))
			}
			room += int64(i)
		}
		addr, err := e.readAddr(hosts[i], ports[i], room, seq)
		if err != nil {
			return err
		}
		it.Meet = &core.Meeting{Room: room, Addr: addr}
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
	_ = core.EachElem(v, func(e []byte) error { // the body is valid JSON
		count++
		for range n {
			out = append(out, e)
		}
		return nil
	})
	if count != prompts {
		return nil, core.BadRequest("%s: a list of %d for %d prompts", name, count, prompts)
	}
	return out, nil
}

// readAddr makes the address that decode asks from the bootstrap host and port. If the
// port is missing, it is the worker's own, as in SGLang's scheduler.
func (e *engine) readAddr(host, port []byte, room int64, seq uint64) (string, error) {
	p := e.bootstrapPort()
	if !core.IsNull(port) {
		n, err := strconv.Atoi(string(port))
		if err != nil || n < 1 || n > 65535 {
			return "", core.BadRequest("bootstrap_port %.40s: expected a port from 1 to 65535", port)
		}
		p = n
	}
	h, ok := core.Unquote(host)
	if !ok || h == "" {
		return "", e.mispaired("no_host", seq, room, "Decode handshake failed: the request names a bootstrap room but no bootstrap host")
	}
	if strings.Contains(h, ":") && (h[0] != '[' || h[len(h)-1] != ']') {
		return "", e.mispaired("bad_host", seq, room, fmt.Sprintf(
			"Decode handshake failed: bootstrap host %q is IPv6 without brackets: host:port cannot be told apart", h))
	}
	bare := strings.Trim(h, "[]")
	if e.cfg.Prefills() && (p != e.bootstrapPort() || !e.ownHost(bare)) {
		return "", e.mispaired("wrong_worker", seq, room, fmt.Sprintf(
			"Prefill transfer failed: the request names bootstrap server %s:%d, this worker's is %s", h, p, e.s.BootstrapAddr()))
	}
	return net.JoinHostPort(bare, strconv.Itoa(p)), nil
}

// ownHost reports whether a bootstrap host may be this process.
func (e *engine) ownHost(host string) bool {
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
func (e *engine) mispaired(kind string, seq uint64, room int64, msg string) *core.APIError {
	e.s.Violate(core.Violation{Kind: kind, Seq: seq, Room: room, Detail: msg})
	return &core.APIError{Status: http.StatusInternalServerError, Reason: "pairing", Msg: msg}
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
