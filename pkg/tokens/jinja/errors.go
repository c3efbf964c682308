package jinja

import (
	"cmp"
	"errors"
	"fmt"
)

// A Kind says why there is no rendering.
type Kind uint8

// The kinds of failure.
const (
	// Refused: this package does not do exactly what is asked.
	Refused Kind = iota + 1
	// Raised: Python would raise an exception here.
	Raised
	// Limited: a limit was reached.
	Limited
)

var kindNames = [...]string{"unknown", Refused: "refused", Raised: "raised", Limited: "limited"}

// String returns the kind's name.
func (k Kind) String() string {
	if int(k) >= len(kindNames) {
		k = 0
	}
	return kindNames[k]
}

// An Error says why there is no rendering. Its text holds no value of a request.
type Error struct {
	Kind Kind
	What string
}

// Error returns the kind and what caused it.
func (e *Error) Error() string { return "chat template " + e.Kind.String() + ": " + e.What }

// caught, deferred, makes an error of what ended the function: within this package, an *Error
// is a panic up to the function of the contract or of [try] that it ends, as an exception of
// Python's is. Nearly every step of a template may raise.
func caught(err *error) {
	switch e := recover().(type) {
	case nil:
	case *Error:
		*err = e
	default:
		panic(e)
	}
}

// try returns what ends f, or nil.
func try(f func()) (err error) {
	defer caught(&err)
	f()
	return nil
}

// KindOf returns the kind of err, or 0 if err is no [Error].
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return 0
}

func refuse(format string, args ...any) *Error {
	return &Error{Refused, fmt.Sprintf(format, args...)}
}

func raise(format string, args ...any) *Error {
	return &Error{Raised, fmt.Sprintf(format, args...)}
}

// wrong is what Python raises for values of wrong types; with markup among them it is
// refused, since Markup has operators of its own.
func wrong(format string, values ...Value) *Error {
	names := make([]any, len(values))
	for i, v := range values {
		if is[markup](v) {
			return refuse("an operation on what safe returns")
		}
		names[i] = typeName(v)
	}
	return raise(format, names...)
}

// Limits bound one template and one rendering. A zero field means its default.
type Limits struct {
	// SourceBytes is the longest template. Default 1 MiB.
	SourceBytes int
	// Steps is how many expressions and statements a rendering may evaluate. Default
	// 20 million, about two seconds of a core.
	Steps int
	// Bytes is how many bytes of text, and 16 for each element of a list, a rendering may
	// make, its output included. Default 256 MiB.
	Bytes int
	// Depth bounds the nesting of a template's source, of macro calls and of values.
	// Default 100.
	Depth int
}

func (l Limits) withDefaults() Limits {
	return Limits{
		SourceBytes: cmp.Or(l.SourceBytes, 1<<20), Steps: cmp.Or(l.Steps, 20_000_000),
		Bytes: cmp.Or(l.Bytes, 256<<20), Depth: cmp.Or(l.Depth, 100),
	}
}

var (
	errSteps = &Error{Limited, "too many steps"}
	errBytes = &Error{Limited, "too many bytes"}
	errDepth = &Error{Limited, "nested too deep"}

	errInteger = refuse("an integer beyond 64 bits")
	errJSON    = refuse("a member that is no JSON")
)
