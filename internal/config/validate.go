package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/sources"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// Bounds far beyond any use, so that no sum or product of settings overflows.
const (
	mostDuration = 365 * 24 * time.Hour
	mostJournal  = 1_000_000
)

// Validate returns every fault, joined, or nil. Each fault begins with its key.
func (c *Config) Validate() error { return c.validate(true) }

// validate is Validate; without workers it is no fault that no source lists them.
func (c *Config) validate(workers bool) error {
	var errs []error
	if workers {
		errs = append(errs, c.Discovery.Needed())
	}
	errs = append(errs, c.Discovery.Validate(), c.Events.validate())
	errs = append(errs, c.validateAddresses()...)
	errs = append(errs, c.validateDurations()...)
	errs = append(errs, c.validateNumbers()...)
	errs = append(errs, c.validateWords()...)
	errs = append(errs, c.validateSplit()...)
	errs = append(errs, c.validateModels()...)
	errs = append(errs, c.TLS.validate()...)
	errs = append(errs, c.Facts.validate()...)
	errs = append(errs, c.Gateway.validate()...)
	errs = append(errs, c.validateFiles()...)
	errs = append(errs, c.validateRecord()...)
	errs = append(errs, validatePicks("routing.", c.Routing)...)
	return errors.Join(errs...)
}

// keyed splits the faults of a part, and replaces the part's name before each key by
// prefix.
func keyed(prefix string, err error) (out []error) {
	if err == nil {
		return nil
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		out = append(out, errors.New(prefix+strings.TrimPrefix(line, "picker: ")))
	}
	return out
}

func (c *Config) validateAddresses() (errs []error) {
	_, _, listen := ListenAddress(c.Listen)
	_, mode := c.SocketMode.Bits()
	errs = append(errs, listen, mode, c.validateExposure())
	if l := c.Prefill.Listener; l != "" {
		if _, _, err := extproc.ParseListener(l); err != nil {
			errs = append(errs, fmt.Errorf("prefill.listener %q: expected unix:///path or http://host:port", l))
		}
	}
	if c.Leg.Advertise != "" && !HostPort(c.Leg.Advertise) {
		errs = append(errs, fmt.Errorf("leg.advertise (--leg-advertise) %q: expected host:port, with a port of 0 to 65535", c.Leg.Advertise))
	}
	if c.Leg.Advertise != "" && strings.HasPrefix(c.Listen, "unix://") {
		errs = append(errs, fmt.Errorf("leg.advertise (--leg-advertise) %q: other replicas cannot reach a unix socket: listen on host:port", c.Leg.Advertise))
	}
	errs = append(errs, c.Leg.checkReplicas()...)
	if !HostPort(c.Admin.Listen) {
		errs = append(errs, fmt.Errorf("admin.listen (--admin) %q: expected host:port, with a port of 0 to 65535", c.Admin.Listen))
	}
	if e := c.Trace.Endpoint; e != "" {
		if err := (telemetry.TraceConfig{Endpoint: e}).Validate(); err != nil {
			errs = append(errs, fmt.Errorf("trace.endpoint (--trace-endpoint) %q: expected host:port", e))
		}
	}
	return append(append(errs, c.Probes.validate("probes"), c.Metrics.validate("metrics")), c.addressesTwice()...)
}

// addressesTwice returns a fault for each address that two of the plugin's own servers
// would use, or one and Envoy's listener of legs.
func (c *Config) addressesTwice() (errs []error) {
	legs := c.PrefillListener()
	if strings.HasPrefix(c.Listen, "unix://") && filepath.Clean(legs) == filepath.Clean(c.Listen) {
		errs = append(errs, fmt.Errorf("prefill.listener %q: listen already has that path: expected another path", legs))
	}
	type door struct{ key, at string }
	var open []door
	for _, d := range []door{{"listen", c.Listen}, {"admin.listen", c.Admin.Listen}, {"probes.listen", c.Probes.Listen}, {"metrics.listen", c.Metrics.Listen}} {
		host, port, err := net.SplitHostPort(d.at)
		if err != nil || port == "0" || strings.HasPrefix(d.at, "unix://") {
			continue
		}
		for _, other := range open {
			h, p, _ := net.SplitHostPort(other.at)
			if p == port && (h == host || anyHost(h) || anyHost(host)) {
				errs = append(errs, fmt.Errorf("%s %q: %s already has that port: expected another port", d.key, d.at, other.key))
			}
		}
		open = append(open, d)
	}
	return errs
}

func anyHost(h string) bool {
	a, err := netip.ParseAddr(h)
	return h == "" || err == nil && a.IsUnspecified()
}

