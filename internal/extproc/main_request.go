package extproc

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

// request is what has come of a request. Nobody else writes its fields but the machine,
// which gives its body and its scan away.
type request struct {
	// Set by its headers.
	headers    wire.Headers
	unnamed    bool // it has come without a name: the one in headers is ours
	path       openai.Path
	scope      scope
	start      time.Time // when the data plane received it
	deadline   time.Time
	attempt    int
	fullDuplex bool
	pieces     gather // of the body, until it is whole

	// Set by its end.
	body     []byte
	scan     *openai.Request // lent until the request is routed, or decode answers
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

// passes reports whether the request is on a path that is not read here.
func (q *request) passes() bool { return q.scope != scopeRead }

// gathered is how much has come of a body that is not whole.
func (q *request) gathered() int { return q.pieces.size }

// come takes the headers.
func (q *request) come(ev *event, w way) {
	q.headers, q.unnamed, q.fullDuplex = *ev.headers, ev.unnamed, ev.fullDuplex
	if w.plain {
		q.distrust()
	}
	q.attempt = q.headers.Attempt()
}

// distrust forgets what only a listener of ours may say: on the way of a stream
// whose data plane strips nothing, a client has said it.
func (q *request) distrust() {
	h := &q.headers
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
func (q *request) setDeadline(now, received time.Time, r *rules) *failure {
	q.start = received
	if q.start.IsZero() {
		q.start = now
	}
	timeout := r.defaultTimeout
	if q.headers.Timeout != "" {
		ms, err := strconv.ParseInt(q.headers.Timeout, 10, 32)
		if err != nil || ms <= 0 {
			return &failBadTimeout
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	q.deadline = q.start.Add(min(timeout, r.maxTimeout))
	if !q.deadline.After(now) {
		return &failDeadline
	}
	return nil
}

// accept says how much of the request is read, and refuses what cannot be served by its
// headers.
func (q *request) accept(ev *event, w way, r *rules) *failure {
	path, known := openai.ParsePath(q.headers.Path)
	if !known && mayPass(q.headers.Path, ev.endOfStream, w, r) {
		path, q.scope = openai.Other, scopePassed
		if ev.endOfStream {
			q.scope = scopeBare
			return nil
		}
	}
	switch {
	case !known && !q.passes():
		return &failUnknownPath
	case known && q.headers.Method != "POST":
		return &failMethod
	case ev.endOfStream:
		return &failNoBody
	case q.headers.Length.N > int64(r.maxBodyBytes):
		return &failBodyTooLarge
	case ev.full:
		return q.noRoom()
	}
	q.path = path
	q.pieces.announced = q.headers.Length.Within(r.maxBodyBytes)
	return nil
}

// mayPass reports whether a request is passed on to one worker though its path is not read
// here: it is none that an engine is controlled by. Without a body it names no model: only
// a gateway, which wants an endpoint for each request, gets one for it.
func mayPass(path string, bare bool, w way, r *rules) bool {
	return r.passOther && (w.gateway || !bare) && !openai.Control(path)
}

// modelsPath reports whether a path is the list of models, or one of it, and which.
func modelsPath(path string) (only string, ok bool) {
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
func (q *request) noRoom() *failure {
	f := failBodiesFull
	if q.headers.Length.N > budget.Small || !q.headers.Length.Said {
		f.retryAfter = largeAgain(q.headers.RequestID)
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
func (q *request) take(ev *event, r *rules) (whole bool, refused *failure) {
	if q.pieces.size+len(ev.body) > r.maxBodyBytes {
		return false, &failBodyTooLarge
	}
	if ev.full {
		return false, q.noRoom()
	}
	whole = ev.endOfStream || !q.fullDuplex // buffered, it is whole, though trailers may end it
	if whole && q.pieces.size == 0 {
		q.body = ev.body
	} else {
		q.pieces.add(r.buffers, ev.body)
	}
	return whole, nil
}

// read reads the body, which is whole.
func (q *request) read(r *rules) *failure {
	if q.body == nil {
		q.body = q.pieces.take(r.buffers)
	}
	q.scan = r.scans.Borrow()
	var err error
	if q.passes() {
		err = openai.ScanOther(q.headers.ContentType, q.body, q.scan)
	} else {
		err = openai.Scan(q.path, q.body, q.scan)
	}
	if err != nil {
		return badBody(err)
	}
	return nil
}

// badBody turns the scanner's verdict into a row of the failure table.
func badBody(err error) *failure {
	f := failure{code: "invalid_body", status: 400, kind: kindInvalid, message: "The body cannot be read."}
	var e *openai.Error
	if errors.As(err, &e) {
		f.code, f.message, f.param = e.Kind.String(), e.Error(), e.Field
	}
	return &f
}

// giveBody hands the body on, to be sent: a fresh attempt is a new stream with its own.
func (q *request) giveBody() []byte {
	b := q.body
	q.body = nil
	return b
}

// forget gives back the body and what was read of it.
func (q *request) forget(r *rules) {
	if q.scan != nil {
		r.scans.Return(q.scan)
		q.scan = nil
	}
	if q.body != nil {
		r.buffers.Return(q.body)
		q.body = nil
	}
}

// leftover lists the headers of others that name workers and that set does not
// replace: behind us only what was decided is told.
func (q *request) leftover(set []wire.Header, w way) []string {
	if len(q.headers.Named) == 0 && (!w.plain || len(q.headers.Strange) == 0) {
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
	for _, h := range q.headers.Named {
		drop(h.Name)
	}
	if w.plain { // nobody has stripped what clients may not set
		for _, name := range q.headers.Strange {
			drop(name)
		}
	}
	return out
}
