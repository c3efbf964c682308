package ownenvoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/envoyfile"
	"github.com/seed-60ae5743/baton/internal/wholefile"
)

// Write writes the configuration, as the options say. Errors of the user's match [config.ErrUsage].
func Write(c *config.Config, o *Options, stdout, stderr io.Writer) error {
	if err := paramsOf(c, &o.Params); err != nil {
		return config.Usage(err)
	}
	if o.PluginTLS && o.File == "" {
		fmt.Fprintf(stderr, "extproc: note: %s\n", envoyfile.NoteTLS)
	}
	switch {
	case o.Parts != "":
		return writeParts(o.Parts, o.Params, stderr)
	case o.File != "":
		return merge(o.File, o.Options, o.Write, stdout, stderr)
	}
	o.Notes = []string{"Written by `extproc envoy`."}
	out, err := envoy.Standalone(o.Params)
	if err != nil {
		return config.Usage(err)
	}
	_, err = stdout.Write(out)
	return err
}

// merge prints a file with the parts merged in, or writes it, and says what has changed.
func merge(name string, o envoyfile.Options, write bool, stdout, stderr io.Writer) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return config.Usage(err)
	}
	out, changed, err := envoyfile.Merge(envoyfile.File{Name: name, Data: data}, o)
	if err != nil {
		return config.Usage(err)
	}
	for _, line := range changed {
		fmt.Fprintf(stderr, "extproc: note: %s\n", line)
	}
	if write {
		return wholefile.Edit(name, out)
	}
	_, err = stdout.Write(out)
	return err
}

func writeParts(folder string, p envoy.Params, stderr io.Writer) error {
	files, err := envoyfile.Split(p)
	if err != nil {
		return config.Usage(err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		if err := wholefile.Replace(filepath.Join(folder, name), data); err != nil {
			return err
		}
	}
	fmt.Fprintf(stderr, "extproc: note: in %s: add bootstrap.yaml to Envoy's bootstrap file, serve lds.yaml and cds.yaml beside your listeners and clusters, and give your own listener what client.yaml says; then ask: extproc check --envoy ADMIN-ADDRESS\n", folder)
	return nil
}

// paramsOf takes from the plugin's configuration what Envoy's must agree with.
func paramsOf(c *config.Config, p *envoy.Params) error {
	var errs []error
	p.MaxBodyBytes = c.Request.MaxBodyBytes
	p.PluginTLS = c.TLS.On()
	p.Retries = max(c.Request.MaxAttempts-1, 1)
	if path, ok := strings.CutPrefix(c.Listen, "unix://"); ok {
		p.PluginSocket = path
	} else {
		p.PluginSocket = "-"
		p.PluginHost, p.PluginPort = hostPort(c.Listen, c.Leg.Advertise)
		errs = append(errs, isAddress("listen "+c.Listen, p.PluginHost))
	}
	legs := c.PrefillListener()
	path, socket := strings.CutPrefix(legs, "unix://")
	at, port := strings.CutPrefix(legs, "http://")
	switch {
	case socket:
		p.PrefillSocket = path
	case port:
		p.PrefillHost, p.PrefillPort = hostPort(strings.TrimRight(at, "/"), "")
		errs = append(errs, isAddress("prefill.listener "+legs, p.PrefillHost))
	}
	if c.Engines.CA != "" {
		var err error
		p.WorkerCA, err = filepath.Abs(c.Engines.CA) // Envoy may run in another folder
		errs = append(errs, err)
	}
	known := slices.Concat(c.Leg.Replicas, p.Replicas)
	p.Replicas = nil
	for _, r := range known {
		host, _ := hostPort(r, "")
		err := isAddress("replica "+r, host)
		if !config.HostPort(r) { // a flag's, which nobody has checked
			err = fmt.Errorf("replica %q: expected host:port", r)
		}
		errs = append(errs, err)
		if r != net.JoinHostPort(p.PluginHost, strconv.Itoa(p.PluginPort)) && !slices.Contains(p.Replicas, r) {
			p.Replicas = append(p.Replicas, r)
		}
	}
	if len(p.Replicas) > 0 && p.PluginSocket != "-" {
		errs = append(errs, fmt.Errorf("listen %s: with other replicas expected host:port: they cannot call each other at a socket", c.Listen))
	}
	return errors.Join(errs...)
}

// isAddress refuses a name: Envoy does not start with one where an address has to be.
func isAddress(what, host string) error {
	if net.ParseIP(host) == nil {
		return fmt.Errorf("%s: Envoy's file needs the address in place of the name %q", what, host)
	}
	return nil
}

// hostPort splits an address, whose form the configuration has been checked for. One that stands for all of a
// machine's becomes the other one, or loopback.
func hostPort(at, other string) (string, int) {
	host, port, _ := net.SplitHostPort(at)
	n, _ := strconv.Atoi(port)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if h, _, err := net.SplitHostPort(other); err == nil {
			host = h
		}
	}
	return host, n
}

