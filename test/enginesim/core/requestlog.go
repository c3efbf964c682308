package core

import (
	"maps"
	"net/http"
	"sync"
	"time"
)

// Outcomes of a [Request].
const (
	OutcomeRunning   = "running"
	OutcomeOK        = "ok"
	OutcomeAborted   = "aborted"   // 200 with finish reason "abort", injected
	OutcomeCancelled = "cancelled" // the client closed the connection before the end
	OutcomeFailed    = "failed"    // see Status and Error
)

// Request is what the log has of one generation request.
type Request struct {
	Seq           uint64      `json:"seq"` // from 1, in the order of arrival
	Method        string      `json:"method"`
	Path          string      `json:"path"`
	Headers       http.Header `json:"headers"` // all as received, including Host
	Body          string      `json:"body"`
	BodyBytes     int         `json:"body_bytes"`     // as received
	BodyTruncated bool        `json:"body_truncated"` // Body is shorter than the received body
	Room          int64       `json:"room"`           // of the first prompt; -1: none
	Rooms         []int64     `json:"rooms,omitempty"`
	Bootstrap     string      `json:"bootstrap,omitempty"` // "host:port" that the request names
	Leg           string      `json:"leg,omitempty"`       // "prefill", "decode", or "" if the request is served whole
	Handoff       string      `json:"handoff,omitempty"`   // of vllm and trtllm: the id under which its KV is, or was, held
	DPRank        int         `json:"dp_rank"`
	PromptTokens  int         `json:"prompt_tokens"`
	CachedTokens  int         `json:"cached_tokens"`
	OutputTokens  int         `json:"output_tokens"`
	Fault         Mode        `json:"fault,omitempty"` // the fault that struck it
	Outcome       string      `json:"outcome"`
	Status        int         `json:"status,omitempty"`
	Error         string      `json:"error,omitempty"`
	TTFTMicros    int64       `json:"ttft_us"`                  // from arrival to the first byte of the answer; 0: no byte was sent
	TokenMicros   int64       `json:"first_token_us,omitempty"` // from arrival to the first token of a streamed answer
	Started       time.Time   `json:"started"`
	Ended         time.Time   `json:"ended,omitzero"`
}

// record is a request in the log. Guarded by requestLog.mu after begin.
type record struct {
	req  Request
	host string
	body []byte
	done bool
}

// outcome is how a request ended.
type outcome struct {
	outcome, reason, err   string
	status, cached, output int
}

// requestLog keeps the last requests, up to a number and a size, and counts all requests.
// Safe for concurrent use.
type requestLog struct {
	keep, bodyBytes, totalBytes int

	mu        sync.Mutex // guards the fields below
	seq       uint64
	ring      []*record // request number n is at (n-1) % keep
	hidden    uint64    // reset has hidden requests up to this one
	bytes     int
	firstBody uint64 // requests before this one have lost their bodies
	completed uint64
	cancelled uint64
	failed    map[string]uint64
	running   int
}

func newRequestLog(cfg Config) *requestLog {
	return &requestLog{
		keep: cfg.LogRequests, bodyBytes: cfg.LogBodyBytes, totalBytes: cfg.LogTotalBytes,
		firstBody: 1, failed: make(map[string]uint64),
	}
}

func (l *requestLog) begin(r *http.Request, body []byte, started time.Time, asked int) *record {
	rec := &record{host: r.Host, body: body, req: Request{
		Method: r.Method, Path: r.URL.Path, Headers: r.Header, BodyBytes: len(body), Room: -1, DPRank: max(asked, 0),
		Outcome: OutcomeRunning, Started: started,
	}}
	if limit := max(l.bodyBytes, 0); len(body) > limit {
		rec.body = append([]byte(nil), body[:limit]...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	rec.req.Seq = l.seq
	l.running++
	if len(l.ring) < l.keep {
		l.ring = append(l.ring, rec)
	} else {
		at := (l.seq - 1) % uint64(l.keep)
		l.bytes -= len(l.ring[at].body)
		l.ring[at] = rec
	}
	l.bytes += len(rec.body)
	l.firstBody = max(l.firstBody, l.seq-uint64(len(l.ring))+1)
	for l.bytes > l.totalBytes && l.firstBody <= l.seq {
		old := l.ring[(l.firstBody-1)%uint64(l.keep)]
		l.bytes -= len(old.body)
		old.body = nil
		l.firstBody++
	}
	return rec
}

// planned notes the facts of a request that its plan shows.
func (l *requestLog) planned(rec *record, c *Call) {
	items := c.Items
	l.mu.Lock()
	defer l.mu.Unlock()
	rec.req.Leg = c.Leg.String()
	rec.req.Handoff = c.Handoff
	for i, it := range items {
		if i == 0 || &it.Prompt[0] != &items[i-1].Prompt[0] {
			rec.req.PromptTokens += len(it.Prompt)
		}
		if it.Meet != nil && len(items) > 1 {
			rec.req.Rooms = append(rec.req.Rooms, it.Meet.Room)
		}
	}
	rec.req.DPRank = items[0].Rank.ID
	if m := items[0].Meet; m != nil {
		rec.req.Room, rec.req.Bootstrap = m.Room, m.Addr
	}
}

func (l *requestLog) struck(rec *record, f Mode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f != FaultNone {
		rec.req.Fault = f
	}
}

// handedOver notes the id under which a prefill's KV is held.
func (l *requestLog) handedOver(rec *record, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec.req.Handoff = id
}

func (l *requestLog) firstToken(rec *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rec.req.TokenMicros == 0 {
		rec.req.TokenMicros = max(time.Since(rec.req.Started).Microseconds(), 1)
	}
}

func (l *requestLog) firstByte(rec *record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rec.req.TTFTMicros == 0 {
		rec.req.TTFTMicros = max(time.Since(rec.req.Started).Microseconds(), 1)
	}
}

// finish closes a record. Only the first call has an effect.
func (l *requestLog) finish(rec *record, o outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rec.done {
		return
	}
	rec.done = true
	l.running--
	switch o.outcome {
	case OutcomeCancelled:
		l.cancelled++
	case OutcomeFailed:
		l.failed[o.reason]++
	default:
		l.completed++
	}
	rec.req.Outcome, rec.req.Error, rec.req.Status = o.outcome, o.err, o.status
	rec.req.CachedTokens, rec.req.OutputTokens = o.cached, o.output
	rec.req.Ended = time.Now()
}

// since returns copies of the kept requests with a higher sequence number.
func (l *requestLog) since(seq uint64) []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Request, 0, len(l.ring))
	for n := l.seq - uint64(len(l.ring)) + 1; n <= l.seq; n++ {
		if n <= max(seq, l.hidden) {
			continue
		}
		rec := l.ring[(n-1)%uint64(l.keep)]
		r := rec.req
		r.Headers = maps.Clone(r.Headers)
		if r.Headers == nil {
			r.Headers = make(http.Header)
		}
		r.Headers["Host"] = []string{rec.host}
		r.Body, r.BodyTruncated = string(rec.body), len(rec.body) < r.BodyBytes
		out = append(out, r)
	}
	return out
}

// reset forgets all requests so far, and all counts but that of running requests.
// Sequence numbers go on.
func (l *requestLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, rec := range l.ring {
		rec.body = nil
	}
	l.hidden, l.bytes, l.firstBody = l.seq, 0, l.seq+1
	l.completed, l.cancelled, l.failed = 0, 0, make(map[string]uint64)
}
