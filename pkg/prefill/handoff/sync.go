package handoff

import "github.com/seed-60ae5743/baton/internal/openai"

// The range of TensorRT-LLM's disagg_request_id. The engine takes a smaller one
// for a local id; the floor was 2^42 and is 2^40 by now. A caller draws an id
// that no other request of any router has, for each attempt anew.
const (
	MinRequestID = 1 << 42
	MaxRequestID = 1<<63 - 1
)

// Alone reports whether prefill's answer is the response whatever it is: at most
// one token is asked for, by any number of generations.
func Alone(r *openai.Request) bool { return false }

// Obstacle returns why the request cannot be handed from prefill to decode, as
// it stands in labels, or "" where nothing is in the way. body is what r was
// read from.
func Obstacle(k Kind, body []byte, r *openai.Request) string { return "" }

// AppendPrefill appends prefill's body: one token, no stream, and what makes the
// engine hold its KV for a decode. id is ContextFirst's disagg_request_id, from
// MinRequestID to MaxRequestID; the others ignore it. alone: the client's own
// limit, no stream and no hand-off. dst must not share memory with body; given
// room in it, nothing is allocated.
func AppendPrefill(dst, body []byte, r *openai.Request, k Kind, id uint64, alone bool) []byte {
	return dst
}

// ReadAnswer judges prefill's whole answer of status 200. alone is what
// AppendPrefill was told. An error is a [Malformed]: nothing of such an answer
// may be used. It keeps nothing of answer and allocates nothing.
func ReadAnswer(k Kind, answer []byte, alone bool) (Result, error) { return Result{}, nil }

// AppendDecode appends decode's body: the client's own, with the hand-off of
// res in it. res is what ReadAnswer made of answer. dst must share memory with
// neither; given room in it, nothing is allocated.
func AppendDecode(dst, body []byte, r *openai.Request, k Kind, answer []byte, res Result) []byte {
	return dst
}

// AppendCollect is AppendDecode for a request whose only purpose is that decode
// takes the held KV: one token, no stream.
func AppendCollect(dst, body []byte, r *openai.Request, k Kind, answer []byte, res Result) []byte {
	return dst
}

// AppendFinal appends the client's response made of prefill's own answer (C8),
// and returns its content type: the answer without the hand-off and what the
// engine added for it, or, if the client streams, the same as server-sent
// events. body is what r was read from. An error means that the answer has not
// the shape of the path's answers; dst is then returned as it came.
func AppendFinal(dst, answer []byte, r *openai.Request, body []byte, k Kind) (out []byte, contentType string, err error) {
	return dst, "", nil
}
