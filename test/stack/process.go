package stack

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
	"sync"
	"syscall"
	"time"
)

// Process is one child process. Safe for concurrent use.
type Process struct {
	Name string
	cmd  *exec.Cmd
	log  *tail
	done chan struct{}

	group bool // signals go to the whole process group

	mu  sync.Mutex
	err error // guarded by mu; set before done is closed
}

// logKept is how many bytes of a process's output are kept, the last ones.
const logKept = 256 << 10

// start runs the command. Standard error is kept for [Process.Log]. Standard output goes
// to stdout, or is kept, too, if stdout is nil.
func start(ctx context.Context, name string, stdout io.Writer, path string, args ...string) (*Process, error) {
	return startWith(ctx, name, stdout, nil, path, args...)
}

// startWith is start of a process that has the files from descriptor 3 on.
func startWith(ctx context.Context, name string, stdout io.Writer, files []*os.File, path string, args ...string) (*Process, error) {
	p := &Process{Name: name, log: &tail{limit: logKept}, done: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, path, args...)
	p.cmd.ExtraFiles = files
	p.cmd.Stdout = stdout
	if stdout == nil {
		p.cmd.Stdout = p.log
	}
	p.cmd.Stderr = p.log
	p.cmd.WaitDelay = 2 * time.Second
	EndWithParent(p.cmd, syscall.SIGKILL)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("stack: start %s: %w", name, err)
	}
	p.waited()
	return p, nil
}

// within returns a command that puts itself into a cgroup before it runs. file is the
// cgroup's cgroup.procs. If file is "", the command is returned unchanged.
func within(file, path string, args []string) (string, []string) {
	if file == "" {
		return path, args
	}
	return "/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, file, path}, args...)
}

// waited starts a goroutine that closes done when the process has ended.
func (p *Process) waited() {
	go func() {
		err := p.cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.done)
	}()
}

// startReady runs a command that prints one line on standard output when it serves, and
// returns that line.
func startReady(ctx context.Context, name, path string, args ...string) (*Process, []byte, error) {
	r, w := io.Pipe()
	proc, err := start(ctx, name, w, path, args...)
	if err != nil {
		return nil, nil, err
	}
	go func() {
		<-proc.Done()
		_ = w.CloseWithError(io.EOF)
	}()
	lines := make(chan []byte, 1)
	go func() {
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		if s.Scan() {
			lines <- bytes.Clone(s.Bytes())
		}
		_, _ = io.Copy(io.Discard, r)
	}()
	select {
	case line := <-lines:
		return proc, line, nil
	case <-proc.Done():
		return nil, nil, fmt.Errorf("stack: %s ended before it served: %w\n%s", name, proc.Err(), proc.Log())
	case <-ctx.Done():
		_ = proc.Kill()
		return nil, nil, fmt.Errorf("stack: %s did not become ready: %w", name, ctx.Err())
	case <-time.After(10 * time.Second):
		_ = proc.Kill()
		return nil, nil, fmt.Errorf("stack: %s did not become ready in 10 s\n%s", name, proc.Log())
	}
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive reports whether the process has not ended. A stopped process is alive.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// RSS returns the resident memory of the process in bytes. It is 0 after the process has
// ended, and on systems without /proc.
func (p *Process) RSS() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// Err returns the error with which the process ended. It is nil while the process runs,
// and after exit code 0.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Log returns the last part of the process's output.
func (p *Process) Log() string { return p.log.String() }

// KeepLog raises the number of bytes that are kept of later output. False means that some
// of the earlier output is already lost.
func (p *Process) KeepLog(bytes int) bool { return p.log.keep(bytes) }

// Signal sends a signal. After SIGSTOP it returns once all threads of the process have
// stopped: until then they still answer.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.signal(s); err != nil || s != syscall.SIGSTOP {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return Await(ctx, p.Name+" to stop", func() bool { return !p.Alive() || stopped(p.PID()) })
}

func (p *Process) signal(s syscall.Signal) error {
	err := os.ErrProcessDone
	switch {
	case !p.group:
		err = p.cmd.Process.Signal(s)
	case p.Alive(): // after its end the number may be another group's
		err = syscall.Kill(-p.PID(), s)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stack: signal %s: %w", p.Name, err)
	}
	return nil
}

// stopped reports whether no thread of the process runs. On systems without /proc that is
// taken for granted.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return true
	}
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		if err != nil { // the thread has ended
			continue
		}
		// The state follows the command's name, which is in parentheses (proc(5)).
		_, after, _ := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
		if len(after) > 0 && bytes.IndexByte([]byte("TtZX"), after[0]) < 0 {
			return false
		}
	}
	return true
}

// Kill ends the process with SIGKILL and waits until it has ended.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	<-p.done
	return err
}

// Stop sends SIGTERM, and kills the process if it has not ended after grace.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
		return p.Kill()
	}
}

// tail keeps the last bytes written to it. Safe for concurrent use.
type tail struct {
	mu    sync.Mutex // guards the fields below
	buf   bytes.Buffer
	limit int
	lost  bool
}

func (t *tail) keep(bytes int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = max(t.limit, bytes)
	return !t.lost
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if over := t.buf.Len() - t.limit; over > 0 {
		t.buf.Next(over)
		t.lost = true
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
