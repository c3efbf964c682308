package core

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The keys of log lines.
const (
	keyKind   = "kind"
	keyDetail = "detail"
)

// maxViolations bounds the violations that are kept.
const maxViolations = 1000

// Violation is a request that broke the engine's rules in a way that a router must never
// cause. Tests assert that there are none.
type Violation struct {
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"`          // see doc.go
	Seq     uint64    `json:"seq,omitempty"` // of the request, if it is known
	Room    int64     `json:"room,omitempty"`
	Handoff string    `json:"handoff,omitempty"` // id under which the KV is, or was, held
	Detail  string    `json:"detail"`
}

// Violate records a violation.
func (s *Sim) Violate(v Violation) {
	v.Time = time.Now()
	s.cfg.Logger.Warn("engine rule broken", keyKind, v.Kind, keyDetail, v.Detail)
	s.violationsMu.Lock()
	defer s.violationsMu.Unlock()
	if len(s.violations) < maxViolations {
		s.violations = append(s.violations, v)
	}
}

// State is what GET /sim/state answers.
type State struct {
	Identity Identity          `json:"identity"`
	Fault    Fault             `json:"fault"`
	Requests uint64            `json:"requests"` // arrived, including the running ones
	Running  int               `json:"running"`  // arrived and not yet ended
	Queued   int               `json:"queued"`   // running requests that wait for a slot or for blocks
	OK       uint64            `json:"ok"`
	Canceled uint64            `json:"cancelled"`
	Failed   map[string]uint64 `json:"failed"` // by reason
	Reads    uint64            `json:"reads"`  // of vLLM's /metrics

	KVHeldBlocks int `json:"kv_held_blocks"` // held for requests that run, or whose KV was not transferred yet

	// The rendezvous.
	PrefillAlone  int `json:"prefill_alone"`  // prefill halves whose decode has not come
	PrefillMet    int `json:"prefill_met"`    // prefill halves whose decode waits
	DecodeAskers  int `json:"decode_askers"`  // on prefill: decode halves whose prefill has not come
	DecodeWaiting int `json:"decode_waiting"` // on decode: requests that wait for their KV

	Handoff HandoffState `json:"handoff"` // vllm, trtllm

	Ranks      []RankState `json:"ranks"`
	Violations []Violation `json:"violations"`
}

// HandoffState counts hand-offs over a side channel, on the prefill's side and on the
// decode's. When no request of a fleet runs, Held is zero at every worker, and the sum of
// Given equals that of Taken, Released and Expired.
type HandoffState struct {
	// At a prefill worker:
	Held       int    `json:"held"` // prefills whose KV waits to be taken
	HeldBlocks int    `json:"held_blocks"`
	Given      uint64 `json:"given"`    // hand-offs ever made
	Taken      uint64 `json:"taken"`    // KV that a decode took
	Released   uint64 `json:"released"` // freed unread, as the decode worker asked
	Expired    uint64 `json:"expired"`  // freed, since no decode came within the lease
	Late       uint64 `json:"late"`     // decodes that came for KV whose lease had run out

	// At a decode worker:
	Pulled       uint64 `json:"pulled"`
	PulledBlocks uint64 `json:"pulled_blocks"` // whole blocks of prompts that it pulled, since it lacked them
	PullsFailed  uint64 `json:"pulls_failed"`
	Recomputed   uint64 `json:"recomputed"` // failed pulls after which the prompt was computed here
	Local        uint64 `json:"local"`      // requests without a hand-off, served whole
}

// RankState is one data-parallel rank.
type RankState struct {
	Rank         int           `json:"rank"`
	CachedBlocks int           `json:"cached_blocks"`
	HeldBlocks   int           `json:"held_blocks"`
	UsedBlocks   int           `json:"used_blocks"` // held blocks, without those set aside for tokens to come
	Running      int           `json:"running"`
	Queued       int           `json:"queued"`
	PromptTokens uint64        `json:"prompt_tokens"` // of answered requests
	CachedTokens uint64        `json:"cached_tokens"`
	OutputTokens uint64        `json:"output_tokens"`
	EventSeq     uint64        `json:"event_seq"`        // of the next event batch
	Blocks       []CachedBlock `json:"blocks,omitempty"` // only with ?blocks=1; sorted by hash
}

// CachedBlock is one block of a rank's prefix cache.
type CachedBlock struct {
	Hash   int64    `json:"hash"`
	Parent *int64   `json:"parent"`
	Tokens []uint32 `json:"tokens"`
}

// Identity is the line that test/cmd/enginesim prints when it is ready, and the entry of the
// worker in a discovery file.
type Identity struct {
	ID                worker.ID       `json:"id"`
	Role              string          `json:"role"`
	Engine            worker.Engine   `json:"engine"`
	Models            []string        `json:"models"`
	Adapters          []string        `json:"adapters,omitempty"`
	Endpoint          string          `json:"endpoint"`
	DPSize            int             `json:"dp_size"`
	PortPerRank       bool            `json:"port_per_rank,omitempty"`
	BlockSize         int             `json:"block_size"`
	CapacityBlocks    int             `json:"capacity_blocks"`
	KVGroup           string          `json:"kv_group,omitempty"`
	Bootstrap         *BootstrapPoint `json:"bootstrap,omitempty"`
	KVEvents          *EventsPoint    `json:"kv_events,omitempty"`
	AcceptsAggregated bool            `json:"accepts_aggregated"`
}

// BootstrapPoint is where decode workers meet a prefill worker.
type BootstrapPoint struct {
	Host      string   `json:"host"`
	Port      int      `json:"port"`
	EngineIDs []string `json:"engine_ids,omitempty"` // of vLLM with MooncakeConnector
}

