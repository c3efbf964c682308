// Package routetable reads the tables that say what becomes of a request on each path that
// engines declare (internal/extproc/testdata/routes). Tests of the machine use it, and tests
// through a real Envoy and with real engines.
//
// Contract. The file named classes lists each path once, with its class. Each other file
// lists the paths that the sources of one engine declare. Errors are a path without a class,
// a path that is listed twice, and a path with a class that no engine declares.
//
// What it does not do: it decides the class of no path, and sends no request.
package routetable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The classes.
const (
	Read   = "read"   // the plugin reads the body, and may split the request
	Ours   = "ours"   // the plugin answers the request
	Passed = "passed" // the request is passed on to one worker
	Never  = "never"  // the request is never passed on
)

// Classes reads the files in dir and returns the class of each path.
func Classes(dir string) (map[string]string, error) {
	classes, errs := map[string]string{}, []error(nil)
	lines, err := read(filepath.Join(dir, "classes"))
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		class := line[0]
		if !slices.Contains([]string{Read, Ours, Passed, Never}, class) {
			errs = append(errs, fmt.Errorf("routetable: class %q: expected read, ours, passed or never", class))
		}
		for _, path := range line[1:] {
			if classes[path] != "" {
				errs = append(errs, fmt.Errorf("routetable: %s stands in classes twice", path))
			}
			classes[path] = class
		}
	}
	declared := map[string]bool{}
	engines, err := filepath.Glob(filepath.Join(dir, "*-*"))
	if err != nil {
		return nil, fmt.Errorf("routetable: %w", err)
	}
	for _, engine := range engines {
		lines, err := read(engine)
		errs = append(errs, err)
		for _, line := range lines {
			declared[line[0]] = true
			if classes[line[0]] == "" {
				errs = append(errs, fmt.Errorf("routetable: %s of %s has no class: what becomes of a request on it?", line[0], filepath.Base(engine)))
			}
		}
	}
	for path := range classes {
		if !declared[path] {
			errs = append(errs, fmt.Errorf("routetable: %s is %s, and no engine declares it", path, classes[path]))
		}
	}
	return classes, errors.Join(errs...)
}

// Concrete returns a path that a request may have: each parameter in braces is replaced by a
// value.
func Concrete(path string) string {
	for {
		begin, end := strings.IndexByte(path, '{'), strings.IndexByte(path, '}')
		if begin < 0 || end < begin {
			return path
		}
		path = path[:begin] + "x17" + path[end+1:]
	}
}

// read returns the words of each line, without empty lines and comments.
func read(file string) (out [][]string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("routetable: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] != "#" {
			out = append(out, f)
		}
	}
	return out, nil
}
