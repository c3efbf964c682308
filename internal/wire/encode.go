package wire

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Reply is one ProcessingResponse. All but its body is already written, and the body is
// not copied: gRPC sends the three parts one after the other, and returns the body's
// buffer once it is sent. A Reply is sent once, or dropped.
type Reply struct {
	head []byte
	body mem.Buffer // nil: there is none
	tail []byte
}

// Drop returns the body's buffer of a reply that is not sent.
func (r *Reply) Drop() {
	if r.body != nil {
		r.body.Free()
	}
}

func (r *Reply) buffers() mem.BufferSlice {
	if r.body == nil {
		return mem.BufferSlice{mem.SliceBuffer(r.head)}
	}
	return mem.BufferSlice{mem.SliceBuffer(r.head), r.body, mem.SliceBuffer(r.tail)}
}

// Field numbers of ProcessingResponse and of the messages in it.
const (
	fieldDynamicMetadata = 8

	fieldResponse       = 1 // HeadersResponse, BodyResponse
	fieldHeaderMutation = 2 // CommonResponse
	fieldBodyMutation   = 3
	fieldClearRoute     = 5
	fieldSetHeaders     = 1 // HeaderMutation
	fieldRemoveHeaders  = 2
	fieldOptionHeader   = 1 // HeaderValueOption
	fieldOptionAction   = 3
	fieldMutationBody   = 1 // BodyMutation
	fieldMutationStream = 3
	fieldValueOfText    = 3 // google.protobuf.Value
	fieldValueOfStruct  = 5
	fieldStreamBody     = 1 // StreamedBodyResponse
	fieldStreamEnd      = 2
)

// answerFields are the fields of ProcessingResponse that answer a message, by its kind.
var answerFields = [...]protowire.Number{
	RequestHeaders: 1, ResponseHeaders: 2, RequestBody: 3, ResponseBody: 4, RequestTrailers: 5, ResponseTrailers: 6,
}

// sized returns how many bytes a field with a value of n bytes takes, with its tag and
// its length. Every field number here is below 16, so that a tag is one byte.
func sized(n int) int { return 1 + protowire.SizeBytes(n) }

