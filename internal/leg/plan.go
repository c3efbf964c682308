package leg

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Plan is a booked decision, with what the machine needs of it.
type Plan struct {
	Nonce         uint64
	Disaggregated bool
	Kind          handoff.Kind // if Disaggregated
	Prefill       worker.Rank
	Decode        worker.Rank
	DecodeAddr    string           // the endpoint that is to serve, or several of them, best first
	Several       bool             // DecodeAddr has several endpoints, of which the proxy chooses one
	DecodeDPSize  uint32           // ranks at DecodeAddr
	SentBeside    bool             // the plugin itself sends the prefill leg that runs beside decode; false: Envoy's mirror does, or decode's sidecar
	PrefillAddr   string           // where the prefill leg goes
	Model         string           // the model of the pool
	Bootstrap     worker.Bootstrap // prefill's, if both legs begin together
	Room          prefill.Room
	InHeaders     bool // the engine takes bootstrap data as headers

	PrefillDPSize uint32 // ranks at prefill's address, if a header of a sent leg has to name the one

	// If prefill goes first.
	HandoffID   uint64 // the attempt's, for an engine that holds KV under one
	DecodeAlone bool   // decode can serve without a hand-off

	Token        string
	AnswerToken  string        // goes with the answer, and says whose it is; "": nothing reads it
	Looks        bool          // another stream reads the first events of decode's answer
	Traceparent  string        // of our own span; "": the client's stays
	OverdueAfter time.Duration // how long prefill may take, from the dispatch
	StartWithin  time.Duration // how long prefill's leg may take to begin, from the dispatch
	AnswerWithin time.Duration // how long decode may take to answer, once it has all that it needs; 0: no limit
	GapWithin    time.Duration // how long a streamed answer may stand still; 0: no limit
	Spare        Spare         // which legs another worker could serve
	Failing      int           // how often the hand-off of this pair has lately failed for other requests
	Expected     Expected      // of the prompt
	Suspects     Suspects      // of earlier attempts of the request
	Lost         int           // how many workers the request has lost that were to answer it (blame.Row.Loses)
	Prefilled    time.Time     // when prefill made its answer, from which a lease on the KV counts; zero: it has not, as far as is known
	Explain      string        // the debug header's value; "": it was not asked for

	NamesResponse bool // the request makes a response, whose id decode's engine takes from it

	// The request has named the worker, which a fresh attempt would meet again.
	PrefillNamed, DecodeNamed bool
}

// bySidecar reports whether decode's sidecar sends the prefill leg, of which nothing is told
// here. A nil Plan has no legs.
func (p *Plan) bySidecar() bool { return p != nil && p.Disaggregated && p.Kind.ByOthers() }

// sent reports whether the plugin itself sends the prefill leg.
func (p *Plan) sent() bool { return p.SentBeside || p.Kind.PrefillFirst() }

// meeting returns where the legs meet, if both begin at once.
func (p *Plan) meeting() *handoff.Meeting {
	return &handoff.Meeting{Bootstrap: p.Bootstrap, Rank: p.Prefill.DPRank, Room: p.Room}
}

// Seat is where decode runs, if it was picked again while prefill ran.
type Seat struct {
	Rank   worker.Rank
	Addr   string
	DPSize uint32 // ranks at addr
	Alone  bool   // the worker can serve without a hand-off
}

// move changes where decode runs; nil changes nothing.
func (p *Plan) move(to *Seat) {
	if to != nil {
		p.Decode, p.DecodeAddr, p.DecodeDPSize, p.DecodeAlone, p.Several = to.Rank, to.Addr, to.DPSize, to.Alone, false
	}
}

// Spare says which legs another worker could serve.
type Spare struct{ Prefill, Decode bool }

// Suspects are charges from a request's earlier attempts that wait for a mate's proof.
type Suspects = blame.Suspects[worker.Rank]

// appendMeeting appends the headers that tell both workers of a pair where they meet.
func (p *Plan) appendMeeting(set []wire.Header, names *prefill.Names) []wire.Header {
	host, port, room := handoff.Host(p.Bootstrap), strconv.Itoa(int(p.Bootstrap.Port)), strconv.FormatUint(uint64(p.Room), 10)
	set = appendAll(set, names.BootstrapHost, host)
	set = appendAll(set, names.BootstrapPort, port)
	set = appendAll(set, names.BootstrapRoom, room)
	if p.InHeaders {
		for i, value := range [...]string{host, port, room} {
			set = append(set, wire.Header{Name: p.Kind.Together.Overrides[i], Value: value})
		}
	}
	return set
}

// appendAll appends a header with this value under each of its names.
func appendAll(set []wire.Header, names []string, value string) []wire.Header {
	for _, name := range names {
		set = append(set, wire.Header{Name: name, Value: value})
	}
	return set
}
