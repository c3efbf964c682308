package openai

import "strings"

// Path is a request path whose bodies this package reads.
type Path uint8

// The paths. The zero value is no path.
const (
	ChatCompletions Path = iota + 1 // POST /v1/chat/completions
	Completions                     // POST /v1/completions
	Generate                        // POST /generate, SGLang's own
	Other                           // any other; ScanOther reads little of such a body
)

// String returns the path as in a request line, or "invalid" for Other and the zero
// value.
func (p Path) String() string {
	switch p {
	case ChatCompletions:
		return "/v1/chat/completions"
	case Completions:
		return "/v1/completions"
	case Generate:
		return "/generate"
	default:
		return "invalid"
	}
}

// ParsePath reads the value of :path, without its query. False means that the path is
// none of the first three: only an exact match counts.
func ParsePath(s string) (Path, bool) {
	if i := strings.IndexByte(s, '?'); i >= 0 {
		s = s[:i]
	}
	switch s {
	case "/v1/chat/completions":
		return ChatCompletions, true
	case "/v1/completions":
		return Completions, true
	case "/generate":
		return Generate, true
	default:
		return 0, false
	}
}