func appendTag(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

func headerSize(h *Header) (value, option int) {
	value = sized(len(h.Name)) + sized(len(h.Value))
	return value, sized(value) + 2
}

func mutationSize(set []Header, remove []string) int {
	n := 0
	for i := range set {
		_, option := headerSize(&set[i])
		n += sized(option)
	}
	for _, r := range remove {
		n += sized(len(r))
	}
	return n
}

// appendMutation appends a HeaderMutation: raw values that overwrite existing ones.
func appendMutation(b []byte, set []Header, remove []string) []byte {
	for i := range set {
		h := &set[i]
		value, option := headerSize(h)
		b = appendTag(b, fieldSetHeaders, option)
		b = appendTag(b, fieldOptionHeader, value)
		b = appendTag(b, fieldValueKey, len(h.Name))
		b = append(b, h.Name...)
		b = appendTag(b, fieldValueRaw, len(h.Value))
		b = append(b, h.Value...)
		b = protowire.AppendTag(b, fieldOptionAction, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
	}
	for _, r := range remove {
		b = appendTag(b, fieldRemoveHeaders, len(r))
		b = append(b, r...)
	}
	return b
}

// Writer makes the replies that hold bodies or destinations. Safe for concurrent use.
type Writer struct{ buffers *Pool }

// NewWriter returns a Writer. Bodies that are buffers of the pool return to it once sent.
func NewWriter(buffers *Pool) *Writer { return &Writer{buffers: buffers} }

// Route is the answer to the end of a request; it sends the request to its destination.
type Route struct {
	Set    []Header // a prefill.HeaderDestination in it is repeated as metadata
	Remove []string
	Body   []byte // the new body, which belongs to the writer from now on; nil: it stays as it came
	// Token goes with the answer as metadata. It comes back with the stream for an answer's
	// first events, and with Envoy's access log. Empty: none.
	Token    string
	NewRoute bool // with Token: Envoy looks the route up again, by the new headers
}

// Route answers a buffered request body.
func (w *Writer) Route(r *Route) Reply {
	var body mem.Buffer
	if r.Body != nil {
		body = w.buffers.lend(r.Body)
	}
	return answer(RequestBody, r.Set, r.Remove, body, extrasOf(r))
}

// RouteHeaders answers request headers, if the body is sent in Chunks or does not pass
// the plugin. It does not use the route's Body.
func (w *Writer) RouteHeaders(r *Route) Reply {
	return answer(RequestHeaders, r.Set, r.Remove, nil, extrasOf(r))
}

// Chunks sends a full-duplex body, which belongs to the writer from now on, in pieces of
// at most ChunkBytes, and at least in one. The kind is RequestBody or ResponseBody. If
// last is true, the body ends with the last piece.
func (w *Writer) Chunks(of Kind, body []byte, last bool, send func(Reply)) {
	rest := w.buffers.lend(body)
	for rest.Len() > ChunkBytes {
		var piece mem.Buffer
		piece, rest = mem.SplitUnsafe(rest, ChunkBytes)
		send(chunkAnswer(of, piece, false))
	}
	send(chunkAnswer(of, rest, last))
}

// Continue lets a message pass. A full-duplex body has to be sent back instead, with
// Chunks.
func Continue(of Kind) Reply { return answer(of, nil, nil, nil, extras{}) }

// Mutate answers request headers. The body is not part of it.
func Mutate(set []Header, remove []string) Reply {
	return answer(RequestHeaders, set, remove, nil, extras{})
}

// Relay answers response headers, or the buffered body for which they have waited. If gap is not
// empty, it says for how many seconds the answer's bytes may stand still; Envoy's configuration
// has a route for each such number.
func Relay(of Kind, set []Header, remove []string, gap string) Reply {
	var x extras
	if gap != "" {
		x.metadata = appendMetadata(nil, metadataSpace, metadataGap, gap)
	}
	return answer(of, set, remove, nil, x)
}

// extras is what an answer to the request carries besides its headers and body.
type extras struct {
	metadata []byte // a written ProcessingResponse with only dynamic metadata
	newRoute bool   // Envoy looks the route up again, by the new headers
}

// extrasOf returns the extras of a route. The destination is repeated as envoy.lb metadata: the
// endpoint picker protocol asks for both, and that they are equal.
func extrasOf(r *Route) (x extras) {
	for i := range r.Set {
		if r.Set[i].Name == prefill.HeaderDestination {
			x.metadata = appendMetadata(nil, lbNamespace, prefill.HeaderDestination, r.Set[i].Value)
			break
		}
	}
	if r.Token != "" {
		x.metadata, x.newRoute = appendMetadata(x.metadata, metadataSpace, metadataLeg, r.Token), r.NewRoute
	}
	return x
}

// size is how many bytes newRoute takes in a CommonResponse.
func (x *extras) size() int {
	if x.newRoute {
		return 2
	}
	return 0
}

func (x *extras) appendRoute(b []byte) []byte {
	if x.newRoute {
		b = protowire.AppendVarint(protowire.AppendTag(b, fieldClearRoute, protowire.VarintType), 1)
	}
	return b
}

// answer answers a message with headers, and with a new body unless that is nil.
func answer(of Kind, set []Header, remove []string, body mem.Buffer, x extras) Reply {
	mutation, common, length := mutationSize(set, remove), x.size(), 0
	if mutation > 0 {
		common += sized(mutation)
	}
	if body != nil {
		length = sized(body.Len())
		common += sized(length)
	}
	if common == 0 {
		return Reply{head: append(appendTag(make([]byte, 0, len(x.metadata)+8), answerFields[of], 0), x.metadata...)}
	}
	b := make([]byte, 0, 64+mutation+len(x.metadata))
	b = appendTag(b, answerFields[of], sized(common))
	b = appendTag(b, fieldResponse, common)
	if mutation > 0 {
		b = appendTag(b, fieldHeaderMutation, mutation)
		b = appendMutation(b, set, remove)
	}
	b = x.appendRoute(b)
	if body == nil {
		return Reply{head: append(b, x.metadata...)}
	}
	b = appendTag(b, fieldBodyMutation, length)
	b = appendTag(b, fieldMutationBody, body.Len())
	return Reply{head: b, body: body, tail: x.metadata}
}

// chunkAnswer is one piece of a full-duplex body.
func chunkAnswer(of Kind, piece mem.Buffer, last bool) Reply {
	n := piece.Len()
	streamed := 0
	if n > 0 {
		streamed += sized(n)
	}
	var tail []byte
	if last {
		tail = protowire.AppendVarint(protowire.AppendTag(nil, fieldStreamEnd, protowire.VarintType), 1)
		streamed += len(tail)
	}
	mutation := sized(streamed)
	common := sized(mutation)
	b := make([]byte, 0, 64)
	b = appendTag(b, answerFields[of], sized(common))
	b = appendTag(b, fieldResponse, common)
	b = appendTag(b, fieldBodyMutation, mutation)
	b = appendTag(b, fieldMutationStream, streamed)
	if n == 0 {
		piece.Free()
		return Reply{head: append(b, tail...)}
	}
	b = appendTag(b, fieldStreamBody, n)
	return Reply{head: b, body: piece, tail: tail}
}

// appendMetadata appends dynamic metadata with one text, as a ProcessingResponse with nothing else.
func appendMetadata(b []byte, space, key, text string) []byte {
	value := sized(len(text))
	entry := sized(len(key)) + sized(value)
	inner := sized(entry)
	outer := sized(len(space)) + sized(sized(inner))
	b = slices.Grow(b, sized(sized(outer)))
	b = appendTag(b, fieldDynamicMetadata, sized(outer))
	b = appendTag(b, fieldStructFields, outer)
	b = append(appendTag(b, fieldEntryKey, len(space)), space...)
	b = appendTag(b, fieldEntryValue, sized(inner))
	b = appendTag(b, fieldValueOfStruct, inner)
	b = appendTag(b, fieldStructFields, entry)
	b = append(appendTag(b, fieldEntryKey, len(key)), key...)
	b = appendTag(b, fieldEntryValue, value)
	return append(appendTag(b, fieldValueOfText, len(text)), text...)
}

// The namespace and the keys of that metadata; Envoy's configuration names them.
const (
	metadataSpace = "baton"
	metadataLeg   = "leg"
	metadataGap   = "gap"
)
