package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/plugin"
	"github.com/seed-60ae5743/baton/internal/redact"
)

func main() {
	// A heap of a few megabytes would be collected many times a second. Memory that is
	// never touched costs only address space, and moves the first collection to a size at
	// which it is cheap. To a large heap it makes no difference.
	floor := make([]byte, plugin.HeapFloor)
	code := mainCode()
	runtime.KeepAlive(floor)
	os.Exit(code)
}

func mainCode() int {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // first, so that a second signal ends the process
		end()
	}()
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "sleep" {
		args = os.Args
		args[0] = "sleep"
	}
	return run(ctx, args, os.Stdout, os.Stderr)
}

// ignoreHangup keeps SIGHUP from ending the process, and logs what is read again without it.
// The function that is returned ends that.
func ignoreHangup(log *slog.Logger) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range signals {
			log.Warn("SIGHUP has no effect: the workers file is watched, and files of passwords, API keys, tls.cert, tls.key and etcd's certificates " +
				"are read again by themselves; for other settings restart the process")
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-ended
	}
}

// Exit codes.
const (
	exitOK    = 0
	exitFault = 1
	exitUsage = 2
)

const usage = `Baton decides, for each request to a large language model, which prefill and which decode
worker serve it, and lets Envoy carry the bytes.

Usage:
  extproc serve    [flags]             run the plugin that Envoy calls
  extproc epp      [flags]             the same with the flags of a Gateway API endpoint picker; the word may be left out
  extproc register [flags]             announce a worker to the plugins, from beside it
  extproc check    [flags]             validate the configuration, print the effective one, and tell which models can be served; with --envoy: what your Envoy lacks
  extproc envoy    [flags] [FILE]      write your own Envoy's configuration: merged into FILE, as parts, or whole
  extproc explain  [flags] [body.json] ask a running plugin what it would decide for a request, and why
  extproc index    FILE                print what a dump of the index holds
  extproc replay   [flags] FILE…       play recorded requests with another configuration, or another fleet
  extproc version                      print the version

"extproc COMMAND --help" lists a command's flags. A configuration file is not needed to begin:
  extproc serve --workers workers.yaml --listen unix:///tmp/baton.sock
  extproc serve --etcd-endpoints 10.0.0.2:2379 --listen unix:///tmp/baton.sock
`

// run is main without the exit: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	for len(args) > 0 && args[0] == "" { // as a template leaves it where a condition does not hold
		args = args[1:]
	}
	file := stdout // what is printed there is the user's own file, which has to stay as it is
	stdout, stderr = redact.Writer(stdout), redact.Writer(stderr)
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	var err error
	switch args[0] {
	case "serve":
		err = serveCommand(ctx, args[1:], stderr)
	case "epp":
		err = eppCommand(ctx, args[1:], stderr)
	case "register":
		err = registerCommand(ctx, args[1:], stderr)
	case "check":
		err = checkCommand(args[1:], stdout, stderr)
	case "envoy":
		err = envoyCommand(args[1:], file, stderr)
	case "explain":
		err = explainCommand(ctx, args[1:], stdout, stderr)
	case "index":
		err = indexCommand(args[1:], stdout, stderr)
	case "replay":
		err = replayCommand(args[1:], stdout, stderr)
	case "sleep": // for the image's /bin/sleep; nobody else needs it
		err = sleepCommand(ctx, args[1:])
	case "version", "--version", "-version":
		fmt.Fprintln(stdout, "extproc "+plugin.Version())
	case "help", "--help", "-help", "-h":
		fmt.Fprint(stdout, usage)
	default:
		if strings.HasPrefix(args[0], "-") { // the way in which a reference picker's image is called
			err = eppCommand(ctx, args, stderr)
			break
		}
		fmt.Fprintf(stderr, "extproc: unknown command %q: expected serve, epp, register, check, envoy, explain, index, replay or version\n", args[0])
		return exitUsage
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, config.ErrUsage):
		fmt.Fprintln(stderr, "extproc:", err)
		return exitUsage
	default:
		fmt.Fprintln(stderr, "extproc:", err)
		return exitFault
	}
}
