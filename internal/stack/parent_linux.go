package stack

import (
	"os/exec"
	"syscall"
)

// EndWithParent has the kernel send sig to a command that is yet to be started
// when this process ends, however it does: by a panic, a test's time-out or
// kill -9, where nothing of ours runs any more.
//
// The kernel looks at the thread that started the command, not at the process
// (prctl(2), PR_SET_PDEATHSIG). Go ends a thread only where a goroutine ends
// that is locked to it, so none that is may start a command.
func EndWithParent(cmd *exec.Cmd, sig syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
}
