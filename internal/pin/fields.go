package pin

import (
	"github.com/seed-60ae5743/baton/internal/openai"
)

// Fields is what the nvext object of a body says of routing, by the names of
// NVIDIA Dynamo's request extensions. The zero value says nothing.
type Fields struct {
	// Query is set where the request asks only who would serve it: an entry of
	// annotations begins with query_instance_id:, whatever follows.
	Query bool
	// First is the first member that names a worker or a rank, empty for none.
	First string

	said said
}

// queryPrefix begins the annotation of a request that is a question.
const queryPrefix = "query_instance_id:"

var members = [...]struct {
	name string
	t    thing
}{
	{"decode_worker_id", decodeID},
	{"backend_instance_id", decodeID}, // Dynamo's name from when one worker did both
	{"prefill_worker_id", prefillID},
	{"dp_rank", decodeRank},
	{"prefill_dp_rank", prefillRank},
}

// ReadFields reads ext, the value of nvext in a body that openai.Scan has
// checked; empty is a body without one. null is as good as absent, for the
// object and for its members. The error is Malformed or Conflict; First and
// Query are right all the same.
func ReadFields(ext []byte) (Fields, *Error) {
	var f Fields
	if len(ext) == 0 || ext[0] != '{' {
		return f, nil
	}
	var fault *Error
	openai.EachMember(ext, openai.Span{Start: 0, End: len(ext)}, func(key, val openai.Span) bool {
		v := val.Of(ext)
		if openai.IsKey(ext, key, "annotations") {
			f.Query = f.Query || asks(ext, val)
			return true
		}
		for _, m := range members {
			if !openai.IsKey(ext, key, m.name) || string(v) == "null" || m.t == prefillRank && string(v) == unsetRank {
				continue
			}
			name := "nvext." + m.name
			if f.First == "" {
				f.First = name
			}
			if err := f.tell(m.t, name, v); err != nil && fault == nil {
				fault = err
			}
		}
		return true
	})
	return f, fault
}

func (f *Fields) tell(t thing, name string, v []byte) *Error {
	if len(v) > 20 { // no number up to 2^64-1 is longer
		v = v[:21]
	}
	n, bad := parse(t, string(v))
	if bad != "" {
		return &Error{Kind: Malformed, Param: name, Subject: bad}
	}
	return f.said.tell(t, name, value{number: n})
}

// asks reports whether a list holds the annotation of a question.
func asks(b []byte, list openai.Span) bool {
	found := false
	openai.EachElement(b, list, func(val openai.Span) {
		e := val.Of(b)
		// The prefix may be spelled with escapes; a longer text need not be read.
		found = found || len(e) > 1 && e[0] == '"' && openai.HasPrefix(e, queryPrefix)
	})
	return found
}
