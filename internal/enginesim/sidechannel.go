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

// The side channel stands for the engines' transfer (NIXL's handshake, reads
// and notifications; TensorRT-LLM's cache transceiver). It is private to
// simulators: POST /sim/pull at the address that the hand-off names.

// pullAsk is what a decode worker asks a prefill worker.
type pullAsk struct {
	Engine string `json:"engine"` // process that the hand-off names
	ID     string `json:"id"`
	By     string `json:"by"`            // the decode request, told from all others
	Digest uint64 `json:"digest,string"` // of decode's prompt
	Fields string `json:"fields"`        // the hand-off as it came, JSON text
	One    bool   `json:"one"`           // that is one token, of which no KV is kept
	Drop   bool   `json:"drop"`          // free the KV without reading it
}

// transfer is a hand-off that a decode request brought, read as far as its
// engine must.
type transfer struct {
	addr   string // of the side channel
	engine string

	bootstrap string // MooncakeConnector's: the server that knows addr
	id        string
	by        string // the request that brought it, told from all others
	fields    string // JSON text
	one       bool   // it is for a prompt of one token
}

// pulls counts what a decode worker did.
type pulls struct{ ok, blocks, failed, recomputed, local atomic.Uint64 }

// bindSide serves the side channel, a port a rank if perRank is set.
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

// sideHandler serves one port of the side channel: a rank's, or all for -1.
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

// pulled answers a decode worker. Violations are recorded here, by what was
// held, and at the decode worker.
func (s *Sim) pulled(port int, ask pullAsk) *refusal {
	if own := s.engineID(max(port, 0)); ask.Engine != own {
		return &refusal{Kind: "other_engine", Msg: fmt.Sprintf("the hand-off is engine %s's, this is %s", ask.Engine, own)}
	}
	if ask.Drop {
		s.holds.release(ask.ID, ask.By)
		return nil
	}
	no := s.holds.take(ask.ID, port, ask.By, func(h *held) *refusal {
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

// changedField returns the name of a field of want that got, a JSON object,
// lacks or has with other text. null is as good as absent; what else got has
// is nobody's business.
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

// pull takes the KV that t names for a prompt, or with drop has it freed. The
// error is the context's or a *pullError.
func (s *Sim) pull(ctx context.Context, t *transfer, digest uint64, drop bool) error {
	body, err := json.Marshal(pullAsk{Engine: t.engine, ID: t.id, By: t.by, Digest: digest, Fields: t.fields, One: t.one, Drop: drop})
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	if err := s.locate(ctx, t); err != nil {
		return err
	}
	wait := s.cfg.PullTimeout
	if t.bootstrap != "" && !drop { // the prefill may still be under way
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

// dropTransfer has the KV freed that a decode will not read: its request was
// refused before it ran, or its client left. It waits for no longer than
// PullTimeout; what cannot be told is freed by the lease.
func (s *Sim) dropTransfer(t *transfer) {
	if t != nil {
		_ = s.pull(s.runCtx, t, 0, true)
	}
}

// receive is a decode's way to its KV: it takes blocks here, takes the KV from
// its prefill worker, and keeps the prompt in the cache. Where the KV cannot be
// had, miss decides.
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
			err = nil // the engine reads blocks that may be others' by now, and answers
		}
	}
	if err == nil {
		s.pulls.ok.Add(1)
		it.cached = len(it.prompt) - 1
		pulled := len(it.prompt) / s.cfg.PageSize
		if s.cfg.Engine == worker.VLLM { // what it pulls does not count; with MooncakeConnector it does
			it.cached = min(it.hold.cached, (len(it.prompt)-1)/s.cfg.PageSize) * s.cfg.PageSize
			pulled -= it.hold.cached
		}
		s.pulls.blocks.Add(uint64(max(pulled, 0)))
		it.hold.store(it.sums, it.prompt)
		return nil
	}
	s.pulls.failed.Add(1)
	return miss(err)
}

// keep moves the item's blocks from its request to the ledger. fields is the
// hand-off; but for those named in free, a decode must bring them back as they
// are.
func (s *Sim) keep(c *call, it *item, id, fields string, free ...string) {
	h := it.hold
	h.leaveSlot()
	it.hold = nil
	want := make(map[string]string)
	_ = eachField([]byte(fields), func(key string, v []byte) error { // our own text
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

// engineID names this process, and a rank of it where ranks differ.
func (s *Sim) engineID(rank int) string {
	if s.sidePerRank() && s.cfg.DPSize > 1 {
		return s.processID + "_dp" + strconv.Itoa(rank)
	}
	return s.processID
}

// broken records a violation and returns the answer to it.
func (c *call) broken(kind string, status int, format string, a ...any) *apiError {
	msg := fmt.Sprintf(format, a...)
	c.s.violate(Violation{Kind: kind, Seq: c.rec.req.Seq, Detail: msg})
	reason := "handoff"
	if status < 500 {
		reason = "bad_request"
	}
	return &apiError{status: status, reason: reason, msg: msg}
}
