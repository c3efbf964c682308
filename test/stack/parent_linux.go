package stack

import (
	"os/exec"
	"syscall"
)

// EndWithParent makes the kernel send sig to a command when this process ends. Call it
// before the command is started. It also works when no code of this process can run any
// more: after a panic, a test's time-out or kill -9.
//
// The kernel watches the thread that started the command, not the process (prctl(2),
// PR_SET_PDEATHSIG). Go ends a thread only when a goroutine ends that is locked to it. So
// no goroutine that is locked to its thread may start a command.
func EndWithParent(cmd *exec.Cmd, sig syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
}
