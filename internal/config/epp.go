package config

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/eppconfig"
	"github.com/seed-60ae5743/baton/internal/sources"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Note is a remark for the log, at the start, about a flag that has no effect, or less
// than the reference gives it.
type Note struct {
	Level  slog.Level
	Flag   string
	Reason string
	// Ignored are the parts of a scheduler's configuration that have no counterpart.
	Ignored []eppconfig.Ignored
}

// eppBase is the configuration below the file of the epp command: the reference pickers'
// defaults if they have one, else ours.
func eppBase() (Config, error) {
	c := Default()
	c.Gateway.Enabled, c.Gateway.UnknownModels = true, unknownPass
	for _, f := range eppFlagsOfPorts() {
		if err := f.set(&c, f.def); err != nil {
			return c, fmt.Errorf("epp: --%s: %w", f.name, err)
		}
	}
	c.TLS.SelfSigned = true
	c.InsecureListen = true // whoever sets these arguments configures the network, too; a warning is logged all the same
	return c, nil
}

// eppGiven holds the reference's flags, and the values that the command line gives them.
type eppGiven struct {
	flags  []eppFlag
	values map[string]string

	scheduler     eppconfig.Config
	schedulerFlag string // the flag that gives it
	unused        bool   // the flags that say which pods are workers have no effect: another source has the workers
}

func addEPPFlags(fs *flag.FlagSet) *eppGiven {
	g := &eppGiven{flags: eppFlags(), values: map[string]string{}}
	for i := range g.flags {
		f := &g.flags[i]
		text := plain(f.outcome())
		if f.def != "" {
			text += " (default there " + f.def + ")"
		}
		add := fs.Func
		if f.form == eppYesNo {
			add = fs.BoolFunc
		}
		add(f.name, text, func(v string) error {
			g.values[f.name] = v
			return f.form.check(v)
		})
	}
	return g
}

// apply lays the given flags over c. It returns an error for flags that must not be
// ignored.
func (g *eppGiven) apply(c *Config) error {
	var errs []error
	for i := range g.flags {
		f := &g.flags[i]
		v, given := g.values[f.name]
		if !given || f.pool {
			continue
		}
		switch f.fate {
		case eppSets:
			if err := f.set(c, v); err != nil {
				errs = append(errs, fmt.Errorf("--%s %q: %w", f.name, v, err))
			}
		case eppReads:
			if err := g.readScheduler(c, f, v); err != nil {
				errs = append(errs, err)
			}
		case eppRefused:
			if v != "" && (f.form != eppYesNo || yes(v)) {
				errs = append(errs, fmt.Errorf("--%s is refused: %s", f.name, plain(f.text)))
			}
		case eppNoted:
		}
	}
	return errors.Join(errs...)
}

// readScheduler reads a scheduler's configuration, and lays over c what follows from it. An
// empty value is none.
func (g *eppGiven) readScheduler(c *Config, f *eppFlag, v string) error {
	switch {
	case v == "":
		return nil
	case g.schedulerFlag != "":
		return fmt.Errorf("--%s: expected it without --%s", f.name, g.schedulerFlag)
	}
	g.schedulerFlag = f.name
	var err error
	g.scheduler, err = f.read(v)
	if g.scheduler.Splits() {
		c.Routing.Headers = prefill.DialectLLMD
	}
	return err
}

// applyPool lays the flags that say which pods are workers over c. Where other workers are
// set and no pool is, a pool's have no effect: an image is swapped with its arguments, and
// its workers are listed. A selector is refused: it chooses workers, and others would serve.
func (g *eppGiven) applyPool(c *Config) error {
	d := &c.Discovery
	g.unused = !d.None() && len(d.Kubernetes) == 0
	d.Kubernetes = slices.Clone(d.Kubernetes)
	var errs []error
	for i := range g.flags {
		f := &g.flags[i]
		v, given := g.values[f.name]
		switch {
		case !given || !f.pool || v == "":
		case g.unused && strings.HasPrefix(f.name, "endpoint-"):
			errs = append(errs, fmt.Errorf("--%s is refused: --workers, --etcd-endpoints or --baton-config set other workers, which would serve, too", f.name))
		case !g.unused:
			if err := f.set(c, v); err != nil {
				errs = append(errs, fmt.Errorf("--%s %q: %w", f.name, v, err))
			}
		}
	}
	return errors.Join(append(errs, g.applyRoles(d))...)
}

// applyRoles lays the rules of a scheduler's filters by labels over d, before the pools' own: it
// leaves out whom they do not select.
func (g *eppGiven) applyRoles(d *sources.Config) error {
	rules := g.scheduler.Roles()
	if len(rules) > 0 && (g.unused || len(d.Kubernetes) == 0) {
		return fmt.Errorf("--%s is refused: it selects workers by the labels of pods, but the workers that are set have no labels: remove its filters by labels, and list only the workers that may serve", g.schedulerFlag)
	}
	for i := range d.Kubernetes {
		var roles []sources.RoleConfig
		for _, r := range rules {
			roles = append(roles, sources.RoleConfig{Selector: r.Selector, Role: r.Role})
		}
		d.Kubernetes[i].Roles = append(roles, d.Kubernetes[i].Roles...)
	}
	return nil
}

// notes returns a note for each given flag without effect, in the order of eppFlags. It
// also notes that metrics are open, unless a flag asks for that: by default the reference
// checks who reads them.
func (g *eppGiven) notes(c *Config) (out []Note) {
	for i := range g.flags {
		f := &g.flags[i]
		v, given := g.values[f.name]
		n := Note{Level: slog.LevelInfo, Flag: "--" + f.name, Reason: plain(f.text)}
		if f.name == "metrics-endpoint-auth" {
			n.Level, given = slog.LevelWarn, c.Metrics.Listen != "" && (!given || yes(v))
		}
		if f.fate == eppReads {
			n.Level, n.Reason, n.Ignored = slog.LevelWarn, g.scheduler.Warning(), g.scheduler.Ignored()
			given = f.name == g.schedulerFlag
		}
		if f.pool && given && g.unused {
			n.Reason = "the workers are those of --workers, --etcd-endpoints or --baton-config"
			out = append(out, n)
		}
		if given && (f.fate == eppNoted || f.fate == eppReads) {
			out = append(out, n)
		}
	}
	return out
}

// glued matches the short form -v4, which the reference accepts for --v=4.
var glued = regexp.MustCompile(`^-v(\d+)$`)

var errNoWorkers = errors.New("no source of workers is set: expected --pool-name, --endpoint-selector, " +
	"--workers, --etcd-endpoints, or one of them in --baton-config")

// EPP adds the flags of a reference endpoint picker and those of serve, and reads the
// command line. The notes are about flags without effect.
func EPP(fs *flag.FlagSet, args []string) (Config, []Note, error) {
	base, err := eppBase()
	if err != nil {
		return base, nil, err
	}
	given := addEPPFlags(fs)
	config := overlay{
		base: base, file: "baton-config", under: given.apply,
		over: func(c *Config) error {
			err := given.applyPool(c)
			if err == nil && c.Discovery.None() {
				err = errNoWorkers
			}
			return err
		},
	}.flags(fs)
	plainArgs := make([]string, len(args))
	for i, a := range args {
		plainArgs[i] = glued.ReplaceAllString(a, "-v=$1")
	}
	if err := ParseFlags(fs, plainArgs, 0); err != nil {
		return base, nil, err
	}
	c, err := config()
	return c, given.notes(&c), err
}
