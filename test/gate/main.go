package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/seed-60ae5743/baton/test/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// The exit codes.
const (
	exitHeld  = 0
	exitNot   = 1 // a claim did not hold, or nobody has seen it
	exitUsage = 2
)

// gate is one run.
type gate struct {
	root, kept string // kept is where steps' results are
	out        io.Writer
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("gate", flag.ContinueOnError)
	flags.SetOutput(errs)
	list := flags.Bool("list", false, "print the steps and run none")
	page := flags.Bool("page", false, "run no step: write the page from what steps have left")
	only := flags.String("only", "", "steps with commas between them; default all")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitHeld
	} else if err != nil {
		return exitUsage
	}
	chosen, err := choose(steps(), *only)
	g := &gate{out: out}
	if err == nil {
		g.root, err = stack.Root()
	}
	if err != nil {
		fmt.Fprintln(errs, "gate:", err)
		return exitUsage
	}
	g.kept = filepath.Join(g.root, ".run", "gate")
	if *list {
		g.list(chosen)
		return exitHeld
	}
	if !*page {
		err = g.all(ctx, chosen)
	}
	held := false
	if err == nil {
		held, err = g.page(ctx, time.Now())
	}
	if err != nil {
		fmt.Fprintln(errs, "gate:", err)
		return exitNot
	}
	if !held {
		fmt.Fprintf(errs, "gate: not every claim of README.md has held: %s says which\n", pageName)
		return exitNot
	}
	return exitHeld
}

// choose returns the steps that are named, in their order.
func choose(all []step, names string) ([]step, error) {
	if names == "" {
		return all, nil
	}
	wanted := strings.Split(names, ",")
	var out []step
	for _, s := range all {
		if i := slices.Index(wanted, s.name); i >= 0 {
			out, wanted = append(out, s), slices.Delete(wanted, i, i+1)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("-only: no step is called %s: -list has them", strings.Join(wanted, ", "))
	}
	return out, nil
}

func (g *gate) list(all []step) {
	t := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
	total := time.Duration(0)
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%.0f min\tmake %s\t%s\n", s.name, s.takes.Minutes(), s.target[0], s.what)
		total += s.takes
	}
	fmt.Fprintf(t, "in all\t%.0f min\t\t\n", total.Minutes())
	_ = t.Flush()
}

// all runs steps one after another. Only an end from outside stops them.
func (g *gate) all(ctx context.Context, chosen []step) error {
	commit, err := g.commit(ctx)
	if err != nil {
		return err
	}
	left := time.Duration(0)
	for _, s := range chosen {
		left += s.takes
	}
	for i, s := range chosen {
		fmt.Fprintf(g.out, "%s  gate %d/%d  %s: %s; some %.0f minutes are left\n", time.Now().Format(time.TimeOnly), i+1, len(chosen), s.name, s.what, left.Minutes())
		r := record{Commit: commit, Began: time.Now()}
		err := g.clear(s)
		if err == nil {
			err = g.step(ctx, s)
		}
		if err != nil {
			r.Failed = err.Error()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.Seconds = time.Since(r.Began).Seconds()
		if err := g.keep(s, r); err != nil {
			return err
		}
		left -= s.takes
	}
	return nil
}

// clear removes what a step's target has left before: some targets add to their files, and what
// they do not write this time has not been seen.
func (g *gate) clear(s step) error {
	for _, file := range s.leaves {
		err := os.Remove(filepath.Join(g.root, file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// step runs a target, in a process group of its own: at the limit all of it ends.
func (g *gate) step(ctx context.Context, s step) error {
	if s.root && os.Geteuid() != 0 {
		return errors.New("not run: it needs root")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("it has not ended within %s", s.limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", append([]string{"--no-print-directory"}, s.target...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = g.root, g.out, g.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left of it
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// keep puts what a step has left, and its record, in the place of what it left before.
func (g *gate) keep(s step, r record) error {
	dir := filepath.Join(g.kept, s.name)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if err := keep(g.root, dir, s.leaves); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "record.json"), text, 0o600)
}

// product are git's patterns of what is given out: a change elsewhere, of a judge or of a page, leaves what
// was seen as it is.
var product = []string{"--", ".", ":!docs", ":!*.md", ":!test", ":!.ci", ":!.gitignore", ":!Makefile", ":!*_test.go", ":!*/testdata/*"}

// commit is what is checked out, with a + if the product differs from it.
func (g *gate) commit(ctx context.Context) (string, error) {
	commit, err := g.git(ctx, "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "", err
	}
	changed, err := g.git(ctx, append([]string{"status", "--porcelain", "--untracked-files=no"}, product...)...)
	if err != nil {
		return "", err
	}
	if changed != "" {
		commit += "+"
	}
	return commit, nil
}

// same reports whether two commits have the same product. One that git does not know has another.
func (g *gate) same(ctx context.Context, a, b string) bool {
	if strings.HasSuffix(a, "+") || strings.HasSuffix(b, "+") {
		return false
	}
	_, err := g.git(ctx, append([]string{"diff", "--quiet", a, b}, product...)...)
	return err == nil
}

func (g *gate) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = g.root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}
