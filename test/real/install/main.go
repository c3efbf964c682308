package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/test/real"
	"github.com/seed-60ae5743/baton/test/stack"
)

func main() {
	python := flag.String("python", "python3", "a Python 3.11 to 3.13")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "install puts real engines into .tools/real. Some 10 GB.")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *python, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "install:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

// step is one part of the install: a folder of its own below home.
type step struct {
	name string
	what string   // for who waits
	size int64    // on disk, in bytes; 0: little
	pins []string // the files that say what is in it
	make func(ctx context.Context, in *installer, dir string) error
}

type installer struct {
	root, home, python string
	out                io.Writer
}

const gigabyte = 1 << 30

var steps = []step{
	{"uv", "uv, which installs the rest", 0, []string{"pins/uv.txt"}, makeUV},
	{"vllm", "vLLM 0.32.0 for CPUs, with PyTorch and NIXL", 11 * gigabyte, []string{"pins/vllm.txt"}, makeVLLM},
	{"mooncake", "Mooncake's transfer engine, for vLLM", 0, []string{"pins/mooncake.txt", "python/mooncake_cpu.py"}, makeMooncake},
	{"sglang", "SGLang 0.5.23, on vLLM's PyTorch", gigabyte, []string{"pins/sglang.txt", "python/sglang_cpu.py"}, makeSGLang},
	{"node", "OpenAI's client for JavaScript, and Qwen3's tokenizer", 0, []string{"node/package-lock.json", "node/package.json", "node/client.mjs"}, makeNode},
	{"clients", "clients of other APIs: OpenAI's, Anthropic's, the Agents SDK", 0, []string{
		"pins/clients.txt", "clients/package-lock.json", "clients/package.json", "clients/clients.mjs",
	}, makeClients},
	{"models", "tiny models of random weights", 0, []string{"python/models.py", "node/package-lock.json"}, makeModels},
}

func run(ctx context.Context, python string, out io.Writer) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	in := &installer{root: root, home: real.Home(root), python: python, out: out}
	return in.install(ctx, steps)
}

// install makes the steps that are not whole.
func (in *installer) install(ctx context.Context, steps []step) error {
	missing := slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return in.whole(&s) })
	if len(missing) == 0 {
		return nil
	}
	var need int64
	for _, s := range missing {
		need += s.size
	}
	if err := preflight(in, need); err != nil {
		return err
	}
	if need > 0 {
		fmt.Fprintf(in.out, "real engines go to .tools/real: up to %d GB, once; what is cut goes on where it was.\n", need/gigabyte)
	}
	for i, s := range missing {
		began := time.Now()
		fmt.Fprintf(in.out, "%d of %d: %s\n", i+1, len(missing), s.what)
		dir := filepath.Join(in.home, s.name)
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clear what is left of %s: %w", s.name, err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
		if err := s.make(ctx, in, dir); err != nil {
			return fmt.Errorf("%s: %w (run it again: what was downloaded is kept)", s.name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, real.Mark), []byte(in.sum(&s)), 0o600); err != nil {
			return fmt.Errorf("mark %s as whole: %w", s.name, err)
		}
		fmt.Fprintf(in.out, "   %s\n", time.Since(began).Round(time.Second))
	}
	return nil
}

// whole reports whether the step's mark is that of its pins.
func (in *installer) whole(s *step) bool {
	mark, err := os.ReadFile(filepath.Join(in.home, s.name, real.Mark))
	return err == nil && string(mark) == in.sum(s)
}

// sum names what a step is made of.
func (in *installer) sum(s *step) string {
	h := sha256.New()
	for _, name := range s.pins {
		b, err := os.ReadFile(in.at(name))
		if err != nil {
			b = []byte(err.Error())
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// at names a file of this package's folder.
func (in *installer) at(name string) string { return filepath.Join(in.root, "test", "real", name) }

// run runs a command whose output is the progress.
func (in *installer) run(ctx context.Context, dir string, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, in.out, in.out
	cmd.Env = append(cmd.Environ(), env...)
	stack.EndWithParent(cmd, syscall.SIGKILL)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(append([]string{filepath.Base(name)}, args...), " "), err)
	}
	return nil
}

// preflight tells all that speaks against an install.
func preflight(in *installer, need int64) error {
	var errs []error
	var fs syscall.Statfs_t
	if err := os.MkdirAll(in.home, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", in.home, err)
	}
	if err := syscall.Statfs(in.home, &fs); err != nil {
		errs = append(errs, fmt.Errorf("free space: %w", err))
	} else if free := int64(fs.Bavail) * fs.Bsize; free < need {
		errs = append(errs, fmt.Errorf("free space: %d GB are needed and %d GB are free where .tools is", need/gigabyte, free/gigabyte))
	}
	if err := real.CanRun(); err != nil {
		errs = append(errs, err)
	}
	version, err := exec.Command(in.python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
	if v := strings.TrimSpace(string(version)); err != nil || !slices.Contains([]string{"3.11", "3.12", "3.13"}, v) {
		errs = append(errs, fmt.Errorf("%s: Python 3.11, 3.12 or 3.13 is needed, this is %q (PYTHON=… names another)", in.python, v))
	}
	if _, err := exec.LookPath("npm"); err != nil {
		errs = append(errs, errors.New("npm: not found; Node.js 20 or later has it"))
	}
	return errors.Join(errs...)
}
