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

	"github.com/seed-60ae5743/baton/pkg/kvindex"
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

func newIndex(name string) (kvindex.Index, error) {
	switch name {
	case "map":
		return kvindex.NewMap(kvindex.NewSlots()), nil
	case "tree":
		return kvindex.NewTree(kvindex.TreeConfig{MaxBytes: min(2<<30, kvindex.MostBytes)}, kvindex.NewSlots())
	}
	return nil, fmt.Errorf("index %q: expected map or tree", name)
}

// one runs one mode of one index on one trace.
func one(args []string, stdout io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("%d arguments: expected INDEX MODE TRACE, or peers", len(args))
	}
	t, err := openTrace(args[2])
	if err != nil {
		return err
	}
	r, err := newRunner(t, func() (kvindex.Index, error) { return newIndex(args[0]) })
	if err != nil {
		return err
	}
	if err := r.mode(args[1]); err != nil {
		return err
	}
	r.out["peer"], r.out["mode"], r.out["trace"] = "baton-"+args[0], args[1], strings.TrimSuffix(filepath.Base(args[2]), ".kvt")
	return json.NewEncoder(stdout).Encode(r.out)
}
