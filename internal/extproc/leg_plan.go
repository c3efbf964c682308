package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// plan is a decision that has been booked, as the machine needs it.
type plan struct {
	nonce         uint64
	disaggregated bool
	kind          handoff.Kind // with disaggregated
	prefill       worker.Rank
	decode        worker.Rank
	decodeAddr    string           // who is to serve, or several, best first
	several       bool             // they are several: who gets it is the proxy's to find
	decodeDPSize  uint32           // ranks at decodeAddr
	prefillAddr   string           // of a mirrored leg, which starts without us where we die before it comes
	model         string           // of the pool
	bootstrap     worker.Bootstrap // prefill's, where both legs go at once
	bootstrapHost string
	bootstrapPort uint16
	room          prefill.Room
	inHeaders     bool // the engine takes bootstrap data as headers

	// Of a synchronous hand-off.
	prefillDPSize uint32 // ranks at prefill's address
	handoffID     uint64 // TensorRT-LLM's disagg_request_id
	decodeAlone   bool   // decode can do without a hand-off

	token        string
	answerToken  string        // goes with the answer: who it is of; empty: nobody asks
	looks        bool          // a stream of its own reads decode's first events
	traceparent  string        // of our own span; empty: leave the client's
	overdueAfter time.Duration // from the dispatch, of prefill
	startWithin  time.Duration // the same, until its leg has begun
	answerWithin time.Duration // of decode, once it has all that it needs; 0: no limit
	spare        spare         // who else could be tried
	failing      int           // how often its hand-off has lately failed for other requests
	suspects     suspects      // of earlier attempts of the request
	explain      string        // the debug header's value, if asked for

	// The request has named the worker: a fresh attempt would meet it again.
	prefillNamed, decodeNamed bool
}

// appendMembers appends the members that the body of both legs gets.
func (p *plan) appendMembers(dst []byte) []byte {
	if p.kind == handoff.Mooncake {
		return handoff.AppendMooncake(dst, p.bootstrap, p.prefill.DPRank, p.room)
	}
	return handoff.AppendSGLang(dst, p.bootstrapHost, p.bootstrapPort, p.room)
}

// seat is where decode runs, when it was picked again while prefill ran.
type seat struct {
	rank   worker.Rank
	addr   string
	dpSize uint32 // ranks at addr
	alone  bool   // it can do without a hand-off
}

// move lets decode run somewhere else.
func (p *plan) move(to *seat) {
	if to != nil {
		p.decode, p.decodeAddr, p.decodeDPSize, p.decodeAlone, p.several = to.rank, to.addr, to.dpSize, to.alone, false
	}
}

// spare says which legs another worker could serve.
type spare struct{ Prefill, Decode bool }

type suspects = blame.Suspects[worker.Rank]
