package sidechannel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// maxAskBytes bounds the body of a pull.
const maxAskBytes = 64 << 20

// The side channel stands for the engines' transfer (NIXL's handshake, reads and
// notifications; TensorRT-LLM's cache transceiver). Only simulators know it: POST
// /sim/pull at the address in the hand-off.

// PullAsk is the request of a decode worker to a prefill worker.
type PullAsk struct {
	Engine string `json:"engine"` // the process that the hand-off names
	ID     string `json:"id"`
	By     string `json:"by"`            // the decode request; unique among all workers
	Digest uint64 `json:"digest,string"` // of decode's prompt
	Fields string `json:"fields"`        // the hand-off as it came, as JSON text
	Group  string `json:"group"`
	One    bool   `json:"one"`  // decode's prompt is one token, of which no KV is kept
	Drop   bool   `json:"drop"` // free the KV without reading it
}

// Transfer is a hand-off that came with a decode request. It has the fields that its
// engine must read.
type Transfer struct {
	Addr   string // of the side channel; "": Find says it
	Engine string
	ID     string
	By     string // the request that brought it; unique among all workers
	Fields string // JSON text
	one    bool   // decode's prompt is one token

	// Find returns the address. Such a transfer's prefill may still be running. Its error says why
	// it has none.
	Find func(ctx context.Context, client *http.Client) (addr string, err error)
}

// pulls counts what a decode worker did with hand-offs.
type pulls struct{ ok, blocks, failed, recomputed, local atomic.Uint64 }

// Manner is how the hand-offs of one engine differ from others.
type Manner struct {
	PerRank bool // each rank has a port of its own, and an id if there are several
	Awaits  bool // KV may be asked for before it is here; decode's prompt may then be one token of which no KV is kept
	Twice   bool // a decode whose hand-off was taken already is answered all the same, from blocks that may be another request's by now
	OwnOnly bool // pulled tokens do not count as cached
}

// Channel is a worker's end of the side channel: what it holds for others, and what it
// takes. Safe for concurrent use.
type Channel struct {
	s       *core.Sim
	cfg     core.Config
	manner  Manner
	holds   *holds // nil: no KV is taken from this worker
	pulls   pulls
	waiting atomic.Int64 // requests that wait for their KV
	client  *http.Client // to side channels
}

