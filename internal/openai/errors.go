package openai

import "strconv"

// Kind says what is wrong with a body. Callers switch on it.
type Kind uint8

// The kinds.
const (
	NotJSON        Kind = iota + 1 // Offset has the place
	MissingField                   // Field has the name
	WrongType                      // Field has the name, Detail what was expected
	DuplicateField                 // a member that this package knows occurs twice
	ForbiddenField                 // a member that only a router may set
)

var kindNames = [...]string{
	NotJSON: "not_json", MissingField: "missing_field", WrongType: "wrong_type",
	DuplicateField: "duplicate_field", ForbiddenField: "forbidden_field",
}

// String returns the name of the kind as used in labels.
func (k Kind) String() string { return nameOf(kindNames[:], k) }

// nameOf returns the name of a value of ours, "invalid" for what is none.
func nameOf[T ~uint8](names []string, v T) string {
	if int(v) >= len(names) || names[v] == "" {
		return "invalid"
	}
	return names[v]
}

// Error is what [Scan] and similar functions return. It holds no part of the body: Field
// is a name of ours, and Detail one of a few fixed sentences.
type Error struct {
	Kind   Kind
	Field  string // "" for NotJSON
	Offset int    // byte offset into the body
	Detail string // what was expected, of a ForbiddenField what it may not do; may be empty
}

// Error returns one sentence in lower case, fit for a client.
func (e *Error) Error() string {
	switch e.Kind {
	case NotJSON:
		s := "the body is not a JSON object: fault at byte " + strconv.Itoa(e.Offset)
		if e.Detail != "" {
			s += ": expected " + e.Detail
		}
		return s
	case MissingField:
		return "field " + strconv.Quote(e.Field) + " is missing"
	case WrongType:
		return "field " + strconv.Quote(e.Field) + ": expected " + e.Detail
	case DuplicateField:
		return "field " + strconv.Quote(e.Field) + " is given twice"
	case ForbiddenField:
		if e.Detail != "" {
			return "field " + strconv.Quote(e.Field) + " may not " + e.Detail
		}
		return "field " + strconv.Quote(e.Field) + " may not be set by a client"
	default:
		return "invalid body"
	}
}

func notJSON(at int, expected string) *Error {
	return &Error{Kind: NotJSON, Offset: at, Detail: expected}
}

func wrongType(f Field, at int, expected string) *Error {
	return &Error{Kind: WrongType, Field: f.String(), Offset: at, Detail: expected}
}
