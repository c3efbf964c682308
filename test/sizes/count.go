package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// linesOf returns how many lines of a Go file are neither blank nor comment.
func linesOf(src []byte) (int, error) {
	var errs scanner.ErrorList
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(src))
	s.Init(file, src, errs.Add, 0) // comments are passed over
	n, last := 0, 0
	for {
		pos, tok, text := s.Scan()
		switch {
		case tok == token.EOF:
			return n, errs.Err()
		case tok == token.SEMICOLON && text == "\n":
			continue // nobody wrote it
		}
		first := file.PositionFor(pos, false).Line
		for i, l := range strings.Split(text, "\n") { // only a raw string has several
			if at := first + i; at > last && (i == 0 || strings.TrimSpace(l) != "") {
				n, last = n+1, at
			}
		}
	}
}

// lines are those of a file.
type lines struct {
	n int
	// apart: a tag of tests keeps the file out of what is built for users.
	apart bool
}

// ofTests matches a file that is built with a tag of tests only: internal checks, and the
// engine of an example.
var ofTests = regexp.MustCompile(`\A//go:build (invariants|example)\n`)

// toolingModule is the folder of our other module.
const toolingModule = "test"

// count returns the lines of each Go file of the two modules in fsys, by path.
func count(fsys fs.FS) (map[string]lines, error) {
	out := map[string]lines{}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != "." && foreign(fsys, p) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(p) != ".go" {
			return nil
		}
		src, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		n, err := linesOf(src)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		out[p] = lines{n, ofTests.Match(src)}
		return nil
	})
	return out, err
}

// foreign reports whether a folder has no package of the two modules, as go list has it.
func foreign(fsys fs.FS, dir string) bool {
	name := path.Base(dir)
	if name == "testdata" || name == "vendor" || name[0] == '.' || name[0] == '_' {
		return true
	}
	_, err := fs.Stat(fsys, dir+"/go.mod")
	return err == nil && dir != toolingModule
}
