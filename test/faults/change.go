package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
)

// apply returns the file with its line changed.
func (f *fault) apply(src string) (string, error) {
	lines := strings.Split(src, "\n")
	first, last := 0, len(lines)-1
	if f.in != "" {
		var err error
		find := linesOf
		if path.Ext(f.file) == ".tmpl" {
			find = linesOfTemplate
		}
		first, last, err = find(src, f.in)
		if err != nil {
			return "", fmt.Errorf("%s: %w", f.file, err)
		}
	}
	at := -1
	for i := first; i <= last; i++ {
		if strings.TrimSpace(lines[i]) != f.old {
			continue
		}
		if at >= 0 {
			return "", fmt.Errorf("%s: lines %d and %d are both %q: say in which function", f.file, at+1, i+1, f.old)
		}
		at = i
	}
	if at < 0 {
		return "", fmt.Errorf("%s: no line is %q", f.file, f.old)
	}
	indent := lines[at][:strings.Index(lines[at], f.old)]
	lines[at] = strings.TrimRight(indent+f.new, " \t")
	return strings.Join(lines, "\n"), nil
}

// linesOf returns the first and the last line of a function, counted from 0.
func linesOf(src, name string) (first, last int, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, fmt.Errorf("parse: %w", err)
	}
	found := 0
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != name && nameOf(fn) != name {
			continue
		}
		found++
		first, last = fset.Position(fn.Pos()).Line-1, fset.Position(fn.End()).Line-1
	}
	if found != 1 {
		return 0, 0, fmt.Errorf("%d functions are %s, expected one", found, name)
	}
	return first, last, nil
}

// linesOfTemplate returns the first and the last line of what {{define}} names: up to
// the next one.
func linesOfTemplate(src, name string) (first, last int, err error) {
	const define = "{{define "
	lines := strings.Split(src, "\n")
	first = -1
	for i, line := range lines {
		switch {
		case first >= 0 && strings.HasPrefix(line, define):
			return first, i - 1, nil
		case strings.HasPrefix(line, fmt.Sprintf("%s%q", define, name)):
			first = i
		}
	}
	if first < 0 {
		return 0, 0, fmt.Errorf("no template is %s", name)
	}
	return first, len(lines) - 1, nil
}

// nameOf is Type.method, or the name of a function.
func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) != 1 {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	if g, ok := t.(*ast.IndexExpr); ok {
		t = g.X
	}
	id, ok := t.(*ast.Ident)
	if !ok {
		return fn.Name.Name
	}
	return id.Name + "." + fn.Name.Name
}
