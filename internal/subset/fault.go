package subset

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"
)

// Kind says what is wrong with a hint. There are few, so that it can be a metric's label.
type Kind string

// The kinds. With all but Malformed no endpoint may be picked.
const (
	Empty     Kind = "empty"      // there is a hint, and it names nothing
	WrongKind Kind = "wrong_kind" // neither a list nor a text
	Malformed Kind = "malformed"  // some entries are no endpoints
	TooMany   Kind = "too_many"   // over MaxEntries
)

// Fault is what was wrong with a hint; the zero value means nothing.
type Fault struct {
	Kind Kind
	// Entries is how many entries there were (TooMany), or how many were wrong
	// (Malformed).
	Entries int

	what string // the first wrong text, quoted and cut, or the kind of the value
}

// IsZero reports whether nothing was wrong.
func (f Fault) IsZero() bool { return f.Kind == "" }

// String is for a log line: one line, of bounded length. It is empty if nothing was
// wrong.
func (f Fault) String() string {
	switch f.Kind {
	case Empty:
		return "the subset hint is empty: nobody may be picked"
	case WrongKind:
		return "the subset hint is " + f.what + ", expected a list or a text: nobody may be picked"
	case TooMany:
		return fmt.Sprintf("the subset hint has %d entries, expected at most %d: nobody may be picked", f.Entries, MaxEntries)
	case Malformed:
		if f.what == "" {
			return fmt.Sprintf("%d entries of the subset hint are no texts", f.Entries)
		}
		return fmt.Sprintf("%d entries of the subset hint are no endpoints, the first is %s: expected ip:port or ip", f.Entries, f.what)
	default:
		return ""
	}
}

// quoted quotes an entry for a log line, and cuts it.
func quoted(s string) string {
	if len(s) > maxEntryBytes {
		return strconv.Quote(s[:maxEntryBytes]) + "…"
	}
	return strconv.Quote(s)
}

func kindName(v *structpb.Value) string {
	switch v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return "a number"
	case *structpb.Value_BoolValue:
		return "true or false"
	case *structpb.Value_StructValue:
		return "a struct"
	case *structpb.Value_NullValue:
		return "null"
	default:
		return "without a value"
	}
}
