package leg

import (
	"errors"
	"hash/fnv"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Request is what has come of a request. Nobody else writes its fields but the machine,
// which gives its body and its scan away.
type Request struct {
	// Set by its headers.
	Headers    wire.Headers
	unnamed    bool // it has come without a name: the one in headers is ours
	Path       openai.Path
	scope      scope
	Start      time.Time // when the data plane received it
	Deadline   time.Time
	Attempt    int
	fullDuplex bool
	pieces     gather // of the body, until it is whole

	// Set by its end.
	Body     []byte
	Scan     *openai.Request // lent until the request is routed, or decode answers
	trailers bool
}

// scope is how much of a request is read.
type scope uint8

const (
	// scopeRead: all that routing needs.
	scopeRead scope = iota
	// scopePassed: its path is not read here. One worker serves it, picked by load. Of its
	// body only the model is read, and whether it says what only a router may; the rest is
	// as it came. Of its answer nothing is read.
	scopePassed
	// scopeBare: the same, and headers are all there is.
	scopeBare
)

// Passes reports whether the request is on a path that is not read here.
func (q *Request) Passes() bool { return q.scope != scopeRead }

// Gathered is how much has come of a body that is not whole.
func (q *Request) Gathered() int { return q.pieces.size }

// come takes the headers.
func (q *Request) come(ev *Event, w Way) {
	q.Headers, q.unnamed, q.fullDuplex = *ev.Headers, ev.Unnamed, ev.FullDuplex
	if w.Plain() {
		q.distrust()
	}
	q.Attempt = q.Headers.Attempt()
}

// distrust forgets what only a listener of ours may say: on the way of a stream
// whose data plane strips nothing, a client has said it.
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
	h.AttemptCount = "" // Envoy's own, where it is not a client's
}

// setDeadline counts the client's time-out from Envoy's receipt of the request,
// so that a fresh attempt does not start the clock again.
func (q *Request) setDeadline(now, received time.Time, r *Rules) *Failure {
	q.Start = received
	if q.Start.IsZero() {
		q.Start = now
	}
	timeout := r.DefaultTimeout
	if q.Headers.Timeout != "" {
		ms, err := strconv.ParseInt(q.Headers.Timeout, 10, 32)
		if err != nil || ms <= 0 {
			return &failBadTimeout
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	q.Deadline = q.Start.Add(min(timeout, r.MaxTimeout))
	if !q.Deadline.After(now) {
		return &failDeadline
	}
	return nil
}

// accept says how much of the request is read, and refuses what cannot be served by its
// headers.
func (q *Request) accept(ev *Event, w Way, r *Rules) *Failure {
	path, known := openai.ParsePath(q.Headers.Path)
	if !known && mayPass(q.Headers.Path, ev.EndOfStream, w, r) {
		path, q.scope = openai.Other, scopePassed
		if ev.EndOfStream {
			q.scope = scopeBare
			return nil
		}
	}
	switch {
	case !known && !q.Passes():
		return &FailUnknownPath
	case known && q.Headers.Method != "POST":
		return &failMethod
	case ev.EndOfStream:
		return &failNoBody
	case q.Headers.Length.N > int64(r.MaxBodyBytes):
		return &failBodyTooLarge
	case ev.Full:
		return q.noRoom()
	}
	q.Path = path
	q.pieces.announced = q.Headers.Length.Within(r.MaxBodyBytes)
	return nil
}

// mayPass reports whether a request is passed on to one worker though its path is not read
// here: it is none that an engine is controlled by. Without a body it names no model: only
// a gateway, which wants an endpoint for each request, gets one for it.
func mayPass(path string, bare bool, w Way, r *Rules) bool {
	return r.PassOther && (w.Gateway() || !bare) && !openai.Control(path)
}

// ModelsPath reports whether a path is the list of models, or one of it, and which.
func ModelsPath(path string) (only string, ok bool) {
	path, _, _ = strings.Cut(path, "?")
	rest, ok := strings.CutPrefix(path, "/v1/models")
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	only = strings.TrimPrefix(rest, "/")
	name, err := url.PathUnescape(only)
	if err == nil {
		only = name
	}
	return only, true
}

// noRoom refuses a body. Room for a large one takes as long as others of its kind take to
// come: who asks for it at once again costs those that are served, small ones above all.
func (q *Request) noRoom() *Failure {
	f := failBodiesFull
	if q.Headers.Length.N > budget.Small || !q.Headers.Length.Said {
		f.RetryAfter = largeAgain(q.Headers.RequestID)
	}
	return &f
}

// largeAgain is 5 to 14 s, by the request's id: of many that are refused at once few come
// again at once.
func largeAgain(requestID string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(requestID))
	return time.Duration(5+h.Sum32()%10) * time.Second
}

// take takes a piece of the body, and reports whether it is whole.
func (q *Request) take(ev *Event, r *Rules) (whole bool, refused *Failure) {
	if q.pieces.size+len(ev.Body) > r.MaxBodyBytes {
		return false, &failBodyTooLarge
	}
	if ev.Full {
		return false, q.noRoom()
	}
	whole = ev.EndOfStream || !q.fullDuplex // buffered, it is whole, though trailers may end it
	if whole && q.pieces.size == 0 {
		q.Body = ev.Body
	} else {
		q.pieces.add(r.Buffers, ev.Body)
	}
	return whole, nil
}

// read reads the body, which is whole.
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
	return nil
}

// BadBody turns the scanner's verdict into a row of the failure table.
func BadBody(err error) *Failure {
	f := Failure{Code: "invalid_body", Status: 400, Kind: kindInvalid, Message: "The body cannot be read."}
	var e *openai.Error
	if errors.As(err, &e) {
		f.Code, f.Message, f.Param = e.Kind.String(), e.Error(), e.Field
	}
	return &f
}

// giveBody hands the body on, to be sent: a fresh attempt is a new stream with its own.
func (q *Request) giveBody() []byte {
	b := q.Body
	q.Body = nil
	return b
}

// forget gives back the body and what was read of it.
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

// leftover lists the headers of others that name workers and that set does not
// replace: behind us only what was decided is told.
func (q *Request) leftover(set []wire.Header, w Way) []string {
	if len(q.Headers.Named) == 0 && (!w.Plain() || len(q.Headers.Strange) == 0) {
		return nil
	}
	var out []string
	known := make(map[string]bool, len(set)) // of thousands of headers, too
	for i := range set {
		known[set[i].Name] = true
	}
	drop := func(name string) {
		// A name that is no UTF-8 cannot be said in a message, and nobody reads it.
		if !known[name] && utf8.ValidString(name) {
			known[name] = true
			out = append(out, name)
		}
	}
	for _, h := range q.Headers.Named {
		drop(h.Name)
	}
	if w.Plain() { // nobody has stripped what clients may not set
		for _, name := range q.Headers.Strange {
			drop(name)
		}
	}
	return out
}