// errEnvoyLacks means that Envoy's configuration has not all that Baton needs.
var errEnvoyLacks = errors.New("Envoy's configuration lacks what is named above: `extproc envoy` merges it in") //nolint:staticcheck // a name

// Check says which of Baton's parts a file, or a running Envoy, lacks.
func Check(c *config.Config, at string, stdout io.Writer) error {
	var p envoy.Params
	if err := paramsOf(c, &p); err != nil {
		return config.Usage(err)
	}
	files, err := envoyFiles(at)
	if err != nil {
		return config.Usage(err)
	}
	found, err := envoyfile.Check(p, files...)
	if err != nil {
		return config.Usage(err)
	}
	needed := 0
	for _, f := range found {
		if !f.Part.Advised {
			needed++
		}
		fmt.Fprintln(stdout, f)
	}
	switch {
	case needed > 0:
		return errEnvoyLacks
	case len(found) > 0:
		fmt.Fprintf(stdout, "%s has all that Baton needs; %d advised parts differ.\n", at, len(found))
	default:
		fmt.Fprintf(stdout, "%s has all that Baton needs.\n", at)
	}
	return nil
}

// envoyFiles reads a file, with those from which it has listeners and clusters served, or asks a running Envoy.
func envoyFiles(at string) ([]envoyfile.File, error) {
	info, err := os.Stat(strings.TrimPrefix(at, "unix://"))
	if err != nil || info.Mode()&os.ModeSocket != 0 {
		if _, _, bad := net.SplitHostPort(strings.TrimPrefix(at, "http://")); err != nil && bad != nil {
			return nil, fmt.Errorf("--envoy: %w; expected a file, or the address of Envoy's admin: host:port or a socket's path", err)
		}
		data, err := askEnvoy(at, err == nil)
		return []envoyfile.File{{Name: at, Data: data}}, err
	}
	data, err := os.ReadFile(at)
	if err != nil {
		return nil, fmt.Errorf("--envoy: %w", err)
	}
	files := []envoyfile.File{{Name: at, Data: data}}
	for _, name := range envoyfile.Served(files[0]) {
		served, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("--envoy: %s has listeners or clusters from there: %w", at, err)
		}
		files = append(files, envoyfile.File{Name: name, Data: served})
	}
	return files, nil
}

// askWithin bounds the question to a running Envoy.
const askWithin = 10 * time.Second

// askEnvoy reads the configuration that a running Envoy has.
func askEnvoy(at string, socket bool) ([]byte, error) {
	const most = 256 << 20
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true} // and no proxy of the environment
	u := "http://" + strings.TrimPrefix(at, "http://")
	if socket {
		u = "http://envoy"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(at, "unix://"))
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(u, "/")+"/config_dump", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("--envoy: %w: expected Envoy's admin there", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("--envoy: %s/config_dump answers %s: expected Envoy's admin there", u, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, most))
}
