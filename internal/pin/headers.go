package pin

import (
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Header is one header of the request, with its name in lower case.
type Header struct{ Name, Value string }

// thing is what a header or a member gives.
type thing uint8

const (
	nothing thing = iota
	decodeID
	prefillID
	decodeRank
	prefillRank
	decodeAddress
	prefillAddress
	numThings
)

// The names of headers that errors suggest if one is missing.
const (
	DecodeHeader      = "x-worker-instance-id"
	PrefillHeader     = "x-prefill-instance-id"
	DecodeRankHeader  = "x-dp-rank"
	PrefillRankHeader = "x-prefill-dp-rank"
)

// PickedHeader has the address that another picker has chosen. Envoy's configuration may
// move it there from x-gateway-destination-endpoint: then a request that the plugin has
// not seen has no destination.
const PickedHeader = "x-baton-picked-endpoint"

// destinationHeader is the header that a picker sets. Errors name it, since clients do
// not know PickedHeader.
const destinationHeader = "x-gateway-destination-endpoint"

// thingOf knows the headers of both dialects, NVIDIA Dynamo's older names and its
// x-dynamo-… ones, and also the destination header of the Gateway API endpoint picker
// protocol and the prefiller header of llm-d's pickers.
func thingOf(name []byte) thing {
	switch string(name) {
	case "x-worker-instance-id", "x-dynamo-worker-instance-id":
		return decodeID
	case "x-prefill-instance-id", "x-dynamo-prefill-instance-id":
		return prefillID
	case "x-dp-rank", "x-data-parallel-rank", "x-dynamo-dp-rank":
		return decodeRank
	case "x-prefill-dp-rank", "x-dynamo-prefill-dp-rank":
		return prefillRank
	case destinationHeader, PickedHeader:
		return decodeAddress
	case "x-prefiller-host-port":
		return prefillAddress
	default:
		return nothing
	}
}

// Known reports whether a header of that name, in lower case, names a worker or a rank.
func Known(name []byte) bool { return thingOf(name) != nothing }

// Read puts together what headers and body say. A header counts as absent if its value is
// empty or "-", which Envoy writes for a header that is absent. The error is Malformed or
// Conflict.
func Read(headers []Header, f Fields) (Pins, *Error) {
	var s said
	for _, h := range headers {
		t, v := thingOf([]byte(h.Name)), strings.TrimSpace(h.Value)
		if t == nothing || v == "" || v == "-" || t == prefillRank && v == unsetRank {
			continue
		}
		if t == decodeAddress {
			h.Name = destinationHeader
		}
		said, fault := parse(t, v)
		if fault != "" {
			return Pins{}, &Error{Kind: Malformed, Param: h.Name, Subject: fault}
		}
		if err := s.tell(t, h.Name, said); err != nil {
			return Pins{}, err
		}
	}
	others := s.fill(&f.said)
	p := Pins{Prefill: s.target(prefillID, prefillAddress, prefillRank), Decode: s.target(decodeID, decodeAddress, decodeRank)}
	p.Prefill.other, p.Decode.other = others[prefillID], others[decodeID]
	return p, nil
}

// parse reads the content of a thing; of several addresses the first. fault says what was
// expected, if v is none.
func parse(t thing, v string) (out value, fault string) {
	var err error
	switch t {
	case decodeAddress, prefillAddress:
		fault = "expected ip:port"
		first, _, _ := strings.Cut(v, ",")
		out.address, err = worker.ParseEndpoint(strings.TrimSpace(first))
	case decodeID, prefillID:
		fault = "expected a decimal number from 1 to 2^64-1"
		var id worker.ID
		id, err = worker.ParseID(v)
		out.number = uint64(id)
	default:
		fault = "expected a decimal number from 0 to 2^32-1"
		out.number, err = strconv.ParseUint(v, 10, 32)
	}
	if err != nil {
		return value{}, fault
	}
	return out, ""
}

// value is the content of a thing: a number or an address.
type value struct {
	number  uint64
	address worker.Endpoint
}

// said holds all things from one source, each with the header or member that gives it.
type said struct {
	value [numThings]value
	by    [numThings]string
}

// unsetRank, as prefill's rank, means that none is given.
const unsetRank = "4294967295"

func (s *said) tell(t thing, by string, v value) *Error {
	if s.by[t] != "" && s.value[t] != v {
		return &Error{Kind: Conflict, Param: by, Subject: "it is not what " + s.by[t] + " says"}
	}
	if s.by[t] == "" {
		s.value[t], s.by[t] = v, by
	}
	return nil
}

// legs has the things of each leg.
var legs = [...]struct{ id, address, rank thing }{{decodeID, decodeAddress, decodeRank}, {prefillID, prefillAddress, prefillRank}}

// fill adds to s what only the body says. If s gives the address for a leg and the body
// the id, it returns the body's rank for that leg, at the index of the leg's id.
func (s *said) fill(body *said) (others [numThings]otherRank) {
	for _, leg := range legs {
		ranked := s.by[leg.rank] == "" && body.by[leg.rank] != ""
		switch {
		case !ranked || body.by[leg.id] != "" && s.by[leg.id] != "" && s.value[leg.id] != body.value[leg.id]:
		case body.by[leg.id] != "" && s.by[leg.id] == "" && s.by[leg.address] != "":
			others[leg.id] = otherRank{
				id: worker.ID(body.value[leg.id].number), dpRank: worker.DPRank(body.value[leg.rank].number), by: body.by[leg.rank],
			}
		default:
			s.value[leg.rank], s.by[leg.rank] = body.value[leg.rank], body.by[leg.rank]
		}
		if s.by[leg.id] == "" && s.by[leg.address] == "" {
			s.value[leg.id], s.by[leg.id] = body.value[leg.id], body.by[leg.id]
		}
	}
	return others
}

func (s *said) target(id, address, rank thing) Target {
	return Target{
		ID: worker.ID(s.value[id].number), Address: s.value[address].address,
		DPRank: worker.DPRank(s.value[rank].number), HasRank: s.by[rank] != "",
		IDBy: s.by[id], AddressBy: s.by[address], RankBy: s.by[rank],
	}
}
