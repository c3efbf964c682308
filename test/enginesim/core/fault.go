package core

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Mode is the way in which a worker is faulty.
type Mode string

// The modes of a [Fault].
const (
	FaultNone        Mode = "none"
	FaultHang        Mode = "hang"         // accepts and never answers
	FaultHold        Mode = "hold"         // stops, and goes on when the fault is changed
	FaultError       Mode = "error"        // answers with Status
	FaultSlow        Mode = "slow"         // latencies times Factor
	FaultDie         Mode = "die"          // the process ends, or all its sockets close
	FaultEarly200    Mode = "early200"     // a decode answers 200 and headers before it has the KV
	FaultFinishAbort Mode = "finish_abort" // answers 200 with finish reason "abort"
	FaultTruncate    Mode = "truncate"     // closes the connection in mid-body
	FaultRefuse      Mode = "refuse"       // closes its port and refuses connections
	FaultFinish      Mode = "finish"       // the answer ends with the finish reason Reason; with stop, only if it is longer than min_tokens
	FaultNoHandoff   Mode = "no_handoff"   // a prefill answers null in place of the hand-off, and holds nothing
	FaultEmpty       Mode = "empty"        // answers 200 with an empty body, or with a stream that ends at once
	FaultApart       Mode = "apart"        // a decode cannot reach the bootstrap server at From, though others can
	FaultAborted     Mode = "aborted"      // a prefill ends its request and answers 200: length, one token in the prompt, none made; SGLang's decode then answers with something else
	FaultMiscount    Mode = "miscount"     // the usage has one token more in the prompt
	FaultTemplate    Mode = "template"     // counts, in the usage and at /tokenize, as if its chat template made one token more; the hand-off does not notice
	FaultCuts        Mode = "cuts"         // counts, in the usage, as if it left the last 64 tokens of a prompt; the hand-off does not notice
	FaultBadHandoff  Mode = "bad_handoff"  // a prefill's hand-off has the form Form; its KV is held
)

// Form is the way in which a hand-off is spoiled.
type Form string

// The forms of [FaultBadHandoff].
const (
	FormText   Form = "text"   // a string that contains the object; the default
	FormList   Form = "list"   // a list that contains the object
	FormTwice  Form = "twice"  // the field comes twice
	FormBroken Form = "broken" // the object breaks off: the answer is not JSON
)

// Moment is the point within a request at which a fault strikes.
type Moment string

// The moments. Before: on arrival; no room is entered, no KV is held. Begun: like Before,
// but a streamed answer's head and roles are sent first, since an engine that fetches KV
// sends them before it knows whether it can serve. Mid: half-way. At a prefill worker the
// request is in its room and half of the prompt is computed; at other workers half of the
// answer is sent. If vllm or trtllm cuts a prefill's answer at Mid, its KV stays held
// until its lease ends. After: the KV has changed hands, and no byte of the answer is
// sent. A prefill of vllm or trtllm has then computed its KV and not yet begun to hold
// it.
const (
	Before Moment = "before"
	Begun  Moment = "begun"
	Mid    Moment = "mid"
	After  Moment = "after"
)

// Fault is what POST /sim/fault and [Sim.SetFault] take.
type Fault struct {
	Mode    Mode    `json:"mode"`
	When    Moment  `json:"when,omitempty"`     // default: mid for die and truncate, else before
	Status  int     `json:"status,omitempty"`   // of mode error; default 500. 3xx: to the path /elsewhere
	After   string  `json:"after,omitempty"`    // of mode error: the answer's Retry-After
	Words   string  `json:"words,omitempty"`    // of mode error: its message; default "injected error"
	Reason  string  `json:"reason,omitempty"`   // of mode finish: stop, content_filter or length; default stop
	Form    Form    `json:"form,omitempty"`     // of mode bad_handoff
	From    string  `json:"from,omitempty"`     // of mode apart: the address, "ip:port"
	Port    string  `json:"port,omitempty"`     // of mode refuse: the address of the one rank whose port is closed; default all ranks
	DelayMS int     `json:"delay_ms,omitempty"` // time to wait before it strikes; of mode slow: before each request
	Factor  float64 `json:"factor,omitempty"`   // of mode slow; default 10
	Count   int     `json:"count,omitempty"`    // number of requests that it strikes; 0: until the fault is changed
	ForMS   int     `json:"for_ms,omitempty"`   // the fault ends after this time; 0: never
	Health  bool    `json:"health,omitempty"`   // of modes hang, error and slow: /health does the same, whatever Only says
	Only    string  `json:"only,omitempty"`     // strikes only requests whose body contains this
}

