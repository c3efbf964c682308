package pin

import (
	"github.com/seed-60ae5743/baton/internal/openai"
)

// Fields is what the nvext object of a body says about routing, by the names of NVIDIA
// Dynamo's request extensions. The zero value says nothing.
type Fields struct {
	// Query is set if the request only asks which workers would serve it: an entry of
	// annotations begins with query_instance_id:, with any text after it.
	Query bool
	// First is the first member that names a worker or a rank, empty if there is none.
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
	{"backend_instance_id", decodeID}, // Dynamo's name from the time when one worker did both
	{"prefill_worker_id", prefillID},
	{"dp_rank", decodeRank},
	{"prefill_dp_rank", prefillRank},
}

// ReadFields reads ext, the value of nvext in a body that openai.Scan has checked; empty
// stands for a body without nvext. null counts as absent, for the object and for its
// members. The error is Malformed or Conflict; First and Query are set also with an
// error.
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
	said, bad := parse(t, string(v))
	if bad != "" {
		return &Error{Kind: Malformed, Param: name, Subject: bad}
	}
	return f.said.tell(t, name, said)
}

// asks reports whether a list holds an annotation that makes the request a question.
func asks(b []byte, list openai.Span) bool {
	found := false
	openai.EachElement(b, list, func(val openai.Span) {
		e := val.Of(b)
		// The prefix may be written with escapes; the text after it need not be read.
		found = found || len(e) > 1 && e[0] == '"' && openai.HasPrefix(e, queryPrefix)
	})
	return found
}
