package strictyaml

import (
	"reflect"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/edits"
)

// keysOf are the keys of a struct, in its order.
func keysOf(t reflect.Type) (out []string) {
	for f := range t.Fields() {
		if name := tagOf(f); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// Hinter is a struct that knows keys which people look for in it and which stand elsewhere.
type Hinter interface {
	// Hint says where what a.b.c stands for is to be written; "" where nothing is known.
	Hint(key string) string
}

// Goner is a struct that has had other keys.
type Goner interface {
	// Gone reports whether a.b.c is one of them: it is passed over, and [Places] knows that it was given.
	Gone(key string) bool
}

func (r *reader) gone(key string) bool {
	g, is := reflect.TypeAssert[Goner](reflect.New(r.root))
	return is && g.Gone(key)
}

// hint says what may have been meant by a key that there is not in a mapping of type t.
func (r *reader) hint(key, name string, t reflect.Type) string {
	if h, is := reflect.TypeAssert[Hinter](reflect.New(r.root)); is {
		if text := h.Hint(join(key, name)); text != "" {
			return ": " + text
		}
	}
	if best := Nearest(name, keysOf(t)); best != "" {
		return ": did you mean " + join(key, best) + "?"
	}
	// The same key, in another place.
	if others := findAll(r.root, "", name, 0); len(others) > 0 {
		return ": did you mean " + strings.Join(others[:min(len(others), 3)], " or ") + "?"
	}
	return ": expected one of " + strings.Join(keysOf(t), ", ")
}

// findAll returns where keys of that name are, below t.
func findAll(t reflect.Type, key, name string, depth int) (out []string) {
	t = deref(t)
	if t.Kind() != reflect.Struct || depth > 8 {
		return nil
	}
	for f := range t.Fields() {
		k := tagOf(f)
		if k == "" {
			continue
		}
		if k == name {
			out = append(out, join(key, k))
		}
		out = append(out, findAll(f.Type, join(key, k), name, depth+1)...)
	}
	slices.SortFunc(out, func(a, b string) int { return len(a) - len(b) })
	return out
}

// Nearest is the one of known that name may be a slip of the pen for: it differs in a few
// letters alone. "" where there is none.
func Nearest(name string, known []string) string {
	for most := range 1 + min(3, max(len(name)/3, min(2, len(name)/2))) {
		for _, k := range known {
			if edits.Within(name, k, most) {
				return k
			}
		}
	}
	return ""
}
