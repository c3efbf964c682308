package subset

import (
	"iter"
	"net/netip"
	"strings"
	"unicode"

	"google.golang.org/protobuf/types/known/structpb"
)

// MaxEntries bounds how much memory one request's hint takes. A hint with more entries
// allows no endpoint.
const MaxEntries = 65536

// maxEntryBytes is more than the longest endpoint takes.
const maxEntryBytes = 64

// Set is the endpoints to which a request is limited. A nil Set is no limit; the zero
// value allows no endpoint. Immutable, safe for concurrent use.
type Set struct {
	entries map[netip.AddrPort]struct{} // port 0: every port of the address
	fault   Fault
}

// Parse reads the value of the metadata's field; nil, for no field, gives a nil Set. It
// never fails: [Set.Fault] says what was wrong.
func Parse(v *structpb.Value) *Set {
	if v == nil {
		return nil
	}
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return newSet([]string{k.StringValue}, 0)
	case *structpb.Value_ListValue:
		values := k.ListValue.GetValues()
		if len(values) > MaxEntries {
			return &Set{fault: Fault{Kind: TooMany, Entries: len(values)}}
		}
		texts := make([]string, 0, len(values))
		strange := 0
		for _, e := range values {
			if s, ok := e.GetKind().(*structpb.Value_StringValue); ok {
				texts = append(texts, s.StringValue)
			} else {
				strange++
			}
		}
		return newSet(texts, strange)
	default:
		return &Set{fault: Fault{Kind: WrongKind, what: kindName(v)}}
	}
}

// ParseHeader reads the values of the header, one for each of its lines; no line gives a
// nil Set.
func ParseHeader(lines []string) *Set {
	if len(lines) == 0 {
		return nil
	}
	return newSet(lines, 0)
}

// newSet reads the texts. The argument strange is the number of values of other kinds
// that came with them.
func newSet(texts []string, strange int) *Set {
	n, blank := strange, strange == 0
	for _, t := range texts {
		n += 1 + strings.Count(t, ",")
		blank = blank && strings.TrimLeftFunc(t, isPadding) == ""
	}
	switch {
	case blank:
		return &Set{fault: Fault{Kind: Empty}}
	case n > MaxEntries:
		return &Set{fault: Fault{Kind: TooMany, Entries: n}}
	}
	s := &Set{entries: make(map[netip.AddrPort]struct{}, n-strange), fault: Fault{Entries: strange}}
	for _, t := range texts {
		for e := range strings.SplitSeq(t, ",") {
			s.add(strings.TrimSpace(e))
		}
	}
	if s.fault.Entries > 0 {
		s.fault.Kind = Malformed
	}
	return s
}

// isPadding reports whether r may stand between entries, or in place of one.
func isPadding(r rune) bool { return r == ',' || unicode.IsSpace(r) }

func (s *Set) add(text string) {
	at, ok := parseEntry(text)
	if ok {
		s.entries[at] = struct{}{}
		return
	}
	if s.fault.what == "" {
		s.fault.what = quoted(text)
	}
	s.fault.Entries++
}

// parseEntry reads an address with a port; without one the port is 0. False means that s
// is neither.
func parseEntry(s string) (netip.AddrPort, bool) {
	if s == "" || len(s) > maxEntryBytes {
		return netip.AddrPort{}, false
	}
	bare, bracketed := strings.CutPrefix(s, "[")
	var at netip.AddrPort
	var err error
	switch {
	case bracketed && strings.HasSuffix(bare, "]"):
		var a netip.Addr
		a, err = netip.ParseAddr(strings.TrimSuffix(bare, "]"))
		if a.Is4() {
			return netip.AddrPort{}, false
		}
		at = netip.AddrPortFrom(a, 0)
	case bracketed, strings.Count(s, ":") == 1:
		at, err = netip.ParseAddrPort(s)
		if at.Port() == 0 {
			return netip.AddrPort{}, false
		}
	default:
		var a netip.Addr
		a, err = netip.ParseAddr(s)
		at = netip.AddrPortFrom(a, 0)
	}
	if err != nil || at.Addr().Zone() != "" {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), true
}

// Allows reports whether the endpoint may be picked. It does not allocate.
func (s *Set) Allows(at netip.AddrPort) bool {
	if s == nil {
		return true
	}
	ip := at.Addr().Unmap()
	if _, ok := s.entries[netip.AddrPortFrom(ip, at.Port())]; ok {
		return true
	}
	_, ok := s.entries[netip.AddrPortFrom(ip, 0)]
	return ok
}

// Endpoints lists the endpoints that have a port, in no order.
func (s *Set) Endpoints() iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		if s == nil {
			return
		}
		for at := range s.entries {
			if at.Port() != 0 && !yield(at) {
				return
			}
		}
	}
}

// Fault returns what was wrong with the hint; the zero Fault for a nil Set, and for a
// hint that was read whole.
func (s *Set) Fault() Fault {
	if s == nil {
		return Fault{}
	}
	return s.fault
}
