package wire

import (
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"
)

// Kind says which of Envoy's messages a message is, or which one a reply answers.
type Kind uint8

// The kinds, in the order in which Envoy sends them.
const (
	RequestHeaders Kind = iota + 1
	RequestBody
	RequestTrailers
	ResponseHeaders
	ResponseBody
	ResponseTrailers
	Malformed // a message that cannot be read
)

// Message is one ProcessingRequest. Its kind is 0 if it is none of the six: newer proxies
// send notes on flow control.
type Message struct {
	Kind         Kind
	EndOfStream  bool
	FullDuplex   bool     // the filter streams the bodies of requests; only the first message says it
	AnswerBodies bool     // the filter sends the bodies of answers, too; only the first message says it
	AnswerDuplex bool     // … and streams them
	Headers      *Headers // of RequestHeaders and ResponseHeaders
	Body         []byte   // of RequestBody and ResponseBody: a buffer of the pool with BodyRoom, which belongs to the receiver
	Hints        *Hints   // what the data plane sends beside the message; nil: nothing
}

// BodyRoom is by how many bytes the body of a message can grow in its buffer.
const BodyRoom = 512

// Headers is what is read of a header map. Names and values are copied; a header that is
// absent is empty.
type Headers struct {
	Method, Path                       string
	Length                             Length
	RequestID, Traceparent, Tracestate string
	Start, AttemptCount, Timeout       string
	Target                             string // prefill.HeaderTarget, or that of llm-d
	Leg, Debug                         string
	Status, LocalReply, RetryAfter     string
	Error                              string // HeaderError of an answer: in base64
	Location                           string
	ContentType, AcceptEncoding        string
	Encoded                            bool     // content-encoding names another encoding than identity
	All                                []byte   // all of a request's, for EachHeader; only with Config.KeepHeaders
	Named                              []Header // those that Config.Named chooses, in the order of the message
	Strange                            []string // the names of headers that only routers may set
	Unheeded                           uint8    // which of Unheeded's headers are there, a bit for each
	Selection                          []string // values of HeaderSelection
}

// Attempt is the number of the request's attempt, from 1, as Envoy counts it.
func (h *Headers) Attempt() int {
	n, _ := strconv.Atoi(h.AttemptCount)
	return max(n, 1)
}

// SaysWhy reports whether the headers begin an error of a worker's, and its body is so short
// that it can be read whole.
func (h *Headers) SaysWhy() bool {
	return h.LocalReply == "" && !h.Encoded && h.Status != "" && h.Status[0] != '2' && h.Length.Within(MaxWhy) > 0
}

// MaxWhy is how many bytes of an error are read.
const MaxWhy = 4 << 10

// Header is a name, in lower case, with its value.
type Header struct{ Name, Value string }

// Length is the body's length, as the header content-length gives it. The zero value
// means that the header does not say.
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

// Within returns the length; 0 if it is not known or is over the limit.
func (l Length) Within(most int) int {
	if l.N > int64(most) {
		return 0
	}
	return int(l.N)
}

// Hints is what a data plane sends beside one message: metadata and attributes, as in the
// endpoint picker protocol (GAIE proposal 004).
type Hints struct {
	Subset   *structpb.Value // the endpoints that may be picked; nil: not said
	Served   string          // the endpoint that has answered; empty: not said
	Upstream string          // the same, as Envoy's attribute
}