// NewChannel returns the channel of a worker. Bind opens it.
func NewChannel(s *core.Sim, cfg core.Config, m Manner) *Channel {
	return &Channel{s: s, cfg: cfg, manner: m, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// Bind serves the side channel.
func (ch *Channel) Bind() error {
	if ch.cfg.SideChannelListen == "" {
		return nil
	}
	n := 1
	if ch.manner.PerRank {
		n = ch.cfg.DPSize
	}
	ch.holds = newHolds(ch.cfg.KVLease)
	return ch.s.BindSide(n, func(i int) http.Handler {
		if n == 1 {
			i = -1
		}
		return ch.handler(i)
	})
}

// Close frees everything.
func (ch *Channel) Close() {
	if ch.holds != nil {
		ch.holds.close()
	}
	ch.client.CloseIdleConnections()
}

// State adds what the channel counts.
func (ch *Channel) State(st *core.State) {
	if ch.holds != nil {
		st.Handoff = ch.holds.counts()
	}
	st.DecodeWaiting = int(ch.waiting.Load())
	st.Handoff.Pulled, st.Handoff.PullsFailed = ch.pulls.ok.Load(), ch.pulls.failed.Load()
	st.Handoff.PulledBlocks = ch.pulls.blocks.Load()
	st.Handoff.Recomputed, st.Handoff.Local = ch.pulls.recomputed.Load(), ch.pulls.local.Load()
}

// Reset sets the counts to zero.
func (ch *Channel) Reset() {
	if ch.holds != nil {
		ch.holds.reset()
	}
	for _, n := range []*atomic.Uint64{&ch.pulls.ok, &ch.pulls.blocks, &ch.pulls.failed, &ch.pulls.recomputed, &ch.pulls.local} {
		n.Store(0)
	}
}

// Local notes that a decode worker serves a request whole.
func (ch *Channel) Local() { ch.pulls.local.Add(1) }

// Recomputed notes that a decode worker computes a prompt whose KV it could not have.
func (ch *Channel) Recomputed() { ch.pulls.recomputed.Add(1) }

// handler serves one port of the side channel: that of a rank, or of all for -1.
func (ch *Channel) handler(rank int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sim/pull", func(w http.ResponseWriter, r *http.Request) {
		var ask PullAsk
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAskBytes)).Decode(&ask); err != nil {
			core.WriteError(w, core.BadRequest("body: %v", err))
			return
		}
		if ch.manner.Awaits && !ask.Drop && ask.Engine == ch.EngineID(max(rank, 0)) {
			ch.holds.await(r.Context(), ask.ID)
			if r.Context().Err() != nil {
				return // decode no longer waits
			}
		}
		if no := ch.pulled(rank, ask); no != nil {
			core.WriteJSON(w, http.StatusConflict, no)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// pulled answers a decode worker. A violation is recorded here and at the decode worker.
func (ch *Channel) pulled(port int, ask PullAsk) *refusal {
	if own := ch.EngineID(max(port, 0)); ask.Engine != own {
		return &refusal{Kind: "other_engine", Msg: fmt.Sprintf("the hand-off is engine %s's, this is %s", ask.Engine, own)}
	}
	if ask.Drop {
		ch.holds.release(ask.ID, ask.By)
		return nil
	}
	no := ch.holds.take(ask.ID, port, ask.By, func(h *held) *refusal {
		if msg := core.OtherGroup(ch.cfg.KVGroup, ask.Group); msg != "" {
			return &refusal{Kind: core.MixedPair, Violation: true, Msg: msg}
		}
		if name := changedField(h.fields, ask.Fields); name != "" {
			return &refusal{Kind: "handoff_changed", Violation: true, Msg: fmt.Sprintf(
				"%s of the hand-off %q is not what prefill answered (%.80s)", name, h.id, h.fields[name])}
		}
		if h.digest != ask.Digest && (!ch.manner.Awaits || !ask.One) {
			return &refusal{Kind: "prompt_mismatch", Violation: true, Msg: fmt.Sprintf(
				"hand-off %q: prefill had prompt %016x, decode has %016x", h.id, h.digest, ask.Digest)}
		}
		return nil
	})
	if no != nil && no.Violation {
		ch.s.Violate(core.Violation{Kind: no.Kind, Handoff: ask.ID, Detail: no.Msg})
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
	if err := core.EachField([]byte(got), func(key string, v []byte) error {
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
func (ch *Channel) pull(ctx context.Context, t *Transfer, digest uint64, drop bool) error {
	body, err := json.Marshal(PullAsk{Engine: t.Engine, ID: t.ID, By: t.By, Digest: digest, Fields: t.Fields, Group: ch.cfg.KVGroup, One: t.one, Drop: drop})
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	if err := ch.locate(ctx, t); err != nil {
		return err
	}
	wait := ch.cfg.PullTimeout
	if t.Find != nil && !drop { // the prefill may still be running
		wait = ch.cfg.WaitingTimeout
	}
	tctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	req, err := http.NewRequestWithContext(tctx, http.MethodPost, "http://"+t.Addr+"/sim/pull", bytes.NewReader(body))
	if err != nil {
		return &pullError{refusal{Kind: "unreachable", Msg: err.Error()}}
	}
	resp, err := ch.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &pullError{refusal{Kind: "unreachable", Msg: fmt.Sprintf("side channel %s: %v", t.Addr, err)}}
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	no := refusal{Kind: "unreachable", Msg: fmt.Sprintf("side channel %s: status %d", t.Addr, resp.StatusCode)}
	if resp.StatusCode == http.StatusConflict {
		_ = json.NewDecoder(resp.Body).Decode(&no)
	}
	return &pullError{no}
}

// locate finds the address of a transfer that does not name it.
func (ch *Channel) locate(ctx context.Context, t *Transfer) error {
	if t.Find == nil || t.Addr != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ch.cfg.PullTimeout)
	defer cancel()
	addr, err := t.Find(ctx, ch.client)
	if err != nil {
		return &pullError{refusal{Kind: "unreachable", Msg: err.Error()}}
	}
	t.Addr = addr
	return nil
}

// Drop asks the prefill worker to free KV that a decode will not read: its request was
// refused before it ran, or its client left. It waits no longer than PullTimeout. If it
// fails, the lease frees the KV.
func (ch *Channel) Drop(t *Transfer) {
	if t != nil {
		_ = ch.pull(ch.s.Process(), t, 0, true)
	}
}

// Receive brings the KV to a decode: it takes blocks here, pulls the KV from the prefill
// worker, and puts the prompt into the cache. If the KV cannot be had, miss decides how
// the request goes on.
func (ch *Channel) Receive(ctx context.Context, c *core.Call, it *core.Item, t *Transfer, miss func(error) error) error {
	if err := c.Admit(ctx, it, c.Output()); err != nil {
		ch.Drop(t)
		return err
	}
	ch.waiting.Add(1)
	t.one = len(it.Prompt) == 1
	err := ch.pull(ctx, t, it.Digest, false)
	ch.waiting.Add(-1)
	if ctx.Err() != nil {
		ch.Drop(t)
		return ctx.Err()
	}
	var pe *pullError
	if errors.As(err, &pe) && pe.Violation {
		ch.s.Violate(core.Violation{Kind: "refused_by_prefill", Seq: c.Seq, Handoff: t.ID, Detail: pe.Msg})
		if pe.Kind == "taken_twice" && ch.manner.Twice {
			err = nil
		}
	}
	if pe != nil && pe.Kind == "expired" && ch.cfg.KVLoadFailure == core.LoadUnseen {
		ch.s.Violate(core.Violation{Kind: "read_after_lease", Seq: c.Seq, Handoff: t.ID, Detail: pe.Msg})
		it.Digest = ^it.Digest // the answer is another prompt's
		err = nil
	}
	if err == nil {
		ch.took(it)
		return nil
	}
	ch.pulls.failed.Add(1)
	return miss(err)
}

// took counts the KV of an item that has come, and puts the prompt into the cache.
func (ch *Channel) took(it *core.Item) {
	page := ch.s.Page()
	ch.pulls.ok.Add(1)
	it.Cached = len(it.Prompt) - 1
	pulled := len(it.Prompt) / page
	if ch.manner.OwnOnly {
		it.Cached = min(it.Hold.Cached, (len(it.Prompt)-1)/page) * page
		pulled -= it.Hold.Cached
	}
	ch.pulls.blocks.Add(uint64(max(pulled, 0)))
	it.Hold.Store(it.Sums, it.Prompt)
}

// Keep moves the item's blocks from its request to holds. fields is the hand-off. A
// decode must bring it back unchanged, except for the fields that free names.
func (ch *Channel) Keep(c *core.Call, it *core.Item, id, fields string, free ...string) {
	h := it.Hold
	h.LeaveSlot()
	it.Hold = nil
	want := make(map[string]string)
	_ = core.EachField([]byte(fields), func(key string, v []byte) error { // our own text is valid
		if !slices.Contains(free, key) {
			want[key] = string(v)
		}
		return nil
	})
	c.HandedOver(id)
	ch.holds.put(&held{
		id: id, rank: it.Rank.ID, seq: c.Seq, digest: it.Digest, fields: want, free: h.Release, blocks: h.Blocks(),
	})
}

// EngineID identifies this process, and its rank if ranks have different ids.
func (ch *Channel) EngineID(rank int) string {
	if ch.manner.PerRank && ch.cfg.DPSize > 1 {
		return ch.s.ProcessID + "_dp" + strconv.Itoa(rank)
	}
	return ch.s.ProcessID
}
