package edits

// Within reports whether at most so many letters of a have to be added, dropped or replaced to
// make b.
func Within(a, b string, edits int) bool {
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
	return Within(a[1:], b, edits-1) || Within(a, b[1:], edits-1) || Within(a[1:], b[1:], edits-1)
}
