package stack

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// linger is for how long a port stays held after its context has ended. Whoever knew the
// port, and may still call it, has been told of the end by then.
const linger = 10 * time.Second

// FreePorts returns n loopback ports that belong to this process until [linger] after the
// end of ctx: it keeps a socket bound to each and never listens on it. A child that sets SO_REUSEADDR, as Go,
// Envoy and most servers do, can listen on such a port, also again after it was killed.
// While none listens, connections are refused. No other process gets such a port: the
// kernel does not choose a bound port, and another process that calls FreePorts gets
// others. So two test runs on one machine, or two tests of one run, never use the same
// port.
//
// Linux allows this (socket(7), SO_REUSEADDR): two sockets may be bound to one address if
// both set the option and no bound socket listens.
func FreePorts(ctx context.Context, n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		var err error
		ports[i], err = FreeRow(ctx, 1)
		if err != nil {
			return nil, err
		}
	}
	return ports, nil
}

// FreeRow is like [FreePorts], for n consecutive ports. It returns the first.
func FreeRow(ctx context.Context, n int) (first int, err error) {
	for range 100 { // again, since the next port may be taken
		first, err = holdRow(ctx, n)
		if err == nil {
			return first, nil
		}
	}
	return 0, fmt.Errorf("stack: hold %d loopback ports in a row: %w", n, err)
}

func holdRow(ctx context.Context, n int) (first int, err error) {
	held := make([]int, 0, n) // file descriptors
	for i := range n {
		want := 0 // the kernel chooses
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
	context.AfterFunc(ctx, func() {
		time.AfterFunc(linger, func() {
			for _, fd := range held {
				_ = syscall.Close(fd)
			}
		})
	})
	return first, nil
}

// hold binds a socket to a port. For 0 the kernel chooses the port.
func hold(want int) (fd, port int, err error) {
	syscall.ForkLock.RLock() // a child that starts now must not inherit the socket
	fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, 0, err
	}
	// It is bound to all addresses: else a server that chooses a port of another loopback
	// address could be given this one, and who listens on all of them could not. The option
	// is set after the bind. Otherwise two sockets that hold ports could be given the same
	// one.
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: want})
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
