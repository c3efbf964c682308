package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/test/stack"
)

// gotool runs the go command in the modules of a tree, over a file in place of another.
type gotool struct {
	root  string // of the tree
	flags string // GOFLAGS, as it was
	over  string // the overlay; empty: none
}

// newGotool asks go for its flags; the tree is the one above this folder.
func newGotool(ctx context.Context) (*gotool, error) {
	root, err := stack.Root()
	if err != nil {
		return nil, err
	}
	flags, err := exec.CommandContext(ctx, "go", "env", "GOFLAGS").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	return &gotool{root: root, flags: strings.TrimSpace(string(flags))}, nil
}

// overlay returns a gotool that has content in place of a file, which it keeps in dir.
func (g *gotool) overlay(dir, file, content string) (*gotool, error) {
	to, list := filepath.Join(dir, filepath.Base(file)), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(to, []byte(content), 0o600); err != nil {
		return nil, fmt.Errorf("write the changed file: %w", err)
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(g.root, file): to}})
	if err != nil {
		return nil, fmt.Errorf("write the overlay: %w", err)
	}
	if err := os.WriteFile(list, b, 0o600); err != nil {
		return nil, fmt.Errorf("write the overlay: %w", err)
	}
	return &gotool{root: g.root, flags: g.flags, over: list}, nil
}

// run returns what the command has written about a package, which is named from the root. What
// it leaves behind, as the processes of a test that was cut off, is ended.
func (g *gotool) run(ctx context.Context, pkg string, args ...string) ([]byte, error) {
	module, name := stack.ModuleOf(pkg)
	cmd := exec.CommandContext(ctx, "go", append(args, name)...)
	cmd.Dir = filepath.Join(g.root, module)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if g.over != "" {
		cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(g.flags+" '-overlay="+g.over+"'"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if ctx.Err() != nil {
		return out.Bytes(), ctx.Err()
	}
	return out.Bytes(), err
}

// build reports why the package does not compile.
func (g *gotool) build(ctx context.Context, folder, tags string) error {
	out, err := g.run(ctx, "./"+filepath.ToSlash(folder), "build", "-tags", tags, "-o", os.DevNull)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("it does not compile: %s", strings.TrimSpace(string(out)))
	}
	return err
}

// test runs tests of one package.
func (g *gotool) test(ctx context.Context, timeout time.Duration, pkg, tags, run string, more ...string) (*report, error) {
	args := append([]string{"test", "-json", "-vet=off", "-count=1", "-timeout", timeout.String(), "-tags", tags, "-run", run}, more...)
	out, err := g.run(ctx, pkg, args...)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	return read(out), nil
}
