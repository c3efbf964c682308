package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// goRivals are the rivals written in Go: the folder, the name its runner knows,
// and what its build needs.
var goRivals = []struct {
	dir, peer string
	flags     []string
}{
	{"peer-llmd", "llmd-default", nil},
	{"peer-gaie", "gaie-approx", []string{"-ldflags=-checklinkname=0"}},
	{"peer-aibrix", "aibrix-sync", nil},
}

// traceArgs are the generator's arguments for each trace. chat64x9 is chat64
// for nine turnovers of its contents.
var traceArgs = map[string][]string{
	"chat64":   {"-workers", "64", "-block", "64", "-capacity", "16384", "-queries", "50000"},
	"chat16":   {"-seed", "2", "-workers", "64", "-block", "16", "-capacity", "65536", "-queries", "20000"},
	"large":    {"-seed", "3", "-workers", "1000", "-block", "64", "-capacity", "10500", "-queries", "20000"},
	"chat64x9": {"-workers", "64", "-block", "64", "-capacity", "16384", "-queries", "222000"},
}

// lab is where the rivals are built and the traces lie.
type lab struct {
	src string // the rivals' sources
	dir string // ours to write to
	log io.Writer
}

func (l *lab) bin(name string) string   { return filepath.Join(l.dir, "bin", name) }
func (l *lab) trace(name string) string { return filepath.Join(l.dir, "traces", name+".kvt") }

func (l *lab) command(ctx context.Context, dir, name string, args ...string) error {
	fmt.Fprintln(l.log, name, args)
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Stdout, c.Stderr = dir, l.log, l.log
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	return c.Run()
}

// build makes the generator and the rivals. What cannot be built is reported
// and then missing from the table; without the generator nothing can be done.
func (l *lab) build(ctx context.Context, withGo bool) error {
	for _, d := range []string{"bin", "traces"} {
		if err := os.MkdirAll(filepath.Join(l.dir, d), 0o755); err != nil {
			return err
		}
	}
	// Copied, since builds write beside their sources.
	src := filepath.Join(l.dir, "src")
	if err := os.RemoveAll(src); err != nil {
		return err
	}
	if err := os.CopyFS(src, os.DirFS(l.src)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("copy the rivals' sources: %w", err)
	}
	goBuild := func(dir, out string, flags ...string) error {
		return l.command(ctx, filepath.Join(src, dir), "go", append(append([]string{"build", "-o", out}, flags...), ".")...)
	}
	if err := goBuild("gen", l.bin("gen")); err != nil {
		return fmt.Errorf("build the trace generator: %w", err)
	}
	if err := l.command(ctx, filepath.Join(src, "rust"), "cargo", "build", "--release", "-j", "2", "--target-dir", filepath.Join(l.dir, "target")); err != nil {
		fmt.Fprintln(l.log, "Dynamo's runner is missing:", err)
	}
	if !withGo {
		return nil
	}
	for _, p := range goRivals {
		if err := goBuild(p.dir, l.bin(p.dir), p.flags...); err != nil {
			fmt.Fprintln(l.log, p.dir, "is missing:", err)
		}
	}
	return nil
}

// ensureTrace generates a trace that is not there yet.
func (l *lab) ensureTrace(ctx context.Context, name string) error {
	args, ok := traceArgs[name]
	if !ok {
		return fmt.Errorf("trace %q: expected chat64, chat16, large or chat64x9", name)
	}
	if _, err := os.Stat(l.trace(name)); err == nil {
		return nil
	}
	part := l.trace(name) + ".part"
	if err := l.command(ctx, l.dir, l.bin("gen"), append([]string{"-o", part}, args...)...); err != nil {
		return fmt.Errorf("generate trace %s: %w", name, err)
	}
	return os.Rename(part, l.trace(name))
}
