package wire

import (
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
)

// Codec is gRPC's codec for a server of Envoy's streams. It reads a ProcessingRequest
// into a *Message and writes a *Reply by hand, directly from and into gRPC's buffers. So
// a body is copied once when it is read, and never when it is written; of the headers
// only those that are needed become strings. All other messages (health, access log,
// messages between replicas) go through the usual codec. Safe for concurrent use.
//
// Tests compare it with protobuf's own reading and writing.
type Codec struct {
	encoding.CodecV2
	buffers *Pool
	cfg     Config
}

// Config says which headers are read beside those that have a field in Headers.
type Config struct {
	// TimeoutHeader is the name of the header that is read into Headers.Timeout.
	TimeoutHeader string
	// Named reports whether the header of that name, in lower case, is read into
	// Headers.Named. It must not keep the slice.
	Named func(name []byte) bool
	// KeepHeaders keeps all headers of a request in Headers.All.
	KeepHeaders bool
}

// NewCodec returns a codec that reads bodies into buffers of the pool.
func NewCodec(buffers *Pool, cfg Config) *Codec {
	return &Codec{CodecV2: encoding.GetCodecV2(protocodec.Name), buffers: buffers, cfg: cfg}
}

// Marshal implements encoding.CodecV2.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*Reply); ok {
		return r.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. It first empties a *Message, whatever data
// holds.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	*m = Message{}
	r := data.Reader()
	defer r.Close()
	d := decoder{r: r, c: c, m: m}
	if err := d.request(); err != nil {
		c.buffers.Return(m.Body)
		// A returned error would end the stream, and a filter that fails open would let
		// the request go on. So the reader of the message has to refuse it.
		*m = Message{Kind: Malformed}
	}
	return nil
}

// Field numbers of envoy.service.ext_proc.v3 (external_processor.proto), and of the
// messages in it.
const (
	fieldRequestHeaders   = 2
	fieldResponseHeaders  = 3
	fieldRequestBody      = 4
	fieldResponseBody     = 5
	fieldRequestTrailers  = 6
	fieldResponseTrailers = 7
	fieldMetadataContext  = 8
	fieldAttributes       = 9
	fieldProtocolConfig   = 11

	fieldHeadersMap     = 1 // HttpHeaders
	fieldHeadersEnd     = 3
	fieldBody           = 1 // HttpBody
	fieldBodyEnd        = 2
	fieldMapHeaders     = 1 // HeaderMap
	fieldValueKey       = 1 // HeaderValue
	fieldValueText      = 2
	fieldValueRaw       = 3
	fieldConfigBodies   = 1 // ProtocolConfiguration
	fieldConfigAnswers  = 2
	fieldFilterMetadata = 1 // Metadata
	fieldStructFields   = 1 // Struct
	fieldEntryKey       = 1 // an entry of a map
	fieldEntryValue     = 2
)

var errMalformed = errors.New("wire: malformed ProcessingRequest")

type decoder struct {
	r *mem.Reader
	c *Codec
	m *Message
}

