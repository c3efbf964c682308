package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Plan is a decision that has been booked, as the machine needs it.
type Plan struct {
	Nonce         uint64
	Disaggregated bool
	Kind          handoff.Kind // with disaggregated
	Prefill       worker.Rank
	Decode        worker.Rank
	DecodeAddr    string           // who is to serve, or several, best first
	Several       bool             // they are several: who gets it is the proxy's to find
	DecodeDPSize  uint32           // ranks at decodeAddr
	PrefillAddr   string           // of a mirrored leg, which starts without us where we die before it comes
	Model         string           // of the pool
	Bootstrap     worker.Bootstrap // prefill's, where both legs go at once
	BootstrapHost string
	BootstrapPort uint16
	Room          prefill.Room
	InHeaders     bool // the engine takes bootstrap data as headers

	// Of a synchronous hand-off.
	PrefillDPSize uint32 // ranks at prefill's address
	HandoffID     uint64 // TensorRT-LLM's disagg_request_id
	DecodeAlone   bool   // decode can do without a hand-off

	Token        string
	AnswerToken  string        // goes with the answer: who it is of; empty: nobody asks
	Looks        bool          // a stream of its own reads decode's first events
	Traceparent  string        // of our own span; empty: leave the client's
	OverdueAfter time.Duration // from the dispatch, of prefill
	StartWithin  time.Duration // the same, until its leg has begun
	AnswerWithin time.Duration // of decode, once it has all that it needs; 0: no limit
	Spare        Spare         // who else could be tried
	Failing      int           // how often its hand-off has lately failed for other requests
	Suspects     Suspects      // of earlier attempts of the request
	Explain      string        // the debug header's value, if asked for

	// The request has named the worker: a fresh attempt would meet it again.
	PrefillNamed, DecodeNamed bool
}

// appendMembers appends the members that the body of both legs gets.
func (p *Plan) appendMembers(dst []byte) []byte {
	if p.Kind == handoff.Mooncake {
		return handoff.AppendMooncake(dst, p.Bootstrap, p.Prefill.DPRank, p.Room)
	}
	return handoff.AppendSGLang(dst, p.BootstrapHost, p.BootstrapPort, p.Room)
}

// Seat is where decode runs, when it was picked again while prefill ran.
type Seat struct {
	Rank   worker.Rank
	Addr   string
	DPSize uint32 // ranks at addr
	Alone  bool   // it can do without a hand-off
}

// move lets decode run somewhere else.
func (p *Plan) move(to *Seat) {
	if to != nil {
		p.Decode, p.DecodeAddr, p.DecodeDPSize, p.DecodeAlone, p.Several = to.Rank, to.Addr, to.DPSize, to.Alone, false
	}
}

// Spare says which legs another worker could serve.
type Spare struct{ Prefill, Decode bool }

// Suspects are what earlier attempts of a request have left to a mate's word.
type Suspects = blame.Suspects[worker.Rank]
