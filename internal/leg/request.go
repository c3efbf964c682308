package leg

import (
	"bytes"
	"errors"
	"hash/fnv"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Request is what has come of a request. Only the machine writes its fields. The machine
// clears Body and Scan when it gives them away.
type Request struct {
	// Set by its headers.
	Headers    wire.Headers
	unnamed    bool // the request came without an id, and the plugin made the one in Headers
	Path       openai.Path
	scope      scope
	Start      time.Time // when the data plane received the request
	Deadline   time.Time
	Attempt    int
	fullDuplex bool
	pieces     gather // of the body, until it is whole

	// Set by its end.
	Body     []byte
	Scan     *openai.Request // lent by Rules.Scans until the request is routed, or decode answers
	trailers bool
	kept     []byte // the body, to compare the words of a worker's error with; nil: it is longer than mostKept
}

// scope is how much of a request is read.
type scope uint8

const (
	// scopeRead: all that routing needs is read.
	scopeRead scope = iota
	// scopePassed: the path is not read here. One worker, picked by load, gets the
	// request unchanged. Of the body only the model is read, and whether the body sets
	// what only a router may set. Nothing of the answer is read.
	scopePassed
	// scopeBare: the same, for a request that is only headers.
	scopeBare
)

// Passes reports whether the request is on a path that is not read here.
func (q *Request) Passes() bool { return q.scope != scopeRead }

// Gathered returns how many bytes have come of a body that is not whole.
func (q *Request) Gathered() int { return q.pieces.size }

// come takes the request's headers.
func (q *Request) come(ev *Event, w Way) {
	q.Headers, q.unnamed, q.fullDuplex = *ev.Headers, ev.Unnamed, ev.FullDuplex
	if w.Plain() {
		q.distrust()
	}
	q.Attempt = q.Headers.Attempt()
}

// distrust forgets what only a listener of ours may say. The data plane of a plain
// gateway strips nothing, so a client has said it.
func (q *Request) distrust() {
	h := &q.Headers
	for _, x := range []struct {
		name  string
		value *string
	}{
		{prefill.HeaderStart, &h.Start}, {prefill.HeaderLeg, &h.Leg}, {prefill.HeaderLocalReply, &h.LocalReply},
	} {
		if *x.value != "" {
			h.Strange = append(h.Strange, x.name)
			*x.value = ""
		}
	}
	h.AttemptCount = "" // a count of Envoy's, or of the client's
}

// setDeadline sets the deadline, and refuses a time-out that is malformed or over. It
// counts the client's time-out from when the data plane received the request, so that a
// fresh attempt does not get the whole time again.
func (q *Request) setDeadline(now, received time.Time, r *Rules) *Failure {
	q.Start = received
	if q.Start.IsZero() {
		q.Start = now
	}
	timeout := r.DefaultTimeout
	if q.Headers.Timeout != "" {
		ms, err := strconv.ParseFloat(q.Headers.Timeout, 64)
		if err != nil || !(ms > 0 && ms < 1<<53) {
			return &failBadTimeout
		}
		most := float64(r.MaxTimeout) / float64(time.Millisecond)
		timeout = time.Duration(min(ms, most) * float64(time.Millisecond))
	}
	q.Deadline = q.Start.Add(min(timeout, r.MaxTimeout))
	if !q.Deadline.After(now) {
		return &failDeadline
	}
	return nil
}

// Target is within which time the client wants the first token; 0: it does not say, or not as a number of
// milliseconds. Such a value is no reason to refuse a request: it only says whom to pick.
func (q *Request) Target() time.Duration {
	ms, err := strconv.ParseFloat(q.Headers.Target, 64)
	if err != nil || !(ms > 0 && ms < 1e9) {
		return 0
	}
	return time.Duration(ms * float64(time.Millisecond))
}

// accept sets how much of the request is read. It returns a failure if the headers show
// that the request cannot be served.
func (q *Request) accept(ev *Event, w Way, r *Rules) *Failure {
	path, known := openai.ParsePath(q.Headers.Path)
	if !known && (mayPass(q.Headers.Path, ev.EndOfStream, w, r) || namesKept(q.Headers.Path, r)) {
		path, q.scope = openai.Other, scopePassed
		if ev.EndOfStream {
			q.scope = scopeBare
			return nil
		}
	}
	switch {
	case !known && !q.Passes():
		return UnknownPath(q.Headers.Path, &r.Served, somePass(ev.EndOfStream, w, r))
	case known && q.Headers.Method != "POST":
		return &failMethod
	case ev.EndOfStream:
		return &failNoBody
	case q.Headers.Encoded:
		return &failEncoded
	case q.Headers.Length.N > int64(r.MaxBodyBytes):
		return &failBodyTooLarge
	case ev.Full:
		return q.noRoom()
	}
	q.Path = path
	q.pieces.announced = q.Headers.Length.Within(r.MaxBodyBytes)
	return nil
}

// mayPass reports whether a request goes on to one worker though its path is not read
// here. The path must not be one that controls an engine. A request without a body names
// no model, so only a gateway gets an endpoint for it: a gateway wants one for each
// request.
func mayPass(path string, bare bool, w Way, r *Rules) bool {
	return somePass(bare, w, r) && !openai.Control(path)
}

// somePass is mayPass but for the path.
func somePass(bare bool, w Way, r *Rules) bool { return r.PassOther && (w.Gateway() || !bare) }

// namesKept reports whether a request without a body is about a response that a worker keeps.
func namesKept(path string, r *Rules) bool { return r.PassOther && openai.ResponseAt(path) != "" }

// question returns the effect that answers a path which the plugin serves itself: the list
// of models, one model of the list, which it returns too, or whether the plugin is ready. It
// returns 0 for any other path.
func question(path string) (op Op, model string) {
	path, _, _ = strings.Cut(path, "?")
	if path == "/health" {
		return OpHealth, ""
	}
	rest, ok := strings.CutPrefix(path, "/v1/models")
	if !ok || rest != "" && rest[0] != '/' {
		return 0, ""
	}
	model = strings.TrimPrefix(rest, "/")
	name, err := url.PathUnescape(model)
	if err == nil {
		model = name
	}
	return OpModels, model
}

// noRoom returns the refusal of a body for which there is no room. Room for a large body
// is free only after other large ones have come. A client that asks again before that
// slows down the requests that are served, above all the small ones, so the refusal of a
// large body has a longer Retry-After.
func (q *Request) noRoom() *Failure {
	f := failBodiesFull
	if q.Headers.Length.N > budget.Small || !q.Headers.Length.Said {
		f.RetryAfter = largeAgain(q.Headers.RequestID)
	}
	return &f
}

// largeAgain returns a wait of 5 to 14 s that depends on the request's id. So of many
// requests that are refused together only few come again at the same time.
func largeAgain(requestID string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(requestID))
	return time.Duration(5+h.Sum32()%10) * time.Second
}

