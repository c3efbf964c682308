package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// patience is how long nothing is said while a step goes on. People are promised 30 s.
const patience = 20 * time.Second

// step is a command that somebody waits for. Its lines begin with a clock and a count.
// Safe for concurrent use: the command's output and the clock come from two goroutines.
type step struct {
	name  string
	count string // as 3/9, or empty
	begun time.Time

	mu   sync.Mutex // guards the fields below
	w    io.Writer
	last time.Time     // when something was printed
	far  func() string // how far it is; called with mu held
}

// begin prints that the step begins.
func begin(w io.Writer, name, count string) *step {
	now := time.Now()
	s := &step{name: name, count: count, begun: now, w: w, last: now, far: func() string { return "" }}
	s.line("")
	return s
}

// line prints one line of the step itself.
func (s *step) line(text string) {
	head := s.name
	if s.count != "" {
		head = s.count + "  " + head
	}
	if text != "" {
		head += ": " + text
	}
	_, _ = fmt.Fprintf(s.w, "%s  %s\n", time.Now().Format(time.TimeOnly), head)
	s.last = time.Now()
}

// say prints what the command said, or what is told of it. mu is held.
func (s *step) say(format string, a ...any) {
	_, _ = fmt.Fprintf(s.w, format, a...)
	s.last = time.Now()
}

// beat prints a line whenever nothing was printed for as long as patience, until the
// returned function is called.
func (s *step) beat() (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			s.mu.Lock()
			if time.Since(s.last) >= patience {
				s.line(strings.TrimSuffix(fmt.Sprintf("since %.0f s; %s", time.Since(s.begun).Seconds(), s.far()), "; "))
			}
			s.mu.Unlock()
		}
	}()
	return func() { close(over); <-done }
}

// end prints what the step took.
func (s *step) end(how string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line(fmt.Sprintf("%s, %.0f s", how, time.Since(s.begun).Seconds()))
}

// follow copies a command's output to the file, or else to the step's lines, and says now
// and then which line was its last.
func (s *step) follow(in io.Reader, file string) error {
	var kept io.Writer
	if file != "" {
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // each Write has told its error
		kept = f
	}
	var last string
	s.far = func() string {
		if last == "" || kept == nil {
			return last
		}
		return "its last line: " + last
	}
	defer s.beat()()
	r := bufio.NewReaderSize(in, 1<<16)
	for {
		line, err := r.ReadSlice('\n')
		s.mu.Lock()
		var failed error
		switch text := bytes.TrimSpace(line); {
		case kept != nil:
			_, failed = kept.Write(line)
			if len(text) > 0 {
				last = fmt.Sprintf("%.100s", text)
			}
		case len(line) > 0:
			s.say("%s", line)
		}
		s.mu.Unlock()
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// next returns how many steps have begun with this one; dir has a file for each. Two that
// begin at once get two numbers.
func next(dir string) (int, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return 0, err
	}
	for n := 1; ; n++ {
		f, err := os.OpenFile(fmt.Sprintf("%s/%d", dir, n), os.O_CREATE|os.O_EXCL, 0o666)
		switch {
		case err == nil:
			return n, f.Close()
		case !os.IsExist(err):
			return 0, err
		}
	}
}
