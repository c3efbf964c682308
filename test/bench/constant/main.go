// Command constant is the workers of `make bench`: two decode workers and two
// prefill workers that answer every request with the same few bytes, the same
// for each case that is compared. The second prefill worker's answer has a
// hand-off in it, as vLLM's does. The second decode worker streams its answer.
//
// All live in one process because they meet, as an engine's halves do: a
// decode answer waits until the prefill request of the same x-request-id has
// come (Envoy gives both legs the same), and one decode step longer. So what
// a client waits for includes both legs, whoever routes them. A decode request
// whose prefill never comes is answered with 500 after a second: a leg that is
// lost is an error, not a gain in speed.
//
// It prints "decode-address prefill-address handing-over-address
// streaming-address" once it serves, and ends when its standard input does, so that it cannot outlive who
// started it.
package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "constant:", err)
		os.Exit(1)
	}
}

func run() error {
	step := flag.Duration("step", 0, "how long a decode worker works after its prefill has come")
	flag.Parse()
	debug.SetGCPercent(1000) // a small heap: collecting it often would only disturb
	p := newPair(*step)
	var addrs [4]net.Addr
	for i, serve := range []func(*conn) error{p.decode, p.prefill, p.handOver, p.stream} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		addrs[i] = l.Addr()
		go accept(l, serve)
	}
	fmt.Println(addrs[0], addrs[1], addrs[2], addrs[3])
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// timeout bounds the wait of one half for the other.
const timeout = time.Second