// validateDurations checks that each duration is at least the shortest with a meaning. 0
// is accepted if it makes sense, and otherwise refused: no default takes its place.
func (c *Config) validateDurations() (errs []error) {
	const tick = time.Millisecond
	for _, d := range []struct {
		key   string
		v     time.Duration
		least time.Duration
	}{
		{"drain_timeout", c.DrainTimeout, 0},
		{"tokens.wait", c.Tokens.Wait, tick},
		{"index.dump_interval", c.Index.DumpInterval, 0},
		{"prefill.start_timeout", c.Prefill.StartTimeout, tick}, {"prefill.timeout", c.Prefill.Timeout, tick},
		{"prefill.overdue_base", c.Prefill.OverdueBase, 0}, {"prefill.overdue_per_token", c.Prefill.OverduePerToken, 0},
		{"answer.overdue_base", c.Answer.OverdueBase, tick}, {"prefill.orphan_grace", c.Prefill.OrphanGrace, 0},
		{"prefill.handoff_lease", c.Prefill.HandOffLease, 0},
		{"routing.routed_ttl", c.Routing.RoutedTTL, tick}, {"routing.predicted_ttl", c.Routing.PredictedTTL, 0},
		{"request.default_timeout", c.Request.DefaultTimeout, tick}, {"request.max_timeout", c.Request.MaxTimeout, tick},
		{"request.max_wait", c.Request.MaxWait, tick},
		{"health.probe_interval", c.Health.ProbeInterval, tick},
		{"engines.report_interval", c.Engines.ReportInterval, 0},
		{"facts.refresh", c.Facts.Refresh, time.Second}, {"facts.timeout", c.Facts.Timeout, tick},
	} {
		if d.v < d.least || d.v > mostDuration {
			errs = append(errs, fmt.Errorf("%s %s: expected %s to %s", d.key, d.v, d.least, mostDuration))
		}
	}
	if c.Prefill.OverdueBase == 0 && c.Prefill.OverduePerToken == 0 {
		errs = append(errs, errors.New("prefill.overdue_base 0s: expected more than 0, or prefill.overdue_per_token above 0: each prefill would be overdue at once"))
	}
	_, err := c.Engines.TLS()
	errs = append(errs, err)
	if e := c.Engines.ReportInterval; e > 0 && e < leastReportInterval {
		errs = append(errs, fmt.Errorf("engines.report_interval %s: expected at least %s, or 0 for no reports", e, leastReportInterval))
	}
	if c.Tokens.Wait > 4*time.Second {
		errs = append(errs, fmt.Errorf("tokens.wait %s: expected at most 4s, below Envoy's message_timeout", c.Tokens.Wait))
	}
	if r := c.Request; r.MaxTimeout >= tick && r.DefaultTimeout > r.MaxTimeout {
		errs = append(errs, fmt.Errorf("request.default_timeout %s: expected at most request.max_timeout, %s", r.DefaultTimeout, r.MaxTimeout))
	}
	return errs
}

func (c *Config) validateNumbers() (errs []error) {
	const most = 1 << 40
	for _, n := range []struct {
		key            string
		v, least, most int64
	}{
		{"journal", int64(c.Journal), 1, mostJournal},
		{"index.max_bytes", int64(c.Index.MaxBytes), kvindex.LeastBytes, kvindex.MostBytes},
		{"prefill.max_queued_isl_tokens", c.Prefill.MaxQueuedISLTokens, 0, most},
		{"request.max_body_bytes", int64(c.Request.MaxBodyBytes), 1, most},
		{"request.max_bodies_bytes", cmp.Or(c.Request.MaxBodiesBytes, budget.Least), budget.Least, most}, {"request.max_attempts", int64(c.Request.MaxAttempts), 1, 100},
		{"health.server_errors", int64(c.Health.ServerErrors), 1, 1000},
	} {
		if n.v < n.least || n.v > n.most {
			errs = append(errs, fmt.Errorf("%s %d: expected %d to %d", n.key, n.v, n.least, n.most))
		}
	}
	if r := c.Trace.Ratio; !(r >= 0 && r <= 1) {
		errs = append(errs, fmt.Errorf("trace.ratio %v: expected a number from 0 to 1", r))
	}
	return errs
}

func (c *Config) validateWords() (errs []error) {
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	for _, w := range []struct{ key, v, want string }{
		{"tls.min_version", c.TLS.MinVersion, "VersionTLS12 or VersionTLS13"},
		{"discovery.etcd.prefix", c.Discovery.Etcd.Prefix, "what the workers' keys begin with"},
		{"routing.prefill.mode", c.Routing.Prefill.Mode, picker.ModeNames()}, {"routing.decode.mode", c.Routing.Decode.Mode, picker.ModeNames()},
		{"routing.aggregated.mode", c.Routing.Aggregated.Mode, picker.ModeNames()},
	} {
		if w.v == "" {
			bad("%s \"\": expected %s, or no such key", w.key, w.want)
		}
	}
	if _, err := telemetry.NewLogger(io.Discard, c.Log.Level, "text"); err != nil || c.Log.Level == "" {
		bad("log.level (--log-level) %q: expected debug, info, warn or error", c.Log.Level)
	}
	if _, err := telemetry.NewLogger(io.Discard, "info", c.Log.Format); err != nil || c.Log.Format == "" {
		bad("log.format (--log-format) %q: expected text or json", c.Log.Format)
	}
	if !slices.Contains([]tokens.Mode{tokens.Auto, tokens.EstimateOnly, tokens.Off}, tokens.Mode(c.Tokens.Mode)) {
		bad("tokens.mode %q: expected auto, estimate or off", c.Tokens.Mode)
	}
	if !slices.Contains([]tokens.PictureMode{tokens.AskPictures, tokens.EstimatePictures}, tokens.PictureMode(c.Tokens.Pictures)) {
		bad("tokens.pictures %q: expected auto or estimate", c.Tokens.Pictures)
	}
	_, err := prefill.NamesOf(c.Routing.Headers)
	return slices.Concat(errs, keyed("answer.", c.Answer.FirstToken.Validate()), keyed("routing.headers: ", err))
}

// validateFiles reads the files that are named, as the start does.
func (c *Config) validateFiles() (errs []error) {
	_, err := LegKey(c.Leg.KeyFile)
	errs = append(errs, err, c.Discovery.ValidateFiles())
	for _, f := range []struct{ key, name string }{
		{"events.dynamo.nats.password_file", c.Events.Dynamo.NATS.PasswordFile},
		{"tls.cert", c.TLS.Cert}, {"tls.key", c.TLS.Key}, {"tls.client_ca", c.TLS.ClientCA},
	} {
		if err := readable(f.name); err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", f.key, f.name, err))
		}
	}
	return errs
}

// readable returns why the file cannot be read. Without a name there is nothing to read.
func readable(name string) error {
	if name == "" {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return sources.Reason(err)
	}
	return f.Close()
}
