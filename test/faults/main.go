package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// The exit codes.
const (
	exitCaught      = 0
	exitNotCaught   = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the command's.
type options struct {
	which   *regexp.Regexp
	list    bool
	control bool
	verbose bool
	most    time.Duration
}

func readOptions(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("faults", flag.ContinueOnError)
	fs.SetOutput(stderr)
	names := fs.String("run", "", "only faults whose names match this regular expression")
	fs.BoolVar(&o.list, "list", false, "print the table and run nothing")
	fs.BoolVar(&o.control, "control", true, "run the tests once without a fault: one that is red then proves nothing")
	fs.BoolVar(&o.verbose, "v", false, "print the check that failed, too")
	fs.DurationVar(&o.most, "for", 90*time.Minute, "end after this time")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("%q: expected options only", fs.Arg(0))
	}
	var err error
	o.which, err = regexp.Compile(*names)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := readOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitCaught
	}
	var g *gotool
	var faults []fault
	if err == nil {
		g, err = newGotool(ctx)
	}
	if err == nil {
		faults, err = load(filepath.Join(g.root, "test", "faults", "faults.txt"), o.which)
	}
	if err != nil {
		fmt.Fprintln(stderr, "faults:", err)
		return exitUsage
	}
	if o.list {
		table(stdout, faults)
		return exitCaught
	}
	ctx, cancel := context.WithTimeout(ctx, o.most)
	defer cancel()
	r := &runner{tool: g, o: o, w: stdout}
	if err := r.all(ctx, faults); err != nil {
		fmt.Fprintln(stderr, "faults: it was ended before all had run:", err)
		r.total(len(faults))
		return exitInterrupted
	}
	if !r.total(len(faults)) {
		return exitNotCaught
	}
	return exitCaught
}

// load reads the list and keeps those whose names match.
func load(path string, which *regexp.Regexp) ([]fault, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the list: %w", err)
	}
	defer f.Close()
	all, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	all = slices.DeleteFunc(all, func(f fault) bool { return !which.MatchString(f.name) })
	if len(all) == 0 {
		return nil, fmt.Errorf("no fault's name matches %q", which)
	}
	return all, nil
}

func table(w io.Writer, faults []fault) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range faults {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s %s\n", f.area, f.name, f.file, f.pkg, strings.Join(f.tests, ", "))
	}
	_ = t.Flush()
}
