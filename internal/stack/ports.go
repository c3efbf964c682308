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
		port, err := holdPort()
		if err != nil {
			return nil, fmt.Errorf("stack: hold a loopback port: %w", err)
		}
		ports[i] = port
	}
	return ports, nil
}

// holdPort binds a socket to a port that the kernel chooses, and leaves it open.
func holdPort() (int, error) {
	syscall.ForkLock.RLock() // a child that begins now is not to have it
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, err
	}
	// The option comes after the bind: with it, the kernel could choose a port
	// that another process holds in the same way.
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	var bound syscall.Sockaddr
	if err == nil {
		bound, err = syscall.Getsockname(fd)
	}
	if at, ok := bound.(*syscall.SockaddrInet4); ok && err == nil {
		return at.Port, nil
	}
	return 0, errors.Join(err, syscall.Close(fd))
}
