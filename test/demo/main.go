// Command demo runs Baton's main job on this machine and tells what happens:
// a real Envoy, the plugin, and simulated SGLang workers with prefill and
// decode apart.
//
//	go -C test run ./demo                the story; ends by itself
//	go -C test run ./demo -up            the same stack, left running
//	go -C test run ./demo -up -traffic   with a gentle trickle of requests
//
// The workers are found in etcd, which the demo runs, too; with -etcd-endpoints
// it uses a cluster of yours, under a prefix of this run alone.
//
// Everything it says of a decision it has read from the running parts: the
// decision from the plugin's admin address, the cached tokens from the answer,
// the blocks that a worker holds from the worker. It checks what it tells, and
// ends with exit code 1 when the story is not true.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed-60ae5743/baton/test/stack"
)

// The exit codes.
const (
	exitTrue        = 0
	exitUntrue      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	env := environment{
		envoy:   os.Getenv("ENVOY"),
		colour:  isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		columns: columnsOf(os.Stdout),
	}
	code := run(ctx, os.Args[1:], env, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// environment is what the demo reads from around it.
type environment struct {
	envoy   string // the Envoy to run; empty: look for one
	colour  bool
	columns int // of the terminal
}

// mostColumns is the width of what is printed where nobody says how wide the screen is,
// and on wide ones.
const mostColumns = 100

// columnsOf asks the terminal for its width.
func columnsOf(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return mostColumns
	}
	return min(int(size.Col), mostColumns)
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// run is main without the process around it.
func run(ctx context.Context, args []string, env environment, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	up := fs.Bool("up", false, "start the stack, print its addresses and leave it running until Ctrl-C")
	traffic := fs.Bool("traffic", false, "with -up: send a request a second")
	keys := fs.String("etcd-endpoints", "", "`host:port` of an etcd to use, more than one separated by commas; default: one is started")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitTrue
		}
		return exitUsage
	}
	etcd, err := endpoints(*keys)
	if err != nil {
		fmt.Fprintln(stderr, "demo:", err)
	}
	if err != nil || fs.NArg() > 0 || *traffic && !*up {
		fs.Usage()
		return exitUsage
	}
	err = perform(ctx, env, &screen{w: stdout, colour: env.colour, columns: env.columns}, options{etcd: etcd, up: *up, traffic: *traffic})
	switch {
	case ctx.Err() != nil && *up:
		fmt.Fprintln(stdout, "\nstopped")
		return exitTrue
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "\ndemo: interrupted; everything is stopped")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(stderr, "\ndemo:", err)
		return exitUntrue
	}
	return exitTrue
}

// options are what the command line says.
type options struct {
	etcd        []string // empty: one is started
	up, traffic bool
}

// endpoints splits the addresses of a cluster.
func endpoints(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	all := strings.Split(text, ",")
	for _, e := range all {
		_, address, ok := strings.Cut(e, "://")
		if !ok {
			address = e
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("-etcd-endpoints %q: expected host:port[,host:port…]", text)
		}
	}
	return all, nil
}

// perform builds and starts everything, plays, and stops everything.
func perform(ctx context.Context, env environment, out *screen, o options) error {
	envoyPath, err := stack.FindEnvoy(env.envoy)
	if err != nil {
		return err
	}
	f, err := newFolder()
	if err != nil {
		return err
	}
	defer f.remove()
	for _, b := range [][2]string{{"the plugin", "./cmd/extproc"}, {"the simulated workers", "./test/cmd/enginesim"}, {"etcd", "./test/cmd/devetcd"}} {
		if err := out.working("Building "+b[0], func() error { return stack.Build(f.bin, "", false, b[1]) }); err != nil {
			return err
		}
	}
	st, err := openStage(ctx, stageOptions{binDir: f.bin, dir: f.run, envoy: envoyPath, etcd: o.etcd, prefill: 2, decode: 2})
	if err != nil {
		return err
	}
	defer st.close()
	if o.up {
		return stayUp(ctx, out, st, o.traffic)
	}
	if err := tell(ctx, out, st); err != nil {
		if ctx.Err() == nil {
			out.printf("\n%s\n", st.logs())
		}
		return fmt.Errorf("the story is not true: %w", err)
	}
	return nil
}
