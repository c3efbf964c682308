package openai

import "strings"

// Path is a request path whose bodies this package reads.
type Path uint8

// The paths. The zero value is not a path.
const (
	ChatCompletions Path = iota + 1 // POST /v1/chat/completions
	Completions                     // POST /v1/completions
	Generate                        // POST /generate, SGLang's own
	Other                           // any other, of whose bodies ScanOther reads little
)

// String returns the path as it stands in a request line, or "invalid".
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

// ParsePath reads the value of :path. A query string is ignored; anything else
// beside the exact path is another path.
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
