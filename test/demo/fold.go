package main

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

var (
	marks = regexp.MustCompile("\x1b\\[[0-9;]*m")
	gaps  = regexp.MustCompile(` {2,}`)
)

// shown is how many columns text takes on a terminal.
func shown(text string) int { return utf8.RuneCountInString(marks.ReplaceAllString(text, "")) }

// fold breaks lines that are longer than columns at spaces. What is broken off stands
// below the last column of its line, which begins after two spaces or more, as long as
// that leaves it some room. A word that is longer than a line stays whole.
func fold(text string, columns int) string {
	if columns <= 0 {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if shown(l) > columns {
			lines[i] = foldLine(l, columns)
		}
	}
	return strings.Join(lines, "\n")
}

func foldLine(l string, columns int) string {
	hang := 0
	for _, g := range gaps.FindAllStringIndex(l, -1) {
		if at := shown(l[:g[1]]); at <= columns*2/3 {
			hang = at
		}
	}
	var b strings.Builder
	at, words := 0, strings.SplitAfter(l, " ")
	for _, w := range words {
		if n := shown(strings.TrimRight(w, " ")); at > hang && at+n > columns {
			b.WriteString("\n" + strings.Repeat(" ", hang))
			at = hang
		}
		b.WriteString(w)
		at += shown(w)
	}
	folded := strings.Split(b.String(), "\n")
	for i := range folded {
		folded[i] = strings.TrimRight(folded[i], " ")
	}
	return strings.Join(folded, "\n")
}
