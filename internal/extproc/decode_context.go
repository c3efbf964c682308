package extproc

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/subset"
)

// This file reads what a data plane says beside a request: metadata and
// attributes, as the endpoint picker protocol has them (GAIE proposal 004).

// Where the protocol's words are.
const (
	lbNamespace     = "envoy.lb"
	servedKey       = "x-gateway-destination-endpoint-served"
	upstreamAddress = "upstream.address" // Envoy's attribute, where a filter asks for it
)

// hints is what a data plane says beside one message.
type hints struct {
	subset   *structpb.Value // who may be picked; nil: not said
	served   string          // who has answered; empty: not said
	upstream string          // the same, as Envoy's attribute
}

// hints returns where what is said goes.
func (d *decoder) hints() *hints {
	if d.ev.hints == nil {
		d.ev.hints = new(hints)
	}
	return d.ev.hints
}

// metadata reads a core.v3.Metadata: a map of structs.
func (d *decoder) metadata(b []byte) error {
	return structs(b, fieldFilterMetadata, func(name string, raw []byte) error {
		if name != subset.Namespace && name != lbNamespace {
			return nil
		}
		var s structpb.Struct
		if err := proto.Unmarshal(raw, &s); err != nil {
			return errMalformed
		}
		if name == lbNamespace {
			if v := s.GetFields()[servedKey].GetStringValue(); v != "" {
				d.hints().served = v
			}
			return nil
		}
		if v, said := s.GetFields()[subset.Key]; said {
			d.hints().subset = v
		}
		return nil
	})
}

// attribute reads one entry of the attributes: a struct for each filter.
func (d *decoder) attribute(entry []byte) error {
	return structEntry(entry, func(_ string, raw []byte) error {
		var s structpb.Struct
		if err := proto.Unmarshal(raw, &s); err != nil {
			return errMalformed
		}
		if v := s.GetFields()[upstreamAddress].GetStringValue(); v != "" {
			d.hints().upstream = v
		}
		return nil
	})
}

// structs calls f for each entry of the map of structs in field.
func structs(b []byte, field int, f func(name string, raw []byte) error) error {
	return each(b, func(num protowire.Number, _ uint64, entry []byte) error {
		if int(num) != field {
			return nil
		}
		return structEntry(entry, f)
	})
}

func structEntry(entry []byte, f func(name string, raw []byte) error) error {
	var name, raw []byte
	if err := each(entry, func(num protowire.Number, _ uint64, v []byte) error {
		switch num {
		case fieldEntryKey:
			name = v
		case fieldEntryValue:
			raw = v
		}
		return nil
	}); err != nil {
		return err
	}
	return f(string(name), raw)
}

// strange reports whether a header is one that only routers and proxies may set,
// so that one which a client has set must not go on.
func strange(name []byte) bool {
	if len(name) < 3 || name[0] != 'x' {
		return false
	}
	for _, p := range strangePrefixes {
		if strings.HasPrefix(string(name), p) {
			return true
		}
	}
	return false
}

// The same as our own listener strips (envoy/legs.yaml.tmpl, strip).
var strangePrefixes = [...]string{
	"x-baton-", "x-prefill", "x-bootstrap-", "x-override-", "x-gateway-destination-", "x-decode-",
	"x-dynamo-", "x-worker-", "x-data-parallel-", "x-instance-id",
}