func (f Fault) withDefaults() Fault {
	OrDefault(&f.Mode, FaultNone)
	if f.Mode == FaultDie || f.Mode == FaultTruncate {
		OrDefault(&f.When, Mid)
	}
	OrDefault(&f.When, Before)
	OrDefault(&f.Status, http.StatusInternalServerError)
	OrDefault(&f.Words, "injected error")
	OrDefault(&f.Factor, 10)
	if f.Mode == FaultFinish {
		OrDefault(&f.Reason, "stop")
	}
	if f.Mode == FaultBadHandoff {
		OrDefault(&f.Form, FormText)
	}
	return f
}

// Validate returns all errors in the fault, joined, or nil.
func (f Fault) Validate() error {
	var errs []error
	modes := []Mode{
		"", FaultNone, FaultHang, FaultHold, FaultError, FaultSlow, FaultDie, FaultEarly200, FaultFinishAbort, FaultTruncate, FaultRefuse,
		FaultFinish, FaultNoHandoff, FaultBadHandoff, FaultEmpty, FaultApart, FaultAborted, FaultMiscount,
		FaultTemplate, FaultCuts,
	}
	if !slices.Contains(modes, f.Mode) {
		errs = append(errs, fmt.Errorf("mode %q: expected one of %q", f.Mode, modes[1:]))
	}
	if !slices.Contains([]Moment{"", Before, Begun, Mid, After}, f.When) {
		errs = append(errs, fmt.Errorf("when %q: expected before, begun, mid or after", f.When))
	}
	if f.Status != 0 && (f.Status < 300 || f.Status > 599) {
		errs = append(errs, fmt.Errorf("status %d: expected 300 to 599", f.Status))
	}
	if !slices.Contains([]string{"", "stop", "content_filter", "length"}, f.Reason) {
		errs = append(errs, fmt.Errorf("reason %q: expected stop, content_filter or length (abort is mode finish_abort)", f.Reason))
	}
	if !slices.Contains([]Form{"", FormText, FormList, FormTwice, FormBroken}, f.Form) {
		errs = append(errs, fmt.Errorf("form %q: expected text, list, twice or broken", f.Form))
	}
	if _, err := netip.ParseAddrPort(f.From); (f.Mode == FaultApart) != (err == nil) {
		errs = append(errs, fmt.Errorf("from %q: expected an address, ip:port, with mode apart and nothing else", f.From))
	}
	if f.Port != "" && f.Mode != FaultRefuse {
		errs = append(errs, fmt.Errorf("port %q: expected with mode refuse alone", f.Port))
	}
	if f.DelayMS < 0 || f.Count < 0 || f.ForMS < 0 || f.Factor < 0 {
		errs = append(errs, errors.New("delay_ms, count, for_ms, factor: expected at least 0"))
	}
	if f.Mode == FaultRefuse && f.Count != 0 {
		errs = append(errs, errors.New("count: a closed port cannot count requests, use for_ms"))
	}
	return errors.Join(errs...)
}

// faultBox holds the present fault. Safe for concurrent use.
type faultBox struct {
	mu      sync.Mutex // guards the fields below
	fault   Fault
	left    int // strikes left if fault.Count > 0
	until   time.Time
	changed chan struct{} // closed and renewed by set
}

func newFaultBox() *faultBox {
	return &faultBox{fault: Fault{}.withDefaults(), changed: make(chan struct{})}
}

