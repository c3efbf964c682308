// Command nothing is the yardstick of `make bench`: an external-processing
// server in Go that decides nothing. It reads every message Baton reads, sends
// every kind of answer Baton sends, always the same workers, and returns the
// body as it came wherever Baton has to return one. What Baton costs beyond it
// is what deciding costs.
//
// It listens on a unix socket and ends when its standard input does, so that
// it cannot outlive who started it.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "nothing:", err)
		os.Exit(1)
	}
}

func run() error {
	socket := flag.String("socket", "", "unix socket to listen on")
	decode := flag.String("decode", "", "ip:port of the decode worker of every request")
	prefill := flag.String("prefill", "", "ip:port of the prefill worker; empty: no prefill leg")
	body := flag.Bool("return-body", true, "send the body back where a field would be injected")
	stats := flag.String("stats", "", "file to write allocation totals to on SIGUSR1")
	flag.Parse()
	_ = os.Remove(*socket)
	l, err := net.Listen("unix", *socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	// Windows and limits as the plugin sets them: the body must not wait.
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32), grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(4<<20),
		grpc.MaxConcurrentStreams(math.MaxUint32))
	extprocv3.RegisterExternalProcessorServer(srv, &nothing{decode: *decode, prefill: *prefill, body: *body})
	accesslogv3.RegisterAccessLogServiceServer(srv, accessLog{})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGUSR1)
	go func() {
		for s := range signals {
			if s == syscall.SIGUSR1 {
				writeTotals(*stats)
				continue
			}
			srv.Stop()
		}
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		srv.Stop()
	}()
	return srv.Serve(l)
}

// writeTotals writes the bytes and the objects allocated so far, by rename, so
// that a reader sees a whole file or none.
func writeTotals(file string) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	tmp := file + ".tmp"
	_ = os.WriteFile(tmp, fmt.Appendf(nil, "%d %d\n", m.TotalAlloc, m.Mallocs), 0o600)
	_ = os.Rename(tmp, file)
}
