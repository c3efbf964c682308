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
	Env  []string // beside this process's
	Dir  string
}

// StartProgram runs a program in a process group of its own. Signals, Kill and the end
// of the context go to the whole group, and so does the end of this process, however it
// comes about: the kernel tells only the first process of it ([EndWithParent]), so a
// shell waits for the end of a pipe that this process holds.
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
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what ends the terminal's group is not to end it first
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
