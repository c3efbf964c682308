// Command devetcd runs one real etcd member in a process of its own, for
// `make demo`, `make up` and the tests, so that nobody has to install etcd to
// see Baton work. It prints one JSON line when it serves, and runs until
// SIGTERM or SIGINT.
//
// It is for development. It has no TLS, no users and no compaction, holds
// elections after a fifth of a second, and with --no-fsync forgets what the
// kernel had not yet written when the machine stops (not when the process is
// killed). Production uses a cluster of etcd itself.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// ready is the line on standard output.
type ready struct {
	Endpoints []string `json:"endpoints"` // for --etcd-endpoints, with http://
	Name      string   `json:"name"`
	Peer      string   `json:"peer"` // for --peer, to start again where it was
}

// run is the command; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errTold):
		return 2
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "devetcd:", err)
		return 2
	}
	for _, a := range []netip.AddrPort{o.client, o.peer} {
		if !a.Addr().IsLoopback() {
			_, _ = fmt.Fprintf(stderr, "devetcd: warning: %s is not a loopback address: whoever reaches it can read and write everything\n", a)
		}
	}
	m, err := start(ctx, o)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "devetcd:", err)
		return 1
	}
	if m == nil { // asked to stop before it served
		return 0
	}
	if err := json.NewEncoder(stdout).Encode(m.ready()); err != nil {
		m.stop()
		_, _ = fmt.Fprintln(stderr, "devetcd:", err)
		return 1
	}
	select {
	case <-ctx.Done():
	case err = <-m.failed():
	}
	m.stop()
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "devetcd:", err)
		return 1
	}
	return 0
}

// options say how the member runs.
type options struct {
	dir          string
	client, peer netip.AddrPort
	name         string
	cluster      string // etcd's initial cluster; empty: this member alone
	clusterState string
	noFsync      bool
	election     time.Duration
	quota        int64 // bytes
}

// errTold marks errors that the flag package has printed already.
var errTold = errors.New("told")

const usage = `Usage: devetcd --dir FOLDER [flags]

One real etcd member, for development and tests: no TLS, no users, quick
elections. Production uses a cluster of etcd itself. Prints one JSON line when
it serves, {"endpoints":["http://127.0.0.1:2379"],"name":"…","peer":"…"}, and
runs until SIGTERM. Started again on the same folder, it has what it had.

Flags:
`

// parseFlags reads the options. Errors other than errTold are the caller's to
// print.
func parseFlags(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("devetcd", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		_, _ = io.WriteString(stderr, usage)
		fs.PrintDefaults()
	}
	fs.StringVar(&o.dir, "dir", "", "data `folder`; made if it is not there (required)")
	fs.TextVar(&o.client, "listen", netip.MustParseAddrPort("127.0.0.1:0"), "clients' `ip:port`; port 0 picks a free one, as everywhere")
	fs.TextVar(&o.peer, "peer", netip.MustParseAddrPort("127.0.0.1:0"), "the other members' `ip:port`")
	fs.StringVar(&o.name, "name", "devetcd", "the member's `name`")
	fs.StringVar(&o.cluster, "initial-cluster", "", "all members as `name=http://ip:port,…`, with their --peer addresses (default this one alone)")
	fs.StringVar(&o.clusterState, "initial-cluster-state", "new", "new, or existing to join a cluster that knows this member")
	fs.BoolVar(&o.noFsync, "no-fsync", false, "do not wait for the disk; safe against kill -9, not against a power cut")
	fs.DurationVar(&o.election, "election-timeout", 200*time.Millisecond, "a leader that is silent for so long is replaced; leases last at least 1.5 of it")
	fs.Int64Var(&o.quota, "quota", 64<<20, "`bytes` that the store may hold")
	if err := fs.Parse(args); err != nil {
		return o, errors.Join(errTold, err)
	}
	return o, o.validate(fs.Args())
}

// validate returns every fault of o, joined, or nil.
func (o options) validate(rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("argument %q: expected flags only", rest[0]))
	}
	if o.dir == "" {
		errs = append(errs, errors.New("--dir: expected the data folder"))
	}
	if o.name == "" {
		errs = append(errs, errors.New("--name: expected a name"))
	}
	if o.clusterState != "new" && o.clusterState != "existing" {
		errs = append(errs, fmt.Errorf("--initial-cluster-state %q: expected new or existing", o.clusterState))
	}
	if o.cluster != "" && o.peer.Port() == 0 {
		errs = append(errs, fmt.Errorf("--peer %s: expected a port, as --initial-cluster names it", o.peer))
	}
	if o.election < 50*time.Millisecond || o.election > 50*time.Second {
		errs = append(errs, fmt.Errorf("--election-timeout %s: expected 50ms to 50s", o.election))
	}
	if o.quota <= 0 {
		errs = append(errs, fmt.Errorf("--quota %d: expected bytes above 0", o.quota))
	}
	return errors.Join(errs...)
}
