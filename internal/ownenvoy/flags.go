package ownenvoy

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/envoyfile"
)

// Options are what a user asks for beside the plugin's configuration.
type Options struct {
	envoyfile.Options

	File  string // what the parts are merged into; "": a whole configuration is written
	Write bool   // File is written in place of being printed
	Parts string // the folder into which the parts are written instead; "": none
}

// Summary says what the command does.
const Summary = `Writes what one's own Envoy needs for Baton. With FILE, your Envoy's bootstrap file, it prints that file with the
parts merged in; again on its own result it brings the parts up to date. Without FILE it prints a whole configuration.
Give it the flags or the --config of the plugin: sockets, replicas and limits come from there.

  extproc envoy --config baton.yaml envoy.yaml >new.yaml     # then: envoy --mode validate -c new.yaml
  extproc check --config baton.yaml --envoy new.yaml         # what is missing, and what goes wrong without it`

// Flags adds the flags of the command. The function that it returns gives the options once they are parsed; it
// takes FILE, which may be empty.
func Flags(fs *flag.FlagSet) func(file string) (*Options, error) {
	o := &Options{}
	fs.StringVar(&o.Listener, "client-listener", "", "`name` of the listener that clients of models reach; needed if FILE has several")
	fs.StringVar(&o.Cluster, "cluster", "", "the `cluster` whose routes lead to Baton from now on; needed if the routes lead to several")
	fs.BoolVar(&o.Write, "write", false, "write FILE in place of printing it")
	fs.StringVar(&o.Parts, "parts", "", "write the parts into this `folder` instead: bootstrap.yaml, lds.yaml, cds.yaml as Envoy reads them from files, and client.yaml, what your listener and routes need")
	fs.BoolVar(&o.FullDuplex, "full-duplex", false, "stream bodies through the plugin, as gateways do")
	tracing := fs.String("tracing", "", "`host:port` of an OTLP gRPC collector for Envoy's own spans")
	fs.Func("cors", "`origin` whose web pages may call Envoy, or *; may be given several times", func(s string) error {
		o.CORS = append(o.CORS, s)
		return nil
	})
	fs.Func("replica", "`host:port` of another plugin behind the same Envoy; may be given several times; those of leg.replicas are known", func(s string) error {
		o.Replicas = append(o.Replicas, s)
		return nil
	})
	return func(file string) (*Options, error) {
		var errs []error
		if *tracing != "" {
			host, port, _ := net.SplitHostPort(*tracing)
			n, err := strconv.ParseUint(port, 10, 16)
			o.TracingHost, o.TracingPort = host, int(n)
			if host == "" || err != nil || n == 0 {
				errs = append(errs, fmt.Errorf("--tracing %q: expected host:port", *tracing))
			}
		}
		o.File = file
		ofFile := o.Write || o.Listener != "" || o.Cluster != ""
		if ofFile && file == "" || o.Parts != "" && file != "" {
			errs = append(errs, errors.New("expected --write, --client-listener and --cluster with FILE, and --parts without"))
		}
		return o, errors.Join(errs...)
	}
}
