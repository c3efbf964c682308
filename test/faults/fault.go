package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// fault is one line of the product that is changed, and who has to notice.
type fault struct {
	name, area string
	file       string // from the root
	in         string // the function, or Type.method; empty: the whole file
	old, new   string
	pkg        string // of the tests, as ./test/envoytest
	tests      []string
	tags       string
	why        string
}

const usualTags = "invariants,e2e"

// parse reads a list of faults.
func parse(r io.Reader) ([]fault, error) {
	var out []fault
	var now *fault
	names := map[string]bool{}
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, _ := strings.Cut(line, " ")
		value = strings.TrimSpace(value)
		if key == "fault" {
			if names[value] {
				return nil, fmt.Errorf("line %d: fault %q is there twice", n, value)
			}
			names[value] = true
			out = append(out, fault{name: value, tags: usualTags})
			now = &out[len(out)-1]
			continue
		}
		if now == nil {
			return nil, fmt.Errorf("line %d: %q: expected fault and its name", n, line)
		}
		if err := now.set(key, value); err != nil {
			return nil, fmt.Errorf("line %d: fault %q: %w", n, now.name, err)
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("read the list: %w", err)
	}
	for i := range out {
		if err := out[i].check(); err != nil {
			return nil, fmt.Errorf("fault %q: %w", out[i].name, err)
		}
	}
	return out, nil
}

// set takes one line of a block.
func (f *fault) set(key, value string) error {
	if key == "test" {
		if slices.Contains(f.tests, value) {
			return fmt.Errorf("test %q is there twice", value)
		}
		f.tests = append(f.tests, value)
		return nil
	}
	field, known := map[string]*string{
		"area": &f.area, "file": &f.file, "in": &f.in, "-": &f.old, "+": &f.new,
		"package": &f.pkg, "tags": &f.tags, "why:": &f.why,
	}[key]
	switch {
	case !known:
		return fmt.Errorf("%q: expected area, file, in, -, +, package, test, tags or \"why:\"", key)
	case *field != "" && key != "tags":
		return fmt.Errorf("%s is there twice", key)
	}
	*field = value
	return nil
}

// check reports what a block lacks.
func (f *fault) check() error {
	for _, x := range []struct{ key, value string }{
		{"name", f.name}, {"area", f.area}, {"file", f.file}, {"-", f.old}, {"package", f.pkg}, {"tags", f.tags}, {"why:", f.why},
	} {
		if x.value == "" {
			return fmt.Errorf("%s is missing", x.key)
		}
	}
	switch {
	case f.old == f.new:
		return errors.New("both lines are the same")
	case len(f.tests) == 0 || slices.Contains(f.tests, ""):
		return errors.New("test is missing")
	case !strings.HasPrefix(f.pkg, "./"):
		return fmt.Errorf("package %q: expected a folder, ./…", f.pkg)
	}
	return nil
}
