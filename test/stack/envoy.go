package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// Envoy is a running Envoy.
type Envoy struct {
	*Process
	URL   string // where clients reach it
	Admin string // the unix socket of its admin interface, which Ask asks
}

// EnvoyOptions say how to run Envoy. A port of 0 becomes a free one.
type EnvoyOptions struct {
	Path        string // the binary
	Dir         string // where its configuration is written, and the socket of its admin is
	Params      envoy.Params
	Gateway     *envoy.GatewayParams // run a Gateway API data plane instead of Params, if set
	TwoLegs     bool                 // with Gateway: the configuration that carries both legs
	Config      []byte               // replaces all of these, if set
	Concurrency int                  // worker threads; 0 means 1
	LogLevel    string               // default warning
	Cgroup      string               // path of the cgroup.procs of the cgroup to run in; default: that of this process
}

// Render returns the configuration for the options. Ports that are 0 become free ones,
// which are held until ctx has ended; see FreePorts.
func (o EnvoyOptions) Render(ctx context.Context) ([]byte, error) {
	free, err := FreePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	place := func(p *envoy.Params) {
		if p.ClientPort == 0 {
			p.ClientPort = free[0]
		}
		p.AdminSocket = filepath.Join(o.Dir, "envoy.sock")
		minor := EnvoyMinor(o.Path)
		p.Before137, p.Before139 = p.Before137 || minor < 37, p.Before139 || minor < 39
	}
	if o.Gateway == nil {
		p := o.Params
		place(&p)
		return envoy.Standalone(p)
	}
	p := *o.Gateway
	place(&p.Params)
	if o.TwoLegs {
		return twolegs.GatewayTwoLegs(p)
	}
	return twolegs.GatewayAPI(p)
}

// EnvoyMinor returns the minor version of an Envoy, for example 40 of 1.40.0. If the
// binary does not say it, that of EnvoyVersion is returned. Each binary is asked once.
func EnvoyMinor(path string) int {
	once, _ := minors.LoadOrStore(path, sync.OnceValue(func() (minor int) {
		out, _ := exec.Command(path, "--version").Output() // empty if it cannot run, which shows when it is started
		for part := range strings.SplitSeq(string(out)+"/"+EnvoyVersion, "/") {
			if n, _ := fmt.Sscanf(part, "1.%d.", &minor); n == 1 {
				break
			}
		}
		return minor
	}))
	return once.(func() int)()
}

var minors sync.Map // of a path: func() int

// StartEnvoy runs Envoy and returns once it is live and its listeners are up.
func StartEnvoy(ctx context.Context, o EnvoyOptions) (*Envoy, error) {
	config := o.Config
	if config == nil {
		var err error
		config, err = o.Render(ctx)
		if err != nil {
			return nil, err
		}
	}
	file := filepath.Join(o.Dir, "envoy.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, fmt.Errorf("stack: write envoy's configuration: %w", err)
	}
	if o.LogLevel == "" {
		o.LogLevel = "warning"
	}
	admin := filepath.Join(o.Dir, "envoy-admin")
	if err := os.RemoveAll(admin); err != nil {
		return nil, fmt.Errorf("stack: %w", err)
	}
	path, args := within(o.Cgroup, o.Path, []string{
		"-c", file, "--disable-hot-restart",
		"--concurrency", strconv.Itoa(max(o.Concurrency, 1)), "--log-level", o.LogLevel,
		"--admin-address-path", admin, "--drain-time-s", "1",
	})
	proc, err := start(ctx, "envoy", nil, path, args...)
	if err != nil {
		return nil, err
	}
	e := &Envoy{Process: proc}
	if err := e.await(ctx, admin); err != nil {
		_ = proc.Kill()
		return nil, fmt.Errorf("%w\n%s", err, proc.Log())
	}
	return e, nil
}

