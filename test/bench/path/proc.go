package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/test/stack"
)

// child is a process of ours. It ends with its standard input, so also when
// this process is killed.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer // read only after wait
}

func startChild(ctx context.Context, path string, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, path, args...)}
	c.cmd.WaitDelay = 2 * time.Second
	c.cmd.Stderr = &c.stderr
	var err error
	c.stdin, err = c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	c.stdout = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// stop ends the child and returns when it is gone.
func (c *child) stop() {
	_ = c.stdin.Close()
	t := time.AfterFunc(2*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer t.Stop()
	_ = c.cmd.Wait()
}

// totals are what a Go process has allocated since it began.
type totals struct{ bytes, mallocs uint64 }

func (t totals) minus(o totals) totals { return totals{t.bytes - o.bytes, t.mallocs - o.mallocs} }

// server is a process under test.
type server struct {
	name   string
	pid    int
	socket string
	admin  string // the plugin's, with http://; "" where there is none
	totals func(context.Context) (totals, error)
	asking totals // what one call of totals itself allocates
	stop   func()
}

// calibrate finds what reading the totals costs, so that it can be taken off.
func (s *server) calibrate(ctx context.Context) error {
	var last totals
	for range 3 {
		t, err := s.totals(ctx)
		if err != nil {
			return err
		}
		s.asking, last = t.minus(last), t
	}
	return nil
}

// startNothing runs the server that decides nothing.
func startNothing(ctx context.Context, bin, dir, decode, prefill string) (*server, error) {
	socket, stats := filepath.Join(dir, "nothing.sock"), filepath.Join(dir, "nothing.stats")
	_ = os.Remove(socket)
	c, err := startChild(ctx, filepath.Join(bin, "nothing"),
		"-socket", socket, "-stats", stats, "-decode", decode, "-prefill", prefill)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := stack.Await(wait, "the do-nothing server to listen", func() bool { return exists(socket) }); err != nil {
		c.stop()
		return nil, errors.Join(err, errors.New(c.stderr.String()))
	}
	read := func(ctx context.Context) (totals, error) {
		_ = os.Remove(stats)
		if err := c.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			return totals{}, fmt.Errorf("ask the do-nothing server: %w", err)
		}
		if err := stack.Await(ctx, "the do-nothing server's totals", func() bool { return exists(stats) }); err != nil {
			return totals{}, err
		}
		text, err := os.ReadFile(stats)
		if err != nil {
			return totals{}, err
		}
		var t totals
		if _, err := fmt.Sscan(string(text), &t.bytes, &t.mallocs); err != nil {
			return totals{}, fmt.Errorf("totals %q: %w", text, err)
		}
		return t, nil
	}
	return &server{name: nothingServer, pid: c.pid(), socket: socket, totals: read, stop: c.stop}, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// goMetrics reads the totals out of what the plugin tells Prometheus.
func goMetrics(ctx context.Context, admin string) (totals, error) {
	body, err := stack.Get(ctx, admin+"/metrics")
	if err != nil {
		return totals{}, err
	}
	var t totals
	for name, to := range map[string]*uint64{"go_memstats_alloc_bytes_total": &t.bytes, "go_memstats_mallocs_total": &t.mallocs} {
		*to, err = metric(body, name)
		if err != nil {
			return totals{}, err
		}
	}
	return t, nil
}

// metric returns one unlabelled counter of a Prometheus text page.
func metric(page, name string) (uint64, error) {
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || f < 0 {
				return 0, fmt.Errorf("metric %s: %q: expected a number", name, value)
			}
			return uint64(f), nil
		}
	}
	return 0, fmt.Errorf("metric %s: not on the page", name)
}
