package stack

import (
	"errors"
	"fmt"
	"syscall"
)

// FreePorts returns n loopback ports that are this process's until it ends: it
// keeps a socket bound to each, which never listens. A child that sets
// SO_REUSEADDR, as Go, Envoy and most servers do, can listen there, also again
// after it was killed; while none does, connections are refused. Nobody else is
// given such a port: the kernel passes over a bound one, and another process
// that asks for a port in this way gets another. So two test runs on one
// machine, and two tests of one run, cannot meet.
//
// The rule is Linux's (socket(7), SO_REUSEADDR): two sockets may be bound to one
// address if both set the option and none of those that are bound listens.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		var err error
		if ports[i], err = FreeRow(1); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

// FreeRow is [FreePorts] for n ports that follow each other, and returns the
// first.
func FreeRow(n int) (first int, err error) {
	for range 100 { // a neighbour may be taken
		if first, err = holdRow(n); err == nil {
			return first, nil
		}
	}
	return 0, fmt.Errorf("stack: hold %d loopback ports in a row: %w", n, err)
}

func holdRow(n int) (first int, err error) {
	held := make([]int, 0, n) // file descriptors
	for i := range n {
		want := 0 // of the kernel's choice
		if i > 0 {
			want = first + i
		}
		fd, port, err := hold(want)
		if err != nil {
			for _, fd := range held {
				err = errors.Join(err, syscall.Close(fd))
			}
			return 0, err
		}
		held = append(held, fd)
		if i == 0 {
			first = port
		}
	}
	return first, nil
}

// hold binds a socket to a port, of the kernel's choice if it is 0.
func hold(want int) (fd, port int, err error) {
	syscall.ForkLock.RLock() // a child that begins now is not to have it
	fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, 0, err
	}
	// The option comes after the bind: with it, two that hold ports could be given
	// the same one.
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: want, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	var bound syscall.Sockaddr
	if err == nil {
		bound, err = syscall.Getsockname(fd)
	}
	if at, ok := bound.(*syscall.SockaddrInet4); ok && err == nil {
		return fd, at.Port, nil
	}
	return 0, 0, errors.Join(err, syscall.Close(fd))
}
