package pagepart

import (
	"fmt"
	"strings"
)

// Replace returns the page with another text between the marks: what write makes of the one that is there.
func Replace(page, begins, ends string, write func(is string) string) (string, error) {
	before, rest, found := strings.Cut(page, begins)
	if !found {
		return "", fmt.Errorf("the page lacks the mark %q", begins)
	}
	is, after, found := strings.Cut(rest, ends)
	if !found {
		return "", fmt.Errorf("the page lacks the mark %q behind %q", ends, begins)
	}
	return before + begins + write(is) + ends + after, nil
}
