package decision

import (
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// MaxRows is how many candidates of a cost table a record keeps: the picked one and the
// cheapest others. Two tables of 16 rows make a record of about 5 KiB.
const MaxRows = 16

// Outcome says how far a request has come, or how it ended.
type Outcome string

// The outcomes. The record's Detail says more about some of them.
const (
	Routed     Outcome = "routed"      // decided and sent on; not ended yet
	OK         Outcome = "ok"          // the whole answer went to the client
	Retried    Outcome = "retried"     // given up for a fresh attempt; Detail: the failure code
	ClientLeft Outcome = "client_left" // the client left before the answer ended
	Refused    Outcome = "refused"     // answered by Baton itself, and sent to no worker; Detail: the failure code
	Rejected   Outcome = "rejected"    // refused by a worker, with that worker's Status; Detail: the failure code
	Failed     Outcome = "failed"      // no worker could serve the request; Detail: the failure code
	Cut        Outcome = "cut"         // the answer began and was not completed; Detail: why
	Unfinished Outcome = "unfinished"  // the answer began, and no report says how it ended
	Answered   Outcome = "answered"    // the request asked for a decision: Baton answered it, and sent nothing on
)

// TokenSource says where the token ids of a request came from.
type TokenSource string

// The sources of token ids.
const (
	RequestIDs     TokenSource = "request ids"
	LocalTokenizer TokenSource = "local tokenizer"
	EngineTokenize TokenSource = "engine tokenize"
	ByteEstimate   TokenSource = "byte estimate"
)

// LegOutcome is the state of an attempt's prefill leg, or how the leg ended.
type LegOutcome string

// The outcomes of a prefill leg.
const (
	LegNone       LegOutcome = ""
	LegBySidecar  LegOutcome = "by_sidecar" // decode's sidecar sends it, and tells nothing of it
	LegDispatched LegOutcome = "dispatched"
	LegStarted    LegOutcome = "started"
	LegWell       LegOutcome = "well"
	LegEnded      LegOutcome = "ended"
	LegFailed     LegOutcome = "failed"
	LegAborted    LegOutcome = "aborted"
)

// Row is one candidate, with the numbers by which it was judged.
type Row struct {
	Rank                worker.Rank `json:"-"`
	Endpoint            string      `json:"endpoint,omitempty"` // the rank's; empty: its worker had left
	OverlapBlocks       int64       `json:"overlap_blocks"`
	PredictedBlocks     uint32      `json:"predicted_blocks,omitempty"` // of OverlapBlocks: expected, with no event yet
	HostBlocks          uint32      `json:"host_blocks,omitempty"`      // in host memory, beyond OverlapBlocks
	DiskBlocks          uint32      `json:"disk_blocks,omitempty"`      // on disk, beyond those on the device and in host memory
	SharedBlocks        int64       `json:"shared_blocks,omitempty"`    // in the cache outside of the workers, beyond all of the above
	Estimated           bool        `json:"overlap_estimated"`          // OverlapBlocks is an estimate
	Degraded            bool        `json:"overlap_degraded,omitempty"` // some of its KV events are missing
	Out                 bool        `json:"-"`                          // not eligible; Note says why
	CachedTokens        int64       `json:"cached_tokens"`              // of the prompt, as the cost counts them
	UncachedTokens      int64       `json:"uncached_tokens"`            // of the prompt, as the cost counts them
	ActivePrefillTokens int64       `json:"active_prefill_tokens"`
	ActiveDecodeBlocks  int64       `json:"active_decode_blocks"`
	ActiveRequests      int64       `json:"active_requests"`
	WaitSeconds         float64     `json:"wait_seconds,omitempty"` // of a cost in seconds: until the rank is free
	OwnSeconds          float64     `json:"own_seconds,omitempty"`  // and what it takes for the prompt
	CreditBlocks        float64     `json:"-"`                      // by how much the cache lowers the cost
	PrefillCost         float64     `json:"-"`
	DecodeCost          float64     `json:"-"`
	Cost                float64     `json:"-"` // lower wins; the mode says what it is made of
	Note                string      `json:"-"` // why the candidate was not eligible, or a remark on an eligible one
	// KnownAgo is how long ago all of the rank's KV events were last known to have come.
	// It is set when a decision is explained, and not in kept records. Zero: not known.
	KnownAgo time.Duration `json:"-"`
	// StaleFor is how long ago the record of a worker expired that goes on without. It is
	// set when a decision is explained, too. Zero: it has its record.
	StaleFor time.Duration `json:"-"`
}

// Name is how people name the candidate: the endpoint with the rank in brackets.
func (r *Row) Name() string { return Name(r.Endpoint, r.Rank) }

// Name is how people name a rank: the endpoint, if it is known, and the id that metrics
// and headers have.
func Name(endpoint string, r worker.Rank) string {
	if endpoint == "" {
		return r.String()
	}
	return endpoint + " (" + r.String() + ")"
}

// Choice is one pick: which rank was picked, how, and from which candidates. The zero
// value is no pick.
type Choice struct {
	Role          worker.Role // for which the pick was made; not in JSON
	Rank          worker.Rank // zero: none was picked
	Endpoint      string
	Mode          string // router mode, as kv or round-robin
	Reason        string // reason code, as in the metrics
	OverlapBlocks int64
	Cost          float64
	InSeconds     bool // costs are seconds; else blocks, or what the mode compares
	// Target is within which time the first token was wanted; 0: there was none. Late says that no candidate
	// was believed to keep it.
	Target time.Duration
	Late   bool

	// Refused says why no rank was picked, if the candidates were not the reason.
	Refused string
	// Replaced says which rank this one has replaced after the decision, and why; empty:
	// none. The cost table is that of the decision.
	Replaced string

	said string // the sentence that Why returns of a choice that was read from JSON

	rows [MaxRows]Row
	n    int
	left int
	more int // of left: the eligible ones
}

// Made reports whether a worker was picked.
func (c *Choice) Made() bool { return c.Rank.ID != 0 }

// Told reports whether the choice has anything to show: a pick, or why there was none.
func (c *Choice) Told() bool { return c.Made() || c.n > 0 || c.Refused != "" || c.said != "" }

// Picked reports whether r is the row of the picked rank.
func (c *Choice) Picked(r *Row) bool { return c.Made() && r.Rank == c.Rank }

// Rows returns the candidates that are held: the picked one first, if it was offered,
// then the others by cost, with the ineligible ones last. The slice is part of c.
func (c *Choice) Rows() []Row { return c.rows[:c.n] }

// Left returns how many candidates were offered or skipped, and are not held.
func (c *Choice) Left() int { return c.left }

// Offer adds one candidate to the cost table. Rank must be set before: the row of that
// rank is always held. Each call costs at most MaxRows comparisons, and no allocation.
func (c *Choice) Offer(r *Row) {
	picked := c.Picked(r)
	if c.n == MaxRows {
		goes, last := r, &c.rows[c.n-1]
		if picked || before(r, last) {
			goes = last
			c.n--
		}
		c.left++
		if !goes.Out {
			c.more++
		}
		if goes == r {
			return
		}
	}
	first := 0
	if c.n > 0 && c.Picked(&c.rows[0]) {
		first = 1
	}
	i := c.n
	if picked {
		first, i = 0, 0
		copy(c.rows[1:], c.rows[:c.n])
	}
	for i > first && before(r, &c.rows[i-1]) {
		c.rows[i] = c.rows[i-1]
		i--
	}
	c.rows[i] = *r
	c.n++
}

// Skip counts candidates that are not offered, in two groups: eligible ones and others.
func (c *Choice) Skip(eligible, others int) {
	c.left += eligible + others
	c.more += eligible
}

// before orders rows: eligible ones first, then by cost. Equal rows keep the order in
// which they were offered.
func before(a, b *Row) bool {
	if a.Out != b.Out {
		return b.Out
	}
	return a.Cost < b.Cost
}

// Record is one attempt to serve one request. A request that got a fresh attempt
// has one record for each attempt, with the same RequestID.
//
// Strings must not be parts of a request body: a record would keep the whole body in
// memory. Clip cuts the long ones.
type Record struct {
	Seq uint64 `json:"seq"` // set by the journal: one more than that of the record before

	// Known when the decision is made.
	Time      time.Time `json:"time"` // when the attempt began
	RequestID string    `json:"request_id"`
	Attempt   int       `json:"attempt"` // 1 for the first
	Model     string    `json:"model"`
	Namespace string    `json:"namespace,omitempty"`
	Path      string    `json:"path"` // without the query
	BodyBytes int64     `json:"body_bytes"`

	TokenSource  TokenSource `json:"token_source,omitempty"`
	TokenReason  string      `json:"token_reason,omitempty"` // why there was no better source; empty: there is no reason to give
	ISLTokens    int64       `json:"isl_tokens"`
	PromptBlocks int64       `json:"prompt_blocks"`        // whole KV blocks of the prompt, of which OverlapBlocks counts some
	BlockSize    int         `json:"block_size,omitempty"` // tokens per block; 0: not known

	// Split says why one worker serves the request, or two; empty: there was no choice.
	Split   string `json:"split,omitempty"`
	Prefill Choice `json:"prefill,omitzero"`
	Decode  Choice `json:"decode,omitzero"`

	// Filled in as they become known.
	Outcome    Outcome       `json:"outcome"`
	Detail     string        `json:"detail,omitempty"`             // of Outcome
	Error      string        `json:"error,omitempty"`              // what the leg that failed has met: status, path, address and errno, the worker's words; empty: nothing to tell
	Status     int           `json:"status,omitempty"`             // HTTP status to the client; 0: none yet
	Leg        LegOutcome    `json:"prefill_leg,omitempty"`        // of the prefill leg
	LegDetail  string        `json:"prefill_leg_detail,omitempty"` // why the prefill leg failed or was aborted
	LegError   string        `json:"prefill_leg_error,omitempty"`  // of the prefill leg, as Error
	Loss       string        `json:"overlap_lost,omitempty"`       // how much of what ranks held of the prompt was lost, and why; empty: nothing
	Timings    Timings       `json:"-"`
	DecisionIn time.Duration `json:"-"` // how long the decision took

	// Trouble is what is wrong beside, a line each. It is set when a decision is explained.
	Trouble []string `json:"trouble,omitempty"`
}

// Timings are times since Record.Time; zero means that the event has not happened.
type Timings struct {
	PrefillStarted  time.Duration
	PrefillWell     time.Duration
	PrefillEnded    time.Duration
	ResponseHeaders time.Duration
	FirstToken      time.Duration // known only at the end
	End             time.Duration
}

// MaxText bounds each string of a record that comes from a request, in bytes.
const MaxText = 256

// Clip cuts the strings that a client may have made long, and drops the query of the
// path, which may hold anything. It must be called before a record is kept or shown.
func (r *Record) Clip() {
	if i := strings.IndexByte(r.Path, '?'); i >= 0 {
		r.Path = strings.Clone(r.Path[:i])
	}
	for _, s := range []*string{
		&r.RequestID, &r.Model, &r.Namespace, &r.Path,
		&r.TokenReason, &r.Split, &r.Loss, &r.Detail, &r.LegDetail, &r.Error, &r.LegError,
	} {
		if len(*s) > MaxText {
			*s = strings.ToValidUTF8((*s)[:MaxText], "") + "…"
		}
	}
}
