package enginesim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The side channel stands for the engines' transfer (NIXL's handshake, reads and
// notifications; TensorRT-LLM's cache transceiver). Only simulators know it: POST
// /sim/pull at the address in the hand-off.

// pullAsk is the request of a decode worker to a prefill worker.
type pullAsk struct {
	Engine string `json:"engine"` // the process that the hand-off names
	ID     string `json:"id"`
	By     string `json:"by"`            // the decode request; unique among all workers
	Digest uint64 `json:"digest,string"` // of decode's prompt
	Fields string `json:"fields"`        // the hand-off as it came, as JSON text
	Group  string `json:"group"`
	One    bool   `json:"one"`  // decode's prompt is one token, of which no KV is kept
	Drop   bool   `json:"drop"` // free the KV without reading it
}

// transfer is a hand-off that came with a decode request. It has the fields that its
// engine must read.
type transfer struct {
	addr   string // of the side channel
	engine string

	bootstrap string // with MooncakeConnector: the server that knows addr
	id        string
	by        string // the request that brought it; unique among all workers
	fields    string // JSON text
	one       bool   // decode's prompt is one token
}

// pulls counts what a decode worker did with hand-offs.
type pulls struct{ ok, blocks, failed, recomputed, local atomic.Uint64 }

// bindSide serves the side channel, at vLLM on a port for each rank.
func (s *Sim) bindSide() error {
	if s.cfg.SideChannelListen == "" {
		return nil
	}
	n := 1
	if s.sidePerRank() {
		n = s.cfg.DPSize
	}
	host, port, _ := net.SplitHostPort(s.cfg.SideChannelListen)
	base, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("side-channel-listen %q: expected a port number", s.cfg.SideChannelListen)
	}
	lns, err := listenRange(host, base, n)
	if err != nil {
		return err
	}
	s.holds = newHolds(s.cfg.KVLease)
	for i, ln := range lns {
		rank := i
		if n == 1 {
			rank = -1
		}
		s.sideAddrs = append(s.sideAddrs, ln.Addr().String())
		s.serveOther(ln, s.sideHandler(rank))
	}
	return nil
}

