package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	testTimeout    = 5 * time.Minute
	controlTimeout = 30 * time.Minute // of all tests of one package
	storyLines     = 20
)

// runner runs faults one after the other.
type runner struct {
	tool  *gotool
	o     *options
	w     io.Writer
	red   map[testKey]string // without any fault, and how
	count struct{ caught, missed, wrong int }
}

// testKey names a test of the tree.
type testKey struct{ pkg, tags, test string }

func (r *runner) all(ctx context.Context, faults []fault) error {
	if r.o.control {
		if err := r.control(ctx, faults); err != nil {
			return err
		}
	}
	for i := range faults {
		if err := r.one(ctx, &faults[i]); err != nil {
			return err
		}
	}
	return nil
}

// total prints the last line and reports whether every fault was caught.
func (r *runner) total(of int) bool {
	c := &r.count
	fmt.Fprintf(r.w, "%d faults: %d caught, %d not caught, %d errors, %d not run\n",
		of, c.caught, c.missed, c.wrong, of-c.caught-c.missed-c.wrong)
	return c.caught == of
}

// control runs the tests of the faults without any, by package.
func (r *runner) control(ctx context.Context, faults []fault) error {
	r.red = map[testKey]string{}
	for _, g := range groups(faults) {
		start := time.Now()
		rep, err := r.tool.test(ctx, controlTimeout, g.pkg, g.tags, pattern(g.tests...))
		if err != nil {
			return err
		}
		red := 0
		for _, t := range g.tests {
			if why := unwell(rep, t); why != "" {
				r.red[testKey{g.pkg, g.tags, t}] = why
				red++
			}
		}
		fmt.Fprintf(r.w, "control     %s: %d tests, %d not well (%s)\n", g.pkg, len(g.tests), red, took(start))
		if red > 0 {
			fmt.Fprintln(r.w, rep.story(storyLines))
		}
	}
	return nil
}

// group is tests that one run of go test can name.
type group struct {
	pkg, tags string
	tests     []string
}

// groups gathers the tests of a package. One with subtests stays alone: a pattern's
// levels cannot be told apart by test.
func groups(faults []fault) []*group {
	var out []*group
	seen, together := map[testKey]bool{}, map[testKey]*group{}
	for i := range faults {
		f := &faults[i]
		for _, t := range f.tests {
			k := testKey{f.pkg, f.tags, t}
			if seen[k] {
				continue
			}
			seen[k] = true
			if !strings.Contains(t, "/") {
				k.test = ""
			}
			if together[k] == nil {
				together[k] = &group{pkg: f.pkg, tags: f.tags}
				out = append(out, together[k])
			}
			together[k].tests = append(together[k].tests, t)
		}
	}
	return out
}

// unwell says what keeps a test from being a judge of a fault.
func unwell(rep *report, test string) string {
	switch {
	case !rep.built:
		return "its package does not compile without the fault"
	case rep.of(test) == notRun:
		return "it has not run without the fault"
	case rep.of(test) != passed:
		return "it does not pass without the fault"
	}
	return ""
}

// one runs one fault and prints its line. The error is the end of all.
func (r *runner) one(ctx context.Context, f *fault) error {
	start := time.Now()
	by, out, err := r.judge(ctx, f)
	var missed *missedError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &missed):
		r.count.missed++
		fmt.Fprintf(r.w, "NOT CAUGHT  %s: %s (%s)\n", f.name, err, took(start))
	case err != nil:
		r.count.wrong++
		fmt.Fprintf(r.w, "error       %s: %s (%s)\n", f.name, err, took(start))
	default:
		r.count.caught++
		fmt.Fprintf(r.w, "caught      %s by %s (%s)\n", f.name, by, took(start))
	}
	if out != "" && (err != nil || r.o.verbose) {
		fmt.Fprintln(r.w, "    "+strings.ReplaceAll(out, "\n", "\n    "))
	}
	return nil
}

// missedError names a test that has passed in spite of the fault.
type missedError struct{ test string }

func (e *missedError) Error() string { return e.test + " passes" }

// judge runs a fault's tests, each of which has to turn red, and says by whom it was
// caught and what was written at last.
func (r *runner) judge(ctx context.Context, f *fault) (by, out string, err error) {
	g, done, err := r.broken(f)
	if err != nil {
		return "", "", err
	}
	defer done()
	if err := g.build(ctx, filepath.Dir(f.file), f.tags); err != nil {
		return "", "", err
	}
	for _, t := range f.tests {
		if why := r.red[testKey{f.pkg, f.tags, t}]; why != "" {
			return "", "", fmt.Errorf("%s: %s", t, why)
		}
		rep, err := g.test(ctx, testTimeout, f.pkg, f.tags, pattern(t), "-failfast")
		if err != nil {
			return "", "", err
		}
		out = rep.story(storyLines)
		switch h := rep.of(t); {
		case !rep.built:
			return "", out, errors.New("the tests do not compile")
		case h == failed:
		case h == cutOff:
			t += ", which did not end"
		case h == passed:
			return "", out, &missedError{t}
		case h == skipped:
			return "", out, fmt.Errorf("%s was skipped", t)
		default:
			return "", out, fmt.Errorf("no test of %s is %s, or none could begin", f.pkg, t)
		}
		by += ", " + t
	}
	return strings.TrimPrefix(by, ", "), out, nil
}

// broken returns a go command that sees the fault; done forgets it.
func (r *runner) broken(f *fault) (g *gotool, done func(), err error) {
	src, err := os.ReadFile(filepath.Join(r.tool.root, f.file))
	if err != nil {
		return nil, nil, fmt.Errorf("read the file: %w", err)
	}
	text, err := f.apply(string(src))
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "baton-fault-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder: %w", err)
	}
	g, err = r.tool.overlay(dir, f.file, text)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	return g, func() { _ = os.RemoveAll(dir) }, nil
}

func took(since time.Time) time.Duration { return time.Since(since).Round(100 * time.Millisecond) }
