package openai

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/edits"
)

// Paths are the paths that engines serve to clients. A name in braces is one segment.
type Paths struct {
	Read   []string // whose bodies this package reads, the list of models and /health
	Passed []string // those that are passed on
}

// Serves reports whether the path, the value of :path, is one of these.
func (p *Paths) Serves(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return served(path, p.Read, p.Passed)
}

func served(path string, among ...[]string) bool {
	for _, list := range among {
		for _, p := range list {
			if matches(p, path) {
				return true
			}
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
func (p *Paths) Nearest(path string, passed bool) string {
	path, _, _ = strings.Cut(path, "?")
	among := p.Read
	if passed {
		among = slices.Concat(p.Read, p.Passed)
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
	for most := 1; most <= mostEdits; most++ {
		for _, p := range among {
			if within(p, plain, most) || within(p, "/v1"+plain, most) {
				return p
			}
		}
	}
	return ""
}

// within reports whether at most so many letters of a have to be added, dropped or replaced to
// make b, and a has four times as many.
func within(a, b string, most int) bool {
	return len(a) >= 4*most && edits.Within(a, b, most)
}
