package extproc

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// outgoing is one ProcessingResponse, already written but for its body, which
// stays where it is: gRPC sends the three parts one after the other and gives
// the body's buffer back once it is on the wire.
type outgoing struct {
	head []byte
	body mem.Buffer // nil: none
	tail []byte
}

func (o *outgoing) buffers() mem.BufferSlice {
	if o.body == nil {
		return mem.BufferSlice{mem.SliceBuffer(o.head)}
	}
	return mem.BufferSlice{mem.SliceBuffer(o.head), o.body, mem.SliceBuffer(o.tail)}
}

// protoMessage is a response that is built of protos: the rare ones.
func protoMessage(r *extprocv3.ProcessingResponse) (*outgoing, error) {
	b, err := proto.Marshal(r)
	return &outgoing{head: b}, err
}

// Field numbers of ProcessingResponse and of the messages in it.
const (
	fieldAnswerRequestHeaders  = 1
	fieldAnswerResponseHeaders = 2
	fieldAnswerRequestBody     = 3
	fieldAnswerResponseBody    = 4
	fieldDynamicMetadata       = 8

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

// sized returns the bytes that a field of n bytes takes with tag and length.
// Every field number here is below 16, so that a tag is one byte.
func sized(n int) int { return 1 + protowire.SizeBytes(n) }

func appendTag(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

func headerSize(h *kv) (value, option int) {
	value = sized(len(h.name)) + sized(len(h.value))
	return value, sized(value) + 2
}

func mutationSize(set []kv, remove []string) int {
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

// appendMutation appends a HeaderMutation: raw values that overwrite.
func appendMutation(b []byte, set []kv, remove []string) []byte {
	for i := range set {
		h := &set[i]
		value, option := headerSize(h)
		b = appendTag(b, fieldSetHeaders, option)
		b = appendTag(b, fieldOptionHeader, value)
		b = appendTag(b, fieldValueKey, len(h.name))
		b = append(b, h.name...)
		b = appendTag(b, fieldValueRaw, len(h.value))
		b = append(b, h.value...)
		b = protowire.AppendTag(b, fieldOptionAction, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
	}
	for _, r := range remove {
		b = appendTag(b, fieldRemoveHeaders, len(r))
		b = append(b, r...)
	}
	return b
}

// extras is what an answer to the request says besides its headers and body.
type extras struct {
	metadata []byte // a written ProcessingResponse of nothing but dynamic metadata
	newRoute bool   // the headers choose the route: Envoy is to look it up again
}

// extrasOf returns those of a route, beside the metadata that it has.
func extrasOf(e *effect, metadata []byte) extras {
	if e.token == "" {
		return extras{metadata: metadata}
	}
	return extras{metadata: appendTokenMetadata(slices.Clip(metadata), e.token), newRoute: e.newRoute}
}

// size is what newRoute takes in a CommonResponse.
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

// headersAnswer answers request or response headers.
func headersAnswer(field protowire.Number, set []kv, remove []string, x extras) *outgoing {
	mutation := mutationSize(set, remove)
	common := x.size()
	if mutation > 0 {
		common += sized(mutation)
	}
	b := make([]byte, 0, sized(sized(common))+len(x.metadata)+8)
	if common == 0 {
		b = appendTag(b, field, 0)
		return &outgoing{head: append(b, x.metadata...)}
	}
	b = appendTag(b, field, sized(common))
	b = appendTag(b, fieldResponse, common)
	if mutation > 0 {
		b = appendTag(b, fieldHeaderMutation, mutation)
		b = appendMutation(b, set, remove)
	}
	return &outgoing{head: append(x.appendRoute(b), x.metadata...)}
}

// bodyAnswer answers a buffered request body: headers, and the new body unless
// it is nil.
func bodyAnswer(set []kv, remove []string, body mem.Buffer, x extras) *outgoing {
	mutation, common, length := mutationSize(set, remove), x.size(), 0
	if mutation > 0 {
		common += sized(mutation)
	}
	if body != nil {
		length = sized(body.Len())
		common += sized(length)
	}
	b := make([]byte, 0, 64+mutation)
	b = appendTag(b, fieldAnswerRequestBody, sized(common))
	b = appendTag(b, fieldResponse, common)
	if mutation > 0 {
		b = appendTag(b, fieldHeaderMutation, mutation)
		b = appendMutation(b, set, remove)
	}
	b = x.appendRoute(b)
	if body == nil {
		return &outgoing{head: append(b, x.metadata...)}
	}
	b = appendTag(b, fieldBodyMutation, length)
	b = appendTag(b, fieldMutationBody, body.Len())
	return &outgoing{head: b, body: body, tail: x.metadata}
}

// chunkAnswer is one piece of a full-duplex body.
func chunkAnswer(field protowire.Number, piece mem.Buffer, last bool) *outgoing {
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
	b = appendTag(b, field, sized(common))
	b = appendTag(b, fieldResponse, common)
	b = appendTag(b, fieldBodyMutation, mutation)
	b = appendTag(b, fieldMutationStream, streamed)
	if n == 0 {
		piece.Free()
		return &outgoing{head: append(b, tail...)}
	}
	b = appendTag(b, fieldStreamBody, n)
	return &outgoing{head: b, body: piece, tail: tail}
}

// Get and Put make the pool one of gRPC's kind.
func (p *bufferPool) Get(n int) *[]byte {
	b := p.get(n)[:n]
	return &b
}

// Put takes a buffer back from gRPC.
func (p *bufferPool) Put(b *[]byte) { p.put(*b) }

// lend hands a body to gRPC, which gives it back when it is sent. A body that
// is not of the pool is left to the collector.
func (p *bufferPool) lend(body []byte) mem.Buffer {
	if len(body) == 0 {
		return mem.SliceBuffer(nil)
	}
	return mem.NewBuffer(&body, p)
}

// appendTokenMetadata appends dynamic metadata that holds a token. The filter that
// opens the stream of an answer's first events hands it back (see firstStream), and so
// does Envoy's access log.
func appendTokenMetadata(b []byte, token string) []byte {
	value := sized(len(token))
	entry := sized(len(metadataLeg)) + sized(value)
	inner := sized(entry)
	outer := sized(len(metadataSpace)) + sized(sized(inner))
	b = appendTag(b, fieldDynamicMetadata, sized(outer))
	b = appendTag(b, fieldStructFields, outer)
	b = append(appendTag(b, fieldEntryKey, len(metadataSpace)), metadataSpace...)
	b = appendTag(b, fieldEntryValue, sized(inner))
	b = appendTag(b, fieldValueOfStruct, inner)
	b = appendTag(b, fieldStructFields, entry)
	b = append(appendTag(b, fieldEntryKey, len(metadataLeg)), metadataLeg...)
	b = appendTag(b, fieldEntryValue, value)
	return append(appendTag(b, fieldValueOfText, len(token)), token...)
}

// The namespace and the key of that metadata; Envoy's configuration names both.
const (
	metadataSpace = "baton"
	metadataLeg   = "leg"
)