// take adds a piece of the body. It returns whether the body is whole, or why it is
// refused.
func (q *Request) take(ev *Event, r *Rules) (whole bool, refused *Failure) {
	if q.pieces.size+len(ev.Body) > r.MaxBodyBytes {
		return false, &failBodyTooLarge
	}
	if ev.Full {
		return false, q.noRoom()
	}
	whole = ev.EndOfStream || !q.fullDuplex // a buffered body comes whole, also if trailers follow
	if whole && q.pieces.size == 0 {
		q.Body = ev.Body
	} else {
		q.pieces.add(r.Buffers, ev.Body)
	}
	return whole, nil
}

// read scans the body, which is whole.
func (q *Request) read(r *Rules) *Failure {
	if q.Body == nil {
		q.Body = q.pieces.take(r.Buffers)
	}
	q.Scan = r.Scans.Borrow()
	var err error
	if q.Passes() {
		err = openai.ScanOther(q.Headers.ContentType, q.Body, q.Scan)
	} else {
		err = openai.Scan(q.Path, q.Body, q.Scan)
	}
	if err != nil {
		return BadBody(err)
	}
	if len(q.Body) <= mostKept {
		q.kept = bytes.Clone(q.Body)
	}
	return nil
}

// BadBody returns the failure for an error of the body's scanner.
func BadBody(err error) *Failure {
	f := Failure{Code: "invalid_body", Status: 400, Kind: kindInvalid, Message: "The body cannot be read."}
	var e *openai.Error
	if errors.As(err, &e) {
		f.Code, f.Message, f.Param = e.Kind.String(), e.Error(), e.Field
	}
	return &f
}

// giveBody gives the body away, to be sent. A fresh attempt is a new stream, which gets
// the body again.
func (q *Request) giveBody() []byte {
	b := q.Body
	q.Body = nil
	return b
}

// forget gives back the body and its scan.
func (q *Request) forget(r *Rules) {
	if q.Scan != nil {
		r.Scans.Return(q.Scan)
		q.Scan = nil
	}
	if q.Body != nil {
		r.Buffers.Return(q.Body)
		q.Body = nil
	}
}

// Compares reports whether the request is kept, so that the words of a worker's error can be
// compared with it.
func (q *Request) Compares() bool { return q.kept != nil }

// leftover returns the client's headers that are removed. Of those that name workers, it
// returns the ones that set does not replace: workers are told only what was decided. An
// answer with an encoding could not be read (docs/behaviour.md#encoded-answers).
func (q *Request) leftover(set []wire.Header, w Way) (out []string) {
	if q.Headers.AcceptEncoding != "" {
		out = append(out, "accept-encoding")
	}
	if len(q.Headers.Named) == 0 && (!w.Plain() || len(q.Headers.Strange) == 0) {
		return out
	}
	known := make(map[string]bool, len(set)) // a map, since a request may have thousands of headers
	for i := range set {
		known[set[i].Name] = true
	}
	drop := func(name string) {
		// A message cannot carry a name that is not UTF-8, and nobody reads such a name.
		if !known[name] && utf8.ValidString(name) {
			known[name] = true
			out = append(out, name)
		}
	}
	for _, h := range q.Headers.Named {
		drop(h.Name)
	}
	if w.Plain() { // a plain gateway does not strip what clients may not set
		for _, name := range q.Headers.Strange {
			drop(name)
		}
	}
	return out
}
