package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "kvindex:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "peers" {
		return peers(ctx, args[1:], stdout, stderr)
	}
	return one(args, stdout)
}

// one runs one mode on one trace.
func one(args []string, stdout io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("%d arguments: expected MODE TRACE, or peers", len(args))
	}
	t, err := openTrace(args[1])
	if err != nil {
		return err
	}
	r, err := newRunner(t)
	if err != nil {
		return err
	}
	if err := r.mode(args[0]); err != nil {
		return err
	}
	r.out["peer"], r.out["mode"], r.out["trace"] = "baton-tree", args[0], strings.TrimSuffix(filepath.Base(args[1]), ".kvt")
	return json.NewEncoder(stdout).Encode(r.out)
}
