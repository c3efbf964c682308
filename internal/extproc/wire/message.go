package wire

import (
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"
)

// Kind says which of Envoy's messages something is, or answers.
type Kind uint8

// The kinds, in the order in which Envoy sends them.
const (
	RequestHeaders Kind = iota + 1
	RequestBody
	RequestTrailers
	ResponseHeaders
	ResponseBody
	ResponseTrailers
	Malformed // what cannot be read
)

// Message is one ProcessingRequest. Its kind is 0 where it is none of the six: newer
// proxies send notes on flow control.
type Message struct {
	Kind         Kind
	EndOfStream  bool
	FullDuplex   bool     // the filter streams bodies of requests; only the first message says it
	AnswerBodies bool     // it sends those of answers, too; as above
	AnswerDuplex bool     // … and streams them
	Headers      *Headers // RequestHeaders, ResponseHeaders
	Body         []byte   // RequestBody, ResponseBody: a buffer of the pool, with BodyRoom; the receiver's
	Hints        *Hints   // what the data plane says beside the message; nil: nothing
}

// BodyRoom is by how many bytes the body of a message can grow where it is.
const BodyRoom = 512

// Headers is what is read of a header map. Names and values are copied strings; absent is
// empty.
type Headers struct {
	Method, Path                       string
	Length                             Length
	RequestID, Traceparent, Tracestate string
	Start, AttemptCount, Timeout       string
	Authorization                      string
	Leg, Debug                         string
	Status, LocalReply, RetryAfter     string
	ContentType                        string
	All                                []byte   // a request's, for EachHeader, where Config.KeepHeaders is set
	Named                              []Header // those of Config.Named, as they came
	Strange                            []string // names of those that only routers may set
	Selection                          []string // values of HeaderSelection
}

// Attempt is the number of the request's attempt, from 1, as Envoy counts them.
func (h *Headers) Attempt() int {
	n, _ := strconv.Atoi(h.AttemptCount)
	return max(n, 1)
}

// Header is a name, in lower case, with its value.
type Header struct{ Name, Value string }

// Length is what a content-length says of a body. The zero value says nothing.
type Length struct {
	N    int64
	Said bool
}

// LengthOf reads a content-length.
func LengthOf(contentLength string) Length {
	n, err := strconv.ParseUint(contentLength, 10, 63)
	if err != nil {
		return Length{}
	}
	return Length{int64(n), true}
}

// Within is the length, 0 where none is said, or none that may be.
func (l Length) Within(most int) int {
	if l.N > int64(most) {
		return 0
	}
	return int(l.N)
}

// Hints is what a data plane says beside one message: metadata and attributes, as the
// endpoint picker protocol has them (GAIE proposal 004).
type Hints struct {
	Subset   *structpb.Value // who may be picked; nil: not said
	Served   string          // who has answered; empty: not said
	Upstream string          // the same, as Envoy's attribute
}