func (b *faultBox) set(f Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault, b.left, b.until = f.withDefaults(), f.Count, time.Time{}
	if f.ForMS > 0 {
		b.until = time.Now().Add(time.Duration(f.ForMS) * time.Millisecond)
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// peek returns the present fault, how long it still lasts (0: for ever), and a channel
// that is closed when it is changed.
func (b *faultBox) peek() (Fault, time.Duration, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.IsZero() {
		return b.fault, 0, b.changed
	}
	left := time.Until(b.until)
	if left <= 0 {
		b.fault, b.until = Fault{}.withDefaults(), time.Time{}
		left = 0
	}
	return b.fault, left, b.changed
}

// claim returns the fault that strikes the request with this body, and a channel that is
// closed when the fault is changed.
func (b *faultBox) claim(body []byte) (Fault, <-chan struct{}) {
	f, _, changed := b.peek()
	switch {
	case !bytes.Contains(body, []byte(f.Only)):
		return Fault{}.withDefaults(), changed
	case f.Mode == FaultNone || f.Count == 0:
		return f, changed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 || b.fault != f {
		return Fault{}.withDefaults(), changed
	}
	b.left--
	if b.left == 0 {
		b.fault = Fault{}.withDefaults()
	}
	return f, changed
}

// Apart reports whether the present fault keeps this worker from an address.
func (s *Sim) Apart(addr string) bool {
	f, _, _ := s.fault.peek()
	return f.Mode == FaultApart && f.From == addr
}

// SetFault makes the worker faulty from the next request on. A request that an earlier
// fault has struck stays struck, unless that fault only holds it.
func (s *Sim) SetFault(f Fault) error {
	if err := f.Validate(); err != nil {
		return fmt.Errorf("enginesim: fault: %w", err)
	}
	s.fault.set(f)
	if f.Mode == FaultRefuse {
		s.ports.refuse()
	}
	return nil
}

// closes reports whether the fault keeps the port of an address closed.
func (f *Fault) closes(addr string) bool {
	return f.Mode == FaultRefuse && (f.Port == "" || f.Port == addr)
}

var (
	errEmpty       = errors.New("no answer, by an injected fault")
	errTruncate    = errors.New("connection closed by an injected fault")
	errFinishAbort = errors.New("finish reason abort by an injected fault")
)

// strike applies the request's fault if it is due at this moment. It returns the error
// with which the request ends, or nil.
func (c *Call) strike(when Moment) error {
	f := c.Fault
	if f.Mode == FaultNone || f.When != when {
		return nil
	}
	if when == Begun && c.Q.Stream {
		if err := c.sendRoles(); err != nil {
			return err
		}
	}
	if err := Pause(c.ctx, time.Duration(f.DelayMS)*time.Millisecond); err != nil {
		return err
	}
	switch f.Mode {
	case FaultHang:
		<-c.ctx.Done()
		return c.ctx.Err()
	case FaultHold:
		select {
		case <-c.lifted:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	case FaultError:
		return &APIError{Status: f.Status, Reason: "fault", Msg: f.Words, retryAfter: f.After}
	case FaultDie:
		c.s.Die()
		<-c.ctx.Done()
		return c.ctx.Err()
	case FaultTruncate:
		return errTruncate
	case FaultFinishAbort:
		return errFinishAbort
	case FaultEmpty:
		return errEmpty
	case FaultNone, FaultSlow, FaultEarly200, FaultRefuse, FaultFinish, FaultNoHandoff, FaultBadHandoff, FaultApart, FaultAborted, FaultMiscount, FaultTemplate, FaultCuts:
	}
	return nil
}

// cutsTo is how many tokens mode cuts leaves of a prompt.
const cutsTo = 64

// told returns how many tokens of a prompt the answer tells, which has so many.
func (c *Call) told(prompt int) int {
	switch {
	case c.Aborted():
		return 1
	case c.Fault.Mode == FaultMiscount, c.Fault.Mode == FaultTemplate && c.Q.API == APIChat:
		return prompt + 1
	case c.Fault.Mode == FaultCuts:
		return min(prompt, cutsTo)
	default:
		return prompt
	}
}

// Aborted reports whether the fault ends the request's computation, of which its answer says
// nothing.
func (c *Call) Aborted() bool { return c.Fault.Mode == FaultAborted && c.Leg == LegPrefill }

// scale multiplies a latency if the fault is "slow".
func (c *Call) scale(d time.Duration) time.Duration {
	if c.Fault.Mode == FaultSlow {
		return time.Duration(float64(d) * c.Fault.Factor)
	}
	return d
}

// Pause waits for d, or returns the context's error.
func Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
