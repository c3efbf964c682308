package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// screen is where the demo writes to. Safe for concurrent use.
type screen struct {
	colour  bool
	columns int // lines are folded to fit; 0: they are not

	mu sync.Mutex
	w  io.Writer // guarded by mu
}

func (s *screen) printf(format string, a ...any) { s.raw(fold(fmt.Sprintf(format, a...), s.columns)) }

// raw writes text whose lines are not to be folded.
func (s *screen) raw(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.w, text)
}

// paragraph joins lines that were broken for the source's sake.
func paragraph(text string) string { return strings.Join(strings.Fields(text), " ") }

// The marks of a terminal that the demo uses.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

// paint marks text for a terminal; without colours it returns it unchanged.
func (s *screen) paint(mark, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + mark + "m" + text + "\x1b[0m"
}

// chapter begins a part of the story.
func (s *screen) chapter(title, text string) {
	s.printf("\n%s\n%s\n\n", s.paint(bold, title), paragraph(text))
}

// checked says that something has been found true.
func (s *screen) checked(format string, a ...any) {
	s.printf("  %s %s\n", s.paint(green, "ok"), fmt.Sprintf(format, a...))
}

// The columns of the table, the last one without a width.
var columns = []struct {
	title string
	width int
	right bool
}{
	{"request", 9, false},
	{"prefill", 8, false},
	{"decode", 7, false},
	{"overlap", 8, true},
	{"cached", 10, true},
	{"first token", 12, true},
	{"why this prefill worker", 0, false},
}

// line lays out one row of the table.
func line(cells ...string) string {
	var b strings.Builder
	for i, c := range columns {
		switch {
		case c.width == 0:
			b.WriteString("   " + cells[i])
		case c.right:
			fmt.Fprintf(&b, "%*s", c.width, cells[i])
		default:
			fmt.Fprintf(&b, "%-*s", c.width, cells[i])
		}
	}
	return strings.TrimRight(b.String(), " ")
}

func (s *screen) tableHead() {
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	s.printf("  %s\n", s.paint(dim, line(titles...)))
}

// tableRow prints one served request.
func (s *screen) tableRow(r *served) {
	d := r.last()
	s.printf("  %s\n", line(r.label(), r.names.of(d.Prefill.Rank.ID), r.names.of(d.Decode.Rank.ID),
		fmt.Sprintf("%d/%d", d.Prefill.OverlapBlocks, d.PromptBlocks),
		strconv.Itoa(r.answer.cachedTokens)+"/"+strconv.Itoa(r.answer.promptTokens),
		millis(r.answer.firstToken), why(&d.Prefill, r.names)))
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + " ms" }

// working shows that something takes a while: a dot every two seconds, and the time it
// took at the end.
func (s *screen) working(what string, do func() error) error {
	s.raw(what + " ")
	begun, done, over := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				s.raw(".")
			}
		}
	}()
	err := do()
	close(done)
	<-over
	s.raw(fmt.Sprintf(" %.1f s\n", time.Since(begun).Seconds()))
	return err
}
