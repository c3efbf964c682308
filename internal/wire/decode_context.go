package wire

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// This file reads what a data plane sends beside a request: metadata and attributes, as
// in the endpoint picker protocol (GAIE proposal 004).

// The protocol's names, and where each is used.
const (
	SubsetNamespace = "envoy.lb.subset_hint" // in metadata: which endpoints may be picked
	SubsetKey       = "x-gateway-destination-endpoint-subset"
	HeaderSelection = "test-epp-endpoint-selection" // the same, in conformance tests

	lbNamespace     = "envoy.lb"
	servedKey       = "x-gateway-destination-endpoint-served"
	upstreamAddress = "upstream.address" // Envoy's attribute, if the filter is configured to send it
)

// hints returns the message's hints, to be written.
func (d *decoder) hints() *Hints {
	if d.m.Hints == nil {
		d.m.Hints = new(Hints)
	}
	return d.m.Hints
}

// metadata reads a core.v3.Metadata: a map of structs.
func (d *decoder) metadata(b []byte) error {
	return each(b, func(num protowire.Number, _ uint64, entry []byte) error {
		if num != fieldFilterMetadata || entry == nil {
			return nil
		}
		name, fields, err := mapEntry(entry)
		if err != nil {
			return err
		}
		switch string(name) {
		case lbNamespace:
			v, said, err := member(fields, servedKey)
			if said || d.m.Hints != nil { // of a name that is there twice, the last one counts
				d.hints().Served = v.GetStringValue()
			}
			return err
		case SubsetNamespace:
			v, said, err := member(fields, SubsetKey)
			if said || d.m.Hints != nil {
				d.hints().Subset = v
			}
			return err
		}
		return nil
	})
}

// attribute reads one entry of the attributes: a struct for each filter.
func (d *decoder) attribute(entry []byte) error {
	_, fields, err := mapEntry(entry)
	if err != nil {
		return err
	}
	v, _, err := member(fields, upstreamAddress)
	if v.GetStringValue() != "" {
		d.hints().Upstream = v.GetStringValue()
	}
	return err
}

// member reads one field of a Struct and no other: the other fields may hold what clients
// have sent, with bytes that are no UTF-8, on which protobuf fails. A value that cannot
// be read is returned as a Value of no kind. said is false if there is no such field.
func member(fields []byte, key string) (v *structpb.Value, said bool, err error) {
	err = each(fields, func(num protowire.Number, _ uint64, entry []byte) error {
		if num != fieldStructFields || entry == nil {
			return nil
		}
		name, raw, err := mapEntry(entry)
		if err != nil || string(name) != key {
			return err
		}
		v, said = new(structpb.Value), true
		if proto.Unmarshal(raw, v) != nil {
			v = new(structpb.Value)
		}
		return nil
	})
	return v, said, err
}

// mapEntry reads an entry of a map whose values are messages.
func mapEntry(entry []byte) (name, value []byte, err error) {
	err = each(entry, func(num protowire.Number, _ uint64, v []byte) error {
		switch {
		case v == nil:
		case num == fieldEntryKey:
			name = v
		case num == fieldEntryValue: // protobuf merges messages that come twice
			value = append(slices.Clip(value), v...)
		}
		return nil
	})
	return name, value, err
}

// field returns where the value of the header goes, nil if the header is not read.
func (h *Headers) field(key []byte, timeoutHeader string) *string {
	switch string(key) {
	case ":method":
		return &h.Method
	case ":path":
		return &h.Path
	case ":status":
		return &h.Status
	case "content-type":
		return &h.ContentType
	case "accept-encoding":
		return &h.AcceptEncoding
	case "retry-after":
		return &h.RetryAfter
	case "location":
		return &h.Location
	case "x-request-id":
		return &h.RequestID
	case "traceparent":
		return &h.Traceparent
	case "tracestate":
		return &h.Tracestate
	case HeaderAttemptCount:
		return &h.AttemptCount
	case prefill.HeaderStart:
		return &h.Start
	case prefill.HeaderTarget, prefill.HeaderTargetLLMD:
		return &h.Target
	case prefill.HeaderLeg:
		return &h.Leg
	case prefill.HeaderDebug:
		return &h.Debug
	case prefill.HeaderLocalReply:
		return &h.LocalReply
	case prefill.HeaderError:
		return &h.Error
	case timeoutHeader:
		return &h.Timeout
	default:
		return nil
	}
}

// Encoded reports whether a content-encoding, a list, names another encoding than identity.
func Encoded(list []byte) bool {
	for coding := range bytes.SplitSeq(list, []byte(",")) {
		coding = bytes.TrimSpace(coding)
		if len(coding) > 0 && !bytes.EqualFold(coding, []byte("identity")) {
			return true
		}
	}
	return false
}

// Unheeded are the headers by which clients of other endpoint pickers say which objective or which
// share a request has, or how fast its tokens are to come. Nothing here acts on them.
var Unheeded = [...]string{
	"x-gateway-inference-objective", "x-llm-d-inference-objective",
	"x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id", "x-llm-d-slo-tpot-ms",
}

// unheeded returns the bit of a header of Unheeded, else 0.
func unheeded(name []byte) uint8 {
	if len(name) < 3 || name[0] != 'x' {
		return 0
	}
	for i, n := range Unheeded {
		if string(name) == n {
			return 1 << i
		}
	}
	return 0
}

// Strange reports whether only routers and proxies may set the header. If a client has
// set it, it must not be sent on.
func Strange(name []byte) bool {
	if len(name) < 3 || name[0] != 'x' {
		return false
	}
	for _, p := range strangePrefixes {
		if len(name) >= len(p) && string(name[:len(p)]) == p { // no copy: this runs for each header
			return true
		}
	}
	return false
}

// The edge of our own Envoy configurations removes the same headers (docs/headers.md).
var strangePrefixes = [...]string{
	"x-baton-", "x-prefill", "x-bootstrap-", "x-override-", "x-gateway-destination-", "x-decode-", "x-worker-", "x-dynamo-",
	"x-data-parallel-", "x-instance-id", "x-attempt-id",
	"x-encoder-hosts-ports", "x-kv-cache-source-host-port", // from which llm-d's sidecars fetch
}