// await waits until Envoy is LIVE and its client listener has an address.
func (e *Envoy) await(ctx context.Context, adminFile string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return poll(ctx, "envoy to be live", e.Process, func() bool {
		addr, err := os.ReadFile(adminFile)
		if err != nil || len(addr) == 0 {
			return false
		}
		e.Admin = string(addr)
		if body, err := e.Ask(ctx, http.MethodGet, "/ready"); err != nil || !strings.HasPrefix(body, "LIVE") {
			return false
		}
		e.URL = e.clientURL(ctx)
		return e.URL != ""
	})
}

func (e *Envoy) clientURL(ctx context.Context) string {
	body, err := e.Ask(ctx, http.MethodGet, "/listeners?format=json")
	if err != nil {
		return ""
	}
	var list struct {
		Statuses []struct {
			Name  string `json:"name"`
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if json.Unmarshal([]byte(body), &list) != nil {
		return ""
	}
	for _, l := range list.Statuses {
		if l.Name == "client" && l.Local.Socket.Port != 0 {
			return fmt.Sprintf("http://%s:%d", l.Local.Socket.Address, l.Local.Socket.Port)
		}
	}
	return ""
}

// Stat returns a counter or gauge of Envoy by its full name, or 0 if Envoy has none.
func (e *Envoy) Stat(ctx context.Context, name string) (int64, error) {
	body, err := e.Ask(ctx, http.MethodGet, "/stats?filter=^"+name+"$")
	if err != nil {
		return 0, err
	}
	_, value, ok := strings.Cut(strings.TrimSpace(body), ": ")
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("stack: envoy stat %s: %w", name, err)
	}
	return n, nil
}

// Ask asks Envoy's admin. An answer other than 200 is an error.
func (e *Envoy) Ask(ctx context.Context, method, path string) (string, error) {
	var dialer net.Dialer
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", e.Admin)
	}}
	defer t.CloseIdleConnections()
	return ask(ctx, &http.Client{Transport: t}, method, "http://envoy"+path)
}

// ValidateEnvoy runs Envoy to check a configuration.
func ValidateEnvoy(ctx context.Context, path string, config []byte, dir string) error {
	file := filepath.Join(dir, "validate.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return fmt.Errorf("stack: %w", err)
	}
	out, err := exec.CommandContext(ctx, path, "--mode", "validate", "-c", file, "--log-level", "warning").CombinedOutput()
	if err != nil {
		return fmt.Errorf("stack: envoy refuses the configuration: %w\n%s", err, out)
	}
	return nil
}

// Get reads a page. An answer other than 200 is an error.
func Get(ctx context.Context, url string) (string, error) {
	return ask(ctx, http.DefaultClient, http.MethodGet, url)
}

func ask(ctx context.Context, c *http.Client, method, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", fmt.Errorf("stack: %w", err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", fmt.Errorf("stack: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("stack: ask %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("stack: ask %s: status %d", url, resp.StatusCode)
	}
	return string(b), nil
}

// TooOldAsShipped returns the reason why the tests' Envoy cannot run the configurations
// of envoy/ unchanged, or "" if it can.
func TooOldAsShipped() string {
	if path, err := FindEnvoy(os.Getenv("ENVOY")); err == nil && EnvoyMinor(path) < 39 {
		return "the shipped configurations read the usage of streamed answers, which Envoy can since 1.39: docs/envoy-versions.md"
	}
	return ""
}

// PlainConfig is a configuration of Envoy without Baton: a request goes to the worker that has
// fewest. admin is the path of a socket, port one of loopback; workers are host:port with an IP
// address.
func PlainConfig(admin string, port int, workers ...string) []byte {
	var endpoints strings.Builder
	for _, w := range workers {
		host, at, _ := net.SplitHostPort(w)
		fmt.Fprintf(&endpoints, "        - endpoint: {address: {socket_address: {address: %q, port_value: %s}}}\n", host, at)
	}
	return fmt.Appendf(nil, `admin: {address: {pipe: {path: %q}}}
static_resources:
  listeners:
  - name: client
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: plain
          route_config:
            virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: workers, timeout: 0s}}]}]
          http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
  clusters:
  - name: workers
    type: STATIC
    lb_policy: LEAST_REQUEST
    load_assignment:
      cluster_name: workers
      endpoints:
      - lb_endpoints:
%s`, admin, port, endpoints.String())
}
