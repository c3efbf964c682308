package handoff

import (
	"math/rand/v2"
	"slices"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// The range of TensorRT-LLM's disagg_request_id. The engine takes a smaller number as a
// local id. Its lowest number was 2^42 and is 2^40 now; 2^42 is in the range of both.
const (
	MinRequestID = 1 << 42
	MaxRequestID = 1<<63 - 1
)

// DrawRequestID draws the id of one attempt. No other request of any router may have
// the same id at the same time. If a million requests run at once, the probability that
// two of them have the same random id is below one in ten million.
func DrawRequestID(r *rand.Rand) uint64 {
	return MinRequestID + r.Uint64N(MaxRequestID-MinRequestID+1)
}

// OneToken reports whether each generation of the request has at most one token.
func OneToken(r *openai.Request) bool { return r.MaxTokens == 0 || r.MaxTokens == 1 }

// Alone reports whether prefill's answer is the whole response, since it has all tokens of the
// request. If decode draws the first token again, it is not: then a worker that is to prefill can
// serve the whole request itself, or the request is handed over like any other.
func Alone(k Kind, r *openai.Request) bool {
	return OneToken(r) && k.PrefillFirst() && !k.First.DrawsAgain
}

// handOffRoom is what the bodies need beyond the client's own body and the hand-off, in
// bytes.
const handOffRoom = 320

// AppendPrefill appends prefill's body: one token, no stream, and the members that make
// the engine hold its KV for a decode. The id is the disagg_request_id for
// TensorRT-LLM, from MinRequestID to MaxRequestID; other kinds ignore it. If the flag
// alone is set, the body has the client's own limit, no stream and no hand-off. dst
// must not share memory with body. If dst has room enough, nothing is allocated.
func AppendPrefill(dst, body []byte, r *openai.Request, k Kind, id uint64, alone bool) []byte {
	dst = slices.Grow(dst, len(body)+handOffRoom)
	if alone {
		return openai.AppendEdited(dst, body, r, noStream(r)...)
	}
	var buf [maxEdits]openai.Edit
	dst = openai.AppendEdited(dst, body, r, oneToken(clean(buf[:0]), body, r)...)
	dst = dst[:len(dst)-(len(body)-r.End())]
	if k.PrefillFirst() {
		dst = k.First.Hold(dst, id)
	}
	return append(dst, body[r.End():]...)
}

// AppendDecode appends decode's body: the client's own with the hand-off of res, which
// ReadAnswer has read from answer. If nothing is held, the body is the client's own.
// dst must share memory with neither body nor answer. If dst has room enough, nothing
// is allocated.
func AppendDecode(dst, body []byte, r *openai.Request, k Kind, answer []byte, res Result) []byte {
	var buf [maxEdits]openai.Edit
	return appendDecode(dst, body, r, k, answer, res, buf[:0])
}

// AppendCollect is AppendDecode for a request that only collects the held KV: one
// token, no stream.
func AppendCollect(dst, body []byte, r *openai.Request, k Kind, answer []byte, res Result) []byte {
	var buf [maxEdits]openai.Edit
	return appendDecode(dst, body, r, k, answer, res, oneToken(buf[:0], body, r))
}

func appendDecode(dst, body []byte, r *openai.Request, k Kind, answer []byte, res Result, edits []openai.Edit) []byte {
	size := func(s openai.Span) int { return s.End - s.Start }
	dst = slices.Grow(dst, len(body)+size(res.HandOff)+size(res.PromptIDs)+size(res.Usage)+handOffRoom)
	edits = clean(edits)
	if ids := res.PromptIDs; ids.End != 0 {
		takes, replaced := k.First.IDs(r.Path)
		edits = append(edits, openai.Edit{Field: takes, Value: ids.Of(answer)})
		if replaced != openai.NoField {
			edits = append(edits, openai.Edit{Field: replaced})
		}
	}
	dst = openai.AppendEdited(dst, body, r, edits...)
	// A scanned body has at least a model and a prompt, so the comma in front is right.
	dst = dst[:len(dst)-(len(body)-r.End())]
	if res.Held() {
		dst = k.First.Append(dst, answer, res.Parts)
	}
	return append(dst, body[r.End():]...)
}

// maxEdits is the most edits of one body.
const maxEdits = 12

// Values of edits. Nobody changes them.
var (
	One = []byte("1")
	No  = []byte("false")
)

// clean appends edits that remove a hand-off which a body scanned with
// [openai.ScanInjected] may carry already, so that no body has a key twice.
func clean(edits []openai.Edit) []openai.Edit {
	return append(edits, openai.Edit{Field: openai.KVTransferParams}, openai.Edit{Field: openai.DisaggregatedParams})
}

// oneToken appends the edits that ask for one token and no stream. stream_options is
// removed, since engines refuse it without a stream. A chat keeps the name that its client has
// for the limit: TensorRT-LLM refuses both names together (docs/engines.md#trt-strict).
func oneToken(edits []openai.Edit, body []byte, r *openai.Request) []openai.Edit {
	switch r.Path {
	case openai.TokensIn:
		edits = append(edits, openai.Edit{Field: openai.MaxNewTokens, Value: One}, floor(body, r, openai.MinNewTokens))
	case openai.Responses: // of which prefill is to keep nothing
		edits = append(edits, openai.Edit{Field: openai.MaxOutputTokens, Value: One}, openai.Edit{Field: openai.Store, Value: No})
	case openai.AnthropicMessages:
		edits = append(edits, openai.Edit{Field: openai.MaxTokens, Value: One})
	default:
		if r.Path != openai.ChatCompletions || r.Has(openai.MaxTokens) || !r.Has(openai.MaxCompletionTokens) {
			edits = append(edits, openai.Edit{Field: openai.MaxTokens, Value: One})
		}
		edits = append(edits, floor(body, r, openai.MinTokens), floor(body, r, openai.MinCompletionTokens))
	}
	edits = append(edits, openai.Edit{Field: openai.StreamOptions}, openai.Edit{Field: openai.Stream, Value: No})
	if r.Has(openai.MaxCompletionTokens) {
		edits = append(edits, openai.Edit{Field: openai.MaxCompletionTokens, Value: One})
	}
	return edits
}

// floor returns the edit of a minimum of tokens. A minimum becomes one, the highest
// that the limit allows: it still forbids the engine to end the text with its first
// token, which would then be the client's whole answer. A minimum of zero or less is
// removed.
func floor(body []byte, r *openai.Request, f openai.Field) openai.Edit {
	if !ForbidsAnEnd(body, r, f) {
		return openai.Edit{Field: f}
	}
	return openai.Edit{Field: f, Value: One}
}

// ForbidsAnEnd reports whether f is a minimum above zero. A value that is no number
// counts as one: the engine then refuses it itself.
func ForbidsAnEnd(body []byte, r *openai.Request, f openai.Field) bool {
	if !r.Given(body, f) {
		return false
	}
	v := r.Value(f).Of(body)
	return v[0] != '-' && string(v) != "0"
}

// noStream returns the edits that turn the stream off and leave the rest as the client
// sent it.
func noStream(r *openai.Request) []openai.Edit {
	edits := streamOff[:]
	if !r.Has(openai.Stream) {
		edits = edits[:1]
	}
	return edits
}

var streamOff = [...]openai.Edit{{Field: openai.StreamOptions}, {Field: openai.Stream, Value: No}}
