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
)

// gotool runs the go command in the module, over a file in place of another.
type gotool struct {
	root  string
	flags string // GOFLAGS, as it was
	over  string // the overlay; empty: none
}

// newGotool asks go where the module is.
func newGotool(ctx context.Context) (*gotool, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD", "GOFLAGS").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	mod, flags, _ := strings.Cut(strings.TrimRight(string(out), "\n"), "\n")
	if filepath.Base(mod) != "go.mod" {
		return nil, errors.New("no go.mod in this folder or above it: run inside the repository")
	}
	return &gotool{root: filepath.Dir(mod), flags: strings.TrimSpace(flags)}, nil
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

// run returns what the command has written. What it leaves behind, as the processes
// of a test that was cut off, is ended.
func (g *gotool) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = g.root
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
	out, err := g.run(ctx, "build", "-tags", tags, "-o", os.DevNull, "./"+filepath.ToSlash(folder))
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("it does not compile: %s", strings.TrimSpace(string(out)))
	}
	return err
}

// test runs tests of one package.
func (g *gotool) test(ctx context.Context, timeout time.Duration, pkg, tags, run string, more ...string) (*report, error) {
	args := append([]string{"test", "-json", "-vet=off", "-count=1", "-timeout", timeout.String(), "-tags", tags, "-run", run}, more...)
	out, err := g.run(ctx, append(args, pkg)...)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	return read(out), nil
}
