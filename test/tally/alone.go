package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// alone runs a command while no other process holds the file, and returns its exit code.
// It says whom it waits for. The lock goes with this process however it dies, and the
// command is told to end then: it never runs on beside the next one.
func alone(file string, args []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return 1, err
	}
	defer f.Close() //nolint:errcheck // its lock is all that matters
	if err := hold(f, stdout); err != nil {
		return 1, err
	}
	if err := f.Truncate(0); err != nil {
		return 1, err
	}
	if _, err := fmt.Fprintf(f, "process %d, since %s: %s\n", os.Getpid(), time.Now().Format(time.TimeOnly), strings.Join(args, " ")); err != nil {
		return 1, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	// The kernel sends Pdeathsig when the thread that began the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s)
			case <-over:
				return
			}
		}
	}()
	return status(cmd.Wait())
}

// status is the exit code of a command that has ended: a shell's where a signal ended it.
func status(err error) (int, error) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		if err != nil {
			return 1, err
		}
		return 0, nil
	}
	if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// hold takes the lock, and says of whom it waits for it.
func hold(f *os.File, w io.Writer) error {
	var said time.Time
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if time.Since(said) >= patience {
			who := make([]byte, 300)
			n, _ := f.ReadAt(who, 0)
			_, _ = fmt.Fprintf(w, "%s  waits until another run in this folder has ended: %s\n", time.Now().Format(time.TimeOnly), strings.TrimSpace(string(who[:n])))
			said = time.Now()
		}
		time.Sleep(time.Second / 4)
	}
}
