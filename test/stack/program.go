package stack

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// ProgramOptions say how to run a program that starts processes of its own.
type ProgramOptions struct {
	Name string
	Path string
	Args []string
	Env  []string // in addition to this process's
	Dir  string
}

// StartProgram runs a program in a process group of its own. Signals, Kill and the end of
// the context reach the whole group. The end of this process, however it comes about,
// ends the whole group, too. [EndWithParent] would reach only its first process, so a
// shell waits for the end of a pipe that this process holds, and then kills the group.
func StartProgram(ctx context.Context, o ProgramOptions) (*Process, error) {
	p := &Process{Name: o.Name, log: &tail{limit: 256 << 10}, done: make(chan struct{}), group: true}
	p.cmd = exec.CommandContext(ctx, o.Path, o.Args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = o.Dir, p.log, p.log
	p.cmd.Env = append(p.cmd.Environ(), o.Env...)
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return p.Signal(syscall.SIGKILL) }
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("stack: start %s: %w", o.Name, err)
	}
	p.waited()
	guard := exec.Command("sh", "-c", `read -r _; kill -KILL "-$1" 2>/dev/null`, "sh", strconv.Itoa(p.PID()))
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that a signal to the terminal's group does not end the guard first
	held, err := guard.StdinPipe()
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stack: guard %s: %w", o.Name, err), p.Kill())
	}
	go func() {
		<-p.done
		_ = held.Close()
		_ = guard.Wait()
	}()
	return p, nil
}
