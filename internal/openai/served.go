package openai

import "strings"

// servedPaths are the paths that engines serve to clients: first those whose bodies this package
// reads, the list of models and /health, then those that are passed on. A name in braces is one segment.
// internal/extproc/testdata/routes lists them by engine.
var servedPaths = [...]string{
	"/v1/chat/completions", "/v1/completions", "/generate", "/v1/models", "/health",

	"/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify", "/tokenize", "/detokenize",
	"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/generations", "/v1/images/edits", "/v1/videos", "/v1/realtime",
	"/v1/tokenize", "/v1/detokenize", "/v1/chat/completions/batch", "/v1/messages/count_tokens",
	"/version", "/ping", "/ready", "/readyz", "/liveness", "/health_generate", "/models", "/model_info", "/v1/model_info",
	"/rerank", "/score", "/classify", "/pooling", "/encode", "/invocations", "/inference/v1/generate", "/vertex_generate", "/rollout/generate",
	"/api/chat", "/api/generate", "/api/show", "/api/tags", "/cohere/v2/chat", "/v2/embed", "/v2/rerank",
	"/parse_function_call", "/separate_reasoning", "/generative_scoring", "/openpi/policy", "/v1/decisions", "/v1/systemone",
	"/v1/actions/generations", "/v1/actions/metadata", "/v1/actions/realtime", "/v1/meshes", "/v1/realtime_video/generate",
	"/cohere/v2/chat/render", "/v1/chat/completions/render", "/v1/chat/completions/derender", "/v1/completions/render",
	"/v1/completions/derender", "/v1/messages/render", "/v1/responses/render",
	"/v1/responses/{id}", "/v1/responses/{id}/cancel", "/v1/videos/{id}", "/v1/videos/{id}/content", "/v1/images/{id}/content",
	"/v1/meshes/{id}", "/v1/meshes/{id}/content",
}

// readPaths is how many of servedPaths are not passed on.
const readPaths = 5

// Served reports whether an engine is known that serves the path, the value of :path.
func Served(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return served(path, servedPaths[:])
}

func served(path string, among []string) bool {
	for _, p := range among {
		if matches(p, path) {
			return true
		}
	}
	return false
}

// matches reports whether the path is that of the pattern.
func matches(pattern, path string) bool {
	before, rest, has := strings.Cut(pattern, "{id}")
	if !has {
		return pattern == path
	}
	path, is := strings.CutPrefix(path, before)
	id, ok := strings.CutSuffix(path, rest)
	return is && ok && id != "" && !strings.Contains(id, "/")
}

const (
	longestPath = 100 // no longer path is compared: none that is served is as long
	mostDropped = 4   // segments in front of a served path
	mostEdits   = 2   // letters between a path and a served one
)

// Nearest returns the served path that a client may have meant by a path that is not served, ""
// if none is near: the same but for its prefix, its slashes or its case, or by a letter or two.
// passed says that it may be one which is passed on.
func Nearest(path string, passed bool) string {
	path, _, _ = strings.Cut(path, "?")
	among := servedPaths[:]
	if !passed {
		among = among[:readPaths]
	}
	if len(path) > longestPath || served(path, among) {
		return ""
	}
	segments := strings.FieldsFunc(strings.ToLower(path), func(r rune) bool { return r == '/' })
	for i := range min(len(segments), mostDropped+1) {
		plain := "/" + strings.Join(segments[i:], "/")
		for _, p := range [...]string{plain, "/v1" + plain} {
			if served(p, among) {
				return p
			}
		}
	}
	plain := "/" + strings.Join(segments, "/")
	for edits := 1; edits <= mostEdits; edits++ {
		for _, p := range among {
			if within(p, plain, edits) || within(p, "/v1"+plain, edits) {
				return p
			}
		}
	}
	return ""
}

// within reports whether at most so many letters of a have to be added, dropped or replaced to
// make b, and a has four times as many.
func within(a, b string, edits int) bool {
	if len(a) < 4*edits {
		return false
	}
	return differ(a, b, edits)
}

func differ(a, b string, edits int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	switch {
	case len(a)+len(b) == 0:
		return true
	case edits == 0 || len(a)-len(b) > edits || len(b)-len(a) > edits:
		return false
	case a == "" || b == "":
		return true
	}
	return differ(a[1:], b, edits-1) || differ(a, b[1:], edits-1) || differ(a[1:], b[1:], edits-1)
}
