package sglang

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// linkProtocol is the protocol to which a decode worker upgrades a connection of the
// bootstrap server: one JSON message per line, both ways, for all its rooms there. It
// stands for the transfer engine (RDMA in real engines), and only simulators know it.
const linkProtocol = "enginesim-link"

// Types of linkMessage.
const (
	msgAsk    = "ask"    // decode: it waits for this room's KV
	msgCancel = "cancel" // decode: it no longer waits
	msgKV     = "kv"     // prefill: the KV is ready
	msgFailed = "failed" // prefill: the KV will never come
)

// linkMessage is one line of a link.
type linkMessage struct {
	Type      string `json:"type"`
	Room      int64  `json:"room"`
	Call      uint64 `json:"call"` // identifies the decode request within its process
	Digest    uint64 `json:"digest,omitempty"`
	Group     string `json:"group,omitempty"`
	Rank      int    `json:"rank,omitempty"` // prefill rank the decode expects
	Cached    int    `json:"cached,omitempty"`
	Aborted   bool   `json:"aborted,omitempty"` // the KV is of no prompt
	Error     string `json:"error,omitempty"`
	Violation bool   `json:"violation,omitempty"`
}

// topology is the answer of GET /route: what a decode worker needs to know about the
// prefill worker (a part of SGLang's PrefillServerInfo).
type topology struct {
	ATTNTPSize          int    `json:"attn_tp_size"`
	ATTNCPSize          int    `json:"attn_cp_size"`
	DPSize              int    `json:"dp_size"`
	PPSize              int    `json:"pp_size"`
	PageSize            int    `json:"page_size"`
	KVCacheDType        string `json:"kv_cache_dtype"`
	FollowBootstrapRoom bool   `json:"follow_bootstrap_room"`
	PrefillHTTPPort     int    `json:"prefill_http_port"`
}

// linkPeer is the prefill worker's end of a decode worker's link.
type linkPeer struct{ out core.Outbox }

func (p *linkPeer) send(m linkMessage) { p.out.Push(appendLine(m), 0) }

func appendLine(m linkMessage) []byte {
	b, _ := json.Marshal(m) // plain fields cannot fail
	return append(b, '\n')
}

// bootstrap is the bootstrap server of a prefill worker.
type bootstrap struct{ e *engine }

// handler handles its HTTP requests.
func (b bootstrap) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /route", func(w http.ResponseWriter, _ *http.Request) {
		core.WriteJSON(w, http.StatusOK, topology{
			ATTNTPSize: 1, ATTNCPSize: 1, DPSize: b.e.cfg.DPSize, PPSize: 1, PageSize: b.e.cfg.PageSize,
			KVCacheDType: "auto", FollowBootstrapRoom: true, PrefillHTTPPort: core.PortOf(b.e.s.Addr()),
		})
	})
	mux.HandleFunc("POST /query_dp_ranks", b.queryDPRanks)
	mux.HandleFunc("GET /sim/link", b.serveLink)
	return mux
}

// queryDPRanks answers the rank of each room that is known here.
func (b bootstrap) queryDPRanks(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Rooms []int64 `json:"bootstrap_rooms"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&q); err != nil {
		core.WriteError(w, core.BadRequest("bootstrap_rooms: expected a list of integers"))
		return
	}
	ranks := make(map[string]int)
	for _, room := range q.Rooms {
		if rank, ok := b.e.rooms.rankOf(room); ok {
			ranks[strconv.FormatInt(room, 10)] = rank
		}
	}
	core.WriteJSON(w, http.StatusOK, ranks)
}

func (b bootstrap) serveLink(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != linkProtocol {
		w.WriteHeader(http.StatusUpgradeRequired)
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	peer := &linkPeer{out: core.NewOutbox()}
	peer.out.Push([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+linkProtocol+"\r\n\r\n"), 0)
	ctx, cancel := context.WithCancel(b.e.s.Process())
	var wg sync.WaitGroup
	wg.Go(func() { peer.out.Run(ctx, c) })
	b.readLink(rw.Reader, peer)
	b.e.rooms.dropAll(peer)
	cancel()
	wg.Wait()
}

func (b bootstrap) readLink(r *bufio.Reader, peer *linkPeer) {
	dec := json.NewDecoder(r)
	for {
		var m linkMessage
		if dec.Decode(&m) != nil {
			return
		}
		switch m.Type {
		case msgAsk:
			b.e.rooms.ask(&decodeHalf{reg: m, from: peer})
		case msgCancel:
			b.e.rooms.drop(peer, m.Room, m.Call)
		}
	}
}