// sideHandler serves one port of the side channel: that of a rank, or of all for -1.
func (s *Sim) sideHandler(rank int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sim/pull", func(w http.ResponseWriter, r *http.Request) {
		var ask pullAsk
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBodyBytes)).Decode(&ask); err != nil {
			writeError(w, badRequest("body: %v", err))
			return
		}
		if s.cfg.Engine == worker.VLLMMooncake && !ask.Drop && ask.Engine == s.engineID(max(rank, 0)) {
			s.holds.await(r.Context(), ask.ID)
			if r.Context().Err() != nil {
				return // decode no longer waits
			}
		}
		if no := s.pulled(rank, ask); no != nil {
			writeJSON(w, http.StatusConflict, no)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// pulled answers a decode worker. A violation is recorded here and at the decode worker.
func (s *Sim) pulled(port int, ask pullAsk) *refusal {
	if own := s.engineID(max(port, 0)); ask.Engine != own {
		return &refusal{Kind: "other_engine", Msg: fmt.Sprintf("the hand-off is engine %s's, this is %s", ask.Engine, own)}
	}
	if ask.Drop {
		s.holds.release(ask.ID, ask.By)
		return nil
	}
	no := s.holds.take(ask.ID, port, ask.By, func(h *held) *refusal {
		if no := otherGroup(s.cfg.KVGroup, ask.Group); no != nil {
			return no
		}
		if name := changedField(h.fields, ask.Fields); name != "" {
			return &refusal{Kind: "handoff_changed", Violation: true, Msg: fmt.Sprintf(
				"%s of the hand-off %q is not what prefill answered (%.80s)", name, h.id, h.fields[name])}
		}
		if h.digest != ask.Digest && (s.cfg.Engine != worker.VLLMMooncake || !ask.One) {
			return &refusal{Kind: "prompt_mismatch", Violation: true, Msg: fmt.Sprintf(
				"hand-off %q: prefill had prompt %016x, decode has %016x", h.id, h.digest, ask.Digest)}
		}
		return nil
	})
	if no != nil && no.Violation {
		s.violate(Violation{Kind: no.Kind, Handoff: ask.ID, Detail: no.Msg})
	}
	return no
}

// changedField returns the name of a field of want that is missing in got, a JSON object,
// or has other text there. A field that is null may be missing. Further fields of got do
// not matter.
func changedField(want map[string]string, got string) string {
	have := make(map[string]string)
	if !json.Valid([]byte(got)) {
		return "all"
	}
	if err := eachField([]byte(got), func(key string, v []byte) error {
		have[key] = string(v)
		return nil
	}); err != nil {
		return "all"
	}
	for name, v := range want {
		if g, ok := have[name]; g != v && (ok || v != "null") {
			return name
		}
	}
	return ""
}

// pullError is why a decode worker has no KV.
type pullError struct{ refusal }

// Error implements error.
func (e *pullError) Error() string { return e.Msg }

// pull takes the KV of t for a prompt. With drop it only asks to free the KV. The error
// is the context's or a *pullError.
func (s *Sim) pull(ctx context.Context, t *transfer, digest uint64, drop bool) error {
	body, err := json.Marshal(pullAsk{Engine: t.engine, ID: t.id, By: t.by, Digest: digest, Fields: t.fields, Group: s.cfg.KVGroup, One: t.one, Drop: drop})
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	if err := s.locate(ctx, t); err != nil {
		return err
	}
	wait := s.cfg.PullTimeout
	if t.bootstrap != "" && !drop { // the prefill may still be running
		wait = s.cfg.WaitingTimeout
	}
	tctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	req, err := http.NewRequestWithContext(tctx, http.MethodPost, "http://"+t.addr+"/sim/pull", bytes.NewReader(body))
	if err != nil {
		return &pullError{refusal{Kind: "unreachable", Msg: err.Error()}}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &pullError{refusal{Kind: "unreachable", Msg: fmt.Sprintf("side channel %s: %v", t.addr, err)}}
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	no := refusal{Kind: "unreachable", Msg: fmt.Sprintf("side channel %s: status %d", t.addr, resp.StatusCode)}
	if resp.StatusCode == http.StatusConflict {
		_ = json.NewDecoder(resp.Body).Decode(&no)
	}
	return &pullError{no}
}

// dropTransfer asks the prefill worker to free KV that a decode will not read: its
// request was refused before it ran, or its client left. It waits no longer than
// PullTimeout. If it fails, the lease frees the KV.
func (s *Sim) dropTransfer(t *transfer) {
	if t != nil {
		_ = s.pull(s.runCtx, t, 0, true)
	}
}

// receive brings the KV to a decode: it takes blocks here, pulls the KV from the prefill
// worker, and puts the prompt into the cache. If the KV cannot be had, miss decides how
// the request goes on.
func (s *Sim) receive(ctx context.Context, c *call, it *item, miss func(error) error) error {
	if err := c.admit(ctx, it, c.output()); err != nil {
		s.dropTransfer(c.transfer)
		return err
	}
	s.decodeWaiting.Add(1)
	c.transfer.one = len(it.prompt) == 1
	err := s.pull(ctx, c.transfer, it.digest, false)
	s.decodeWaiting.Add(-1)
	if ctx.Err() != nil {
		s.dropTransfer(c.transfer)
		return ctx.Err()
	}
	var pe *pullError
	if errors.As(err, &pe) && pe.Violation {
		s.violate(Violation{Kind: "refused_by_prefill", Seq: c.rec.req.Seq, Handoff: c.transfer.id, Detail: pe.Msg})
		if pe.Kind == "taken_twice" && s.vllm() {
			err = nil // the engine answers all the same, from blocks that may be another request's by now
		}
	}
	if pe != nil && pe.Kind == "expired" && s.cfg.KVLoadFailure == LoadUnseen {
		s.violate(Violation{Kind: "read_after_lease", Seq: c.rec.req.Seq, Handoff: c.transfer.id, Detail: pe.Msg})
		it.digest = ^it.digest // the answer is another prompt's
		err = nil
	}
	if err == nil {
		s.pulls.ok.Add(1)
		it.cached = len(it.prompt) - 1
		pulled := len(it.prompt) / s.page()
		if s.cfg.Engine == worker.VLLM { // pulled tokens do not count as cached; with MooncakeConnector they do
			it.cached = min(it.hold.cached, (len(it.prompt)-1)/s.page()) * s.page()
			pulled -= it.hold.cached
		}
		s.pulls.blocks.Add(uint64(max(pulled, 0)))
		it.hold.store(it.sums, it.prompt)
		return nil
	}
	s.pulls.failed.Add(1)
	return miss(err)
}

// keep moves the item's blocks from its request to holds. fields is the hand-off. A
// decode must bring it back unchanged, except for the fields that free names.
func (s *Sim) keep(c *call, it *item, id, fields string, free ...string) {
	h := it.hold
	h.leaveSlot()
	it.hold = nil
	want := make(map[string]string)
	_ = eachField([]byte(fields), func(key string, v []byte) error { // our own text is valid
		if !slices.Contains(free, key) {
			want[key] = string(v)
		}
		return nil
	})
	s.log.handedOver(c.rec, id)
	s.holds.put(&held{
		id: id, rank: it.rank.id, seq: c.rec.req.Seq, digest: it.digest, fields: want, free: h.release,
		blocks: len(h.path) + h.private,
	})
}

// engineID identifies this process, and its rank if ranks have different ids.
func (s *Sim) engineID(rank int) string {
	if s.sidePerRank() && s.cfg.DPSize > 1 {
		return s.processID + "_dp" + strconv.Itoa(rank)
	}
	return s.processID
}

// broken records a violation and returns the error that the client gets.
func (c *call) broken(kind string, status int, format string, a ...any) *apiError {
	msg := fmt.Sprintf(format, a...)
	c.s.violate(Violation{Kind: kind, Seq: c.rec.req.Seq, Detail: msg})
	reason := "handoff"
	if status < 500 {
		reason = "bad_request"
	}
	return &apiError{status: status, reason: reason, msg: msg}
}
