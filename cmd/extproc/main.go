package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"

	"github.com/seed-60ae5743/baton/internal/budget"
)

func main() {
	// A heap of a few megabytes is collected many times a second. Memory that
	// is never touched costs address space only, and moves the first
	// collection to where it is cheap; it matters not to a large heap.
	floor := make([]byte, heapFloor)
	code := mainCode()
	runtime.KeepAlive(floor)
	os.Exit(code)
}

const heapFloor = 64 << 20

func mainCode() int {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // before anybody hears of the first: a second one ends the process
		end()
	}()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
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
  extproc register [flags]             keep a worker known to the plugins, from beside it
  extproc check    [flags]             validate the configuration, print the effective one, and tell which models can be served
  extproc explain  [flags] [body.json] ask a running plugin what it would decide for a request, and why
  extproc index    FILE                tell what a dump of the index has
  extproc version                      print the version

"extproc COMMAND --help" lists a command's flags. A configuration file is not needed to begin:
  extproc serve --workers workers.yaml --listen unix:///tmp/baton.sock
  extproc serve --etcd-endpoints 10.0.0.2:2379 --listen unix:///tmp/baton.sock
`

// errUsage marks errors of the command line or the configuration.
var errUsage = errors.New("usage")

// run is main without the process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
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
	case "explain":
		err = explainCommand(ctx, args[1:], stdout, stderr)
	case "index":
		err = indexCommand(args[1:], stdout, stderr)
	case "version", "--version", "-version":
		fmt.Fprintln(stdout, "extproc "+versionText())
	case "help", "--help", "-help", "-h":
		fmt.Fprint(stdout, usage)
	default:
		if strings.HasPrefix(args[0], "-") { // as a reference picker's image is called
			err = eppCommand(ctx, args, stderr)
			break
		}
		fmt.Fprintf(stderr, "extproc: unknown command %q: expected serve, epp, register, check, explain, index or version\n", args[0])
		return exitUsage
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintln(stderr, "extproc:", err)
		return exitUsage
	default:
		fmt.Fprintln(stderr, "extproc:", err)
		return exitFault
	}
}

// usageError wraps err so that run exits with 2.
type usageError struct{ err error }

func (u usageError) Error() string   { return u.err.Error() }
func (u usageError) Unwrap() []error { return []error{u.err, errUsage} }

// configFlags adds the flags that serve and check share and returns a function
// that gives the effective configuration once they are parsed. A flag beats
// the file.
func configFlags(fs *flag.FlagSet) func() (Config, error) {
	return overlay{base: defaultConfig(), file: "config"}.flags(fs)
}

// overlay is what a configuration is made of, the later over the earlier: base,
// the file, under, our flags; over has the last word, before it is judged.
type overlay struct {
	base        Config
	file        string // the flag that names the file
	under, over func(c *Config) error
}

func (o overlay) flags(fs *flag.FlagSet) func() (Config, error) {
	d, given := o.base, Config{}
	file := fs.String(o.file, "", "configuration `file` (YAML); see docs/config.md")
	fs.StringVar(&given.Listen, "listen", d.Listen, "where Envoy reaches the plugin: unix:///path or host:port")
	fs.BoolVar(&given.InsecureListen, "insecure-listen", d.InsecureListen, "allow a --listen that other machines reach without a client certificate (insecure_listen)")
	fs.StringVar(&given.Discovery.File, "workers", "", "`file` that lists the workers (discovery.file)")
	fs.StringVar(&given.Admin.Listen, "admin", d.Admin.Listen, "`address` of the status page, metrics and health")
	fs.StringVar(&given.Namespace, "namespace", "", "namespace whose models are served")
	fs.StringVar(&given.Log.Level, "log-level", d.Log.Level, "debug, info, warn or error")
	fs.StringVar(&given.Log.Format, "log-format", d.Log.Format, "text or json")
	fs.StringVar(&given.Trace.Endpoint, "trace-endpoint", "", "OTLP gRPC collector as host:port; empty: no spans")
	fs.StringVar(&given.Discovery.Cache, "discovery-cache", "", "`file` that keeps what etcd last said, for a start while etcd is away (discovery.cache)")
	fs.BoolVar(&given.EnforceDisagg, "enforce-disagg", false, "refuse what cannot be served by separate prefill and decode workers")
	etcd := etcdFlags(fs)
	return func() (Config, error) {
		c, places, fault := readConfigOver(o.base, *file)
		if fault != nil && !places.Known() {
			return c, usageError{fault} // what else may be wrong cannot be said
		}
		if o.under != nil {
			if err := o.under(&c); err != nil {
				return c, usageError{errors.Join(fault, err)}
			}
		}
		fs.Visit(func(f *flag.Flag) {
			if key := keyOfFlag(f.Name); key != "" && places.Known() {
				places.Overruled(key)
			}
			overrule(&c, &given, f.Name)
		})
		etcd(&c.Discovery.Etcd)
		if o.over != nil {
			if err := o.over(&c); err != nil {
				return c, usageError{errors.Join(fault, err)}
			}
		}
		if fault = places.InOrder(errors.Join(fault, places.Explain(c.Validate()))); fault != nil {
			return c, usageError{fault}
		}
		return c, nil
	}
}

// overrule copies what a flag has given.
func overrule(c, given *Config, flag string) {
	switch flag {
	case "listen":
		c.Listen = given.Listen
	case "insecure-listen":
		c.InsecureListen = given.InsecureListen
	case "workers":
		c.Discovery.File = given.Discovery.File
	case "discovery-cache":
		c.Discovery.Cache = given.Discovery.Cache
	case "admin":
		c.Admin.Listen = given.Admin.Listen
	case "namespace":
		c.Namespace = given.Namespace
	case "log-level":
		c.Log.Level = given.Log.Level
	case "log-format":
		c.Log.Format = given.Log.Format
	case "trace-endpoint":
		c.Trace.Endpoint = given.Trace.Endpoint
	case "enforce-disagg":
		c.EnforceDisagg = given.EnforceDisagg
	}
}

// keyOfFlag is the key that a flag of ours overrules, "" for none.
func keyOfFlag(name string) string {
	switch name {
	case "listen", "namespace":
		return name
	case "workers":
		return "discovery.file"
	case "admin":
		return "admin.listen"
	case "log-level", "log-format", "trace-endpoint", "discovery-cache":
		return strings.Replace(name, "-", ".", 1)
	case "enforce-disagg", "insecure-listen":
		return strings.Replace(name, "-", "_", 1)
	}
	if rest, ok := strings.CutPrefix(name, "etcd-"); ok {
		return "discovery.etcd." + strings.ReplaceAll(strings.ReplaceAll(rest, "cacert", "ca"), "-", "_")
	}
	return ""
}

func serveCommand(ctx context.Context, args []string, stderr io.Writer) error {
	fs := newFlagSet("serve", "Runs the plugin until SIGTERM, then drains.", stderr)
	config := configFlags(fs)
	if err := parseFlags(fs, args, 0); err != nil {
		return err
	}
	c, err := config()
	if err != nil {
		return err
	}
	return serve(ctx, c, nil, stderr)
}

func checkCommand(args []string, stdout, stderr io.Writer) error {
	fs := newFlagSet("check", "Validates the configuration, prints the effective one, and tells of each model of the workers' file whether and how it can be served.", stderr)
	config := configFlags(fs)
	if err := parseFlags(fs, args, 0); err != nil {
		return err
	}
	c, err := config()
	if err == nil {
		err = checkParts(c)
	}
	if err != nil { // the workers' faults as well: who mends one file mends the other
		_, workers := checkWorkers(c.Discovery.File, io.Discard)
		return usageError{errors.Join(err, workers)}
	}
	if w := c.exposed().warning(c.Listen); w != "" {
		fmt.Fprintf(stderr, "extproc: note: %s\n", w)
	}
	text, err := effective(c)
	if err != nil {
		return err
	}
	if _, err = io.WriteString(stdout, text); err != nil {
		return err
	}
	return checkModels(c, stdout, stderr)
}

// effective prints a configuration as a file that reads back as itself.
func effective(c Config) (string, error) {
	c.Prefill.Listener, c.Models = prefillListener(c), c.filledModels()
	if c.Request.MaxBodiesBytes == 0 { // not of a plugin, which has asked once
		c.Request.MaxBodiesBytes = memoryHere().bodies()
	}
	c.Request.MaxBodyBytes = int(min(int64(c.Request.MaxBodyBytes), budget.New(c.Request.MaxBodiesBytes).Large()))
	for _, p := range []*PickConfig{&c.Routing.Prefill, &c.Routing.Decode, &c.Routing.Aggregated} {
		*p = p.filled()
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	return string(b), nil
}

// versionText is the module's version and the commit it was built from, as far
// as the toolchain knows them.
func versionText() string {
	v, rev := buildVersion()
	if rev != "" {
		return v + " (" + rev + ")"
	}
	return v
}

func buildVersion() (version, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown", ""
	}
	version = info.Main.Version
	if version == "" || version == "(devel)" {
		version = "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return version, revision
}