// EventsPoint is where rank 0 publishes its KV events; rank r is r ports higher.
type EventsPoint struct {
	Host       string `json:"host"`
	Port       int    `json:"port"`
	ReplayPort int    `json:"replay_port,omitempty"`
	Topic      string `json:"topic"`
}

// Identity returns who the worker is and where it can be reached.
func (s *Sim) Identity() Identity {
	id := Identity{
		ID: s.cfg.ID, Role: s.cfg.Role.String(), Engine: s.cfg.Engine, Models: slices.Concat(s.cfg.Models, s.cfg.Adapters), Adapters: s.cfg.Adapters, Endpoint: s.Addr(),
		DPSize: s.cfg.DPSize, PortPerRank: s.cfg.PortPerRank, BlockSize: s.cfg.PageSize, CapacityBlocks: s.cfg.CapacityBlocks, KVGroup: s.cfg.KVGroup,
		AcceptsAggregated: !s.cfg.Disaggregated() || s.cfg.Decodes() && s.cfg.AcceptsAggregated,
	}
	if s.bootAddr != "" {
		host, _, _ := net.SplitHostPort(s.bootAddr)
		id.Bootstrap = &BootstrapPoint{Host: host, Port: PortOf(s.bootAddr)}
	}
	if pub, replay := s.EventsAddr(0); pub != "" {
		host, _, _ := net.SplitHostPort(pub)
		id.KVEvents = &EventsPoint{Host: host, Port: PortOf(pub), ReplayPort: PortOf(replay), Topic: s.cfg.Topic}
	}
	if s.engine.Identity != nil {
		s.engine.Identity(&id)
	}
	return id
}

// State returns the worker's state. With blocks it lists every cached block.
func (s *Sim) State(blocks bool) State {
	st := State{Identity: s.Identity()}
	st.Fault, _, _ = s.fault.peek()
	s.log.mu.Lock()
	st.Requests, st.Running, st.OK, st.Canceled = s.log.seq-s.log.hidden, s.log.running, s.log.completed, s.log.cancelled
	st.Failed = maps.Clone(s.log.failed)
	s.log.mu.Unlock()
	for _, r := range s.Ranks {
		rs := r.state(blocks)
		st.Queued += rs.Queued
		st.KVHeldBlocks += rs.HeldBlocks
		st.Ranks = append(st.Ranks, rs)
	}
	if s.engine.State != nil {
		s.engine.State(&st)
	}
	s.violationsMu.Lock()
	st.Violations = append([]Violation{}, s.violations...)
	s.violationsMu.Unlock()
	return st
}

func (r *Rank) state(blocks bool) RankState {
	r.mu.Lock()
	defer r.mu.Unlock()
	rs := RankState{
		Rank: r.ID, CachedBlocks: len(r.cache.blocks), HeldBlocks: r.cache.held(), UsedBlocks: r.usedLocked(time.Now()), Running: r.running, Queued: r.waiting.Len(),
		PromptTokens: r.promptTokens, CachedTokens: r.cachedTokens, OutputTokens: r.outputTokens,
	}
	if r.pub != nil {
		rs.EventSeq = r.pub.next()
	}
	if blocks {
		for _, b := range r.cache.blocks {
			cb := CachedBlock{Hash: b.told, Tokens: b.tokens}
			if b.parent != nil {
				cb.Parent = &b.parent.told
			}
			rs.Blocks = append(rs.Blocks, cb)
		}
		slices.SortFunc(rs.Blocks, func(a, b CachedBlock) int { return cmp.Compare(a.Hash, b.Hash) })
	}
	return rs
}

// Requests returns the kept requests that arrived after seq, oldest first.
func (s *Sim) Requests(seq uint64) []Request { return s.log.since(seq) }

// Reset forgets requests, violations and counts. The cache, running requests and KV held
// for others stay.
func (s *Sim) Reset() {
	s.log.reset()
	if s.engine.Reset != nil {
		s.engine.Reset()
	}
	s.violationsMu.Lock()
	s.violations = nil
	s.violationsMu.Unlock()
}

// DropEvents keeps the next n event batches of a rank from the PUB socket, so that
// subscribers see a gap. A replay has these batches.
func (s *Sim) DropEvents(rank, n int) { s.Ranks[rank].pub.dropNext(n) }

// controlHandler handles /sim/*.
func controlHandler(s *Sim) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, r *http.Request) {
		WriteJSON(w, http.StatusOK, s.State(r.URL.Query().Get("blocks") == "1"))
	})
	mux.HandleFunc("GET /sim/requests", func(w http.ResponseWriter, r *http.Request) {
		since, err := strconv.ParseUint(cmp.Or(r.URL.Query().Get("since"), "0"), 10, 64)
		if err != nil {
			WriteError(w, BadRequest("since: expected a sequence number"))
			return
		}
		WriteJSON(w, http.StatusOK, s.Requests(since))
	})
	mux.HandleFunc("POST /sim/reset", func(w http.ResponseWriter, _ *http.Request) {
		s.Reset()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /sim/fault", func(w http.ResponseWriter, r *http.Request) {
		var f Fault
		err := readStrict(r, &f)
		if err == nil {
			err = s.SetFault(f)
		}
		if err != nil {
			WriteError(w, BadRequest("%v", err))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /sim/lie", func(w http.ResponseWriter, r *http.Request) { lie(s, w, r) })
	mux.HandleFunc("POST /sim/events", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Rank, Drop int }
		err := readStrict(r, &q)
		if err != nil || q.Rank < 0 || q.Rank >= len(s.Ranks) || s.Ranks[q.Rank].pub == nil {
			WriteError(w, BadRequest("expected rank (of a rank with events) and drop"))
			return
		}
		s.DropEvents(q.Rank, q.Drop)
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// readStrict reads a small JSON body, and refuses unknown fields.
func readStrict(r *http.Request, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}