func (d *decoder) varint() (uint64, error) {
	var v uint64
	for shift := 0; shift < 64; shift += 7 {
		b, err := d.r.ReadByte()
		if err != nil {
			return 0, errMalformed
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, errMalformed
}

// length reads a length, and fails if the rest of the message is shorter.
func (d *decoder) length() (int, error) {
	n, err := d.varint()
	if err != nil || n > uint64(d.r.Remaining()) {
		return 0, errMalformed
	}
	return int(n), nil
}

// tag reads the next field's number and type.
func (d *decoder) tag() (protowire.Number, protowire.Type, error) {
	t, err := d.varint()
	if err != nil {
		return 0, 0, err
	}
	num, typ := protowire.DecodeTag(t)
	if num < protowire.MinValidNumber {
		return 0, 0, errMalformed
	}
	return num, typ, nil
}

// skip passes over a field that is not read.
func (d *decoder) skip(typ protowire.Type) error {
	n := 0
	switch typ {
	case protowire.VarintType:
		_, err := d.varint()
		return err
	case protowire.BytesType:
		var err error
		n, err = d.length()
		if err != nil {
			return err
		}
	case protowire.Fixed64Type:
		n = 8
	case protowire.Fixed32Type:
		n = 4
	default: // groups are not in proto3
		return errMalformed
	}
	if got, err := d.r.Discard(n); err != nil || got != n {
		return errMalformed
	}
	return nil
}

var kindOfField = [...]Kind{
	fieldRequestHeaders: RequestHeaders, fieldResponseHeaders: ResponseHeaders,
	fieldRequestBody: RequestBody, fieldResponseBody: ResponseBody,
	fieldRequestTrailers: RequestTrailers, fieldResponseTrailers: ResponseTrailers,
}

func (d *decoder) request() error {
	for d.r.Remaining() > 0 {
		num, typ, err := d.tag()
		if err != nil {
			return err
		}
		if typ != protowire.BytesType {
			err = d.skip(typ)
		} else {
			err = d.field(num)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// begin notes which of the six kinds the message is. If the message has several, the last
// one counts, and what was read of the others is dropped.
func (d *decoder) begin(num protowire.Number) {
	if kind := kindOfField[num]; d.m.Kind != kind {
		d.c.buffers.Return(d.m.Body)
		d.m.Kind, d.m.Headers, d.m.Body, d.m.EndOfStream = kind, nil, nil, false
	}
}

func (d *decoder) field(num protowire.Number) error {
	switch num {
	case fieldRequestHeaders, fieldResponseHeaders, fieldRequestTrailers, fieldResponseTrailers,
		fieldMetadataContext, fieldAttributes, fieldProtocolConfig:
		return d.small(num)
	case fieldRequestBody, fieldResponseBody:
		d.begin(num)
		n, err := d.length()
		if err != nil {
			return err
		}
		return d.httpBody(d.r.Remaining() - n)
	default:
		return d.skip(protowire.BytesType)
	}
}

// small reads a message without a body, from one contiguous copy.
func (d *decoder) small(num protowire.Number) error {
	n, err := d.length()
	if err != nil {
		return err
	}
	b := d.c.buffers.Borrow(n)[:n]
	defer d.c.buffers.Return(b)
	if _, err := io.ReadFull(d.r, b); err != nil {
		return errMalformed
	}
	switch num {
	case fieldProtocolConfig:
		return each(b, func(num protowire.Number, v uint64, sub []byte) error {
			if sub != nil {
				return nil
			}
			switch mode := extprocfilterv3.ProcessingMode_BodySendMode(v); num {
			case fieldConfigBodies:
				d.m.FullDuplex = mode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
			case fieldConfigAnswers:
				d.m.AnswerBodies = mode != extprocfilterv3.ProcessingMode_NONE
				d.m.AnswerDuplex = mode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
			}
			return nil
		})
	case fieldMetadataContext:
		return d.metadata(b)
	case fieldAttributes:
		return d.attribute(b)
	case fieldRequestHeaders, fieldResponseHeaders:
		d.begin(num)
		if d.m.Headers == nil {
			d.m.Headers = new(Headers)
		}
		return each(b, func(num protowire.Number, v uint64, sub []byte) error {
			switch {
			case num == fieldHeadersMap && sub != nil:
				return d.headerMap(sub)
			case num == fieldHeadersEnd && sub == nil:
				d.m.EndOfStream = v != 0
			}
			return nil
		})
	default:
		d.begin(num)
		return nil
	}
}

// each calls f for each field of a message: with its number in v, or with its bytes in
// sub, which is nil for a number.
func each(b []byte, f func(num protowire.Number, v uint64, sub []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		var v uint64
		var sub []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			sub, n = protowire.ConsumeBytes(b)
		case protowire.StartGroupType, protowire.EndGroupType:
			n = -1
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
			num = 0
		}
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if err := f(num, v, sub); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) headerMap(b []byte) error {
	if d.c.cfg.KeepHeaders && d.m.Kind == RequestHeaders {
		d.m.Headers.All = append(d.m.Headers.All, b...)
	}
	return each(b, func(num protowire.Number, _ uint64, sub []byte) error {
		if num != fieldMapHeaders || sub == nil {
			return nil
		}
		key, raw, err := headerOf(sub)
		if err != nil {
			return err
		}
		h := d.m.Headers
		switch dst := h.field(key, d.c.cfg.TimeoutHeader); {
		case dst != nil:
			*dst = string(raw)
		case string(key) == "content-length":
			h.Length = LengthOf(string(raw))
		case string(key) == "content-encoding":
			h.Encoded = h.Encoded || Encoded(raw)
		case d.c.cfg.Named(key):
			h.Named = append(h.Named, Header{Name: string(key), Value: string(raw)})
		case string(key) == HeaderSelection:
			h.Selection = append(h.Selection, string(raw))
		case unheeded(key) != 0:
			h.Unheeded |= unheeded(key)
		case Strange(key):
			h.Strange = append(h.Strange, string(key))
		}
		return nil
	})
}

// headerOf reads a HeaderValue.
func headerOf(b []byte) (key, value []byte, err error) {
	var text []byte
	err = each(b, func(num protowire.Number, _ uint64, v []byte) error {
		if v == nil {
			return nil
		}
		switch num {
		case fieldValueKey:
			key = v
		case fieldValueText:
			text = v
		case fieldValueRaw:
			value = v
		}
		return nil
	})
	if len(value) == 0 {
		value = text
	}
	return key, value, err
}

// httpBody reads an HttpBody. The argument is how many bytes of the message follow it.
func (d *decoder) httpBody(rest int) error {
	for d.r.Remaining() > rest {
		num, typ, err := d.tag()
		if err != nil {
			return err
		}
		switch {
		case num == fieldBody && typ == protowire.BytesType:
			n, err := d.length()
			if err != nil {
				return err
			}
			d.c.buffers.Return(d.m.Body)
			d.m.Body = d.c.buffers.Borrow(n + BodyRoom)[:n]
			if _, err := io.ReadFull(d.r, d.m.Body); err != nil {
				return errMalformed
			}
		case num == fieldBodyEnd && typ == protowire.VarintType:
			v, err := d.varint()
			if err != nil {
				return err
			}
			d.m.EndOfStream = v != 0
		default:
			if err := d.skip(typ); err != nil {
				return err
			}
		}
	}
	if d.r.Remaining() != rest {
		return errMalformed
	}
	return nil
}

// EachHeader ranges over the headers in Headers.All. The slices that it yields must not
// be kept.
func EachHeader(all []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		// The bytes were read once without an error, and are the same.
		_ = each(all, func(num protowire.Number, _ uint64, sub []byte) error {
			if num != fieldMapHeaders || sub == nil {
				return nil
			}
			key, value, err := headerOf(sub)
			if err == nil && !yield(key, value) {
				err = errStopped
			}
			return err
		})
	}
}

var errStopped = errors.New("wire: the caller has seen enough")
