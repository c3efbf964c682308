package config

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"regexp"
)

// Note is told once at the start, of a flag without effect.
type Note struct {
	Level  slog.Level
	Flag   string
	Reason string
}

// eppBase is what a configuration file of the epp command is laid over: the
// reference pickers' defaults where they have one, ours for the rest.
func eppBase() (Config, error) {
	c := Default()
	c.Gateway.Enabled = true
	for _, f := range eppFlagsOfPorts() {
		if err := f.set(&c, f.def); err != nil {
			return c, fmt.Errorf("epp: --%s: %w", f.name, err)
		}
	}
	c.TLS.SelfSigned = true
	c.InsecureListen = true // whose arguments these are configures the network, too; it is told all the same
	return c, nil
}

// eppGiven is what the command line says of the reference's flags.
type eppGiven struct {
	flags  []eppFlag
	values map[string]string
}

// eppValue takes the value of one flag.
type eppValue struct {
	flag *eppFlag
	to   map[string]string
}

func (v eppValue) String() string { return "" }

func (v eppValue) IsBoolFlag() bool { return v.flag != nil && v.flag.form == eppYesNo }

func (v eppValue) Set(s string) error {
	if err := v.flag.form.check(s); err != nil {
		return err
	}
	v.to[v.flag.name] = s
	return nil
}

func addEPPFlags(fs *flag.FlagSet) *eppGiven {
	g := &eppGiven{flags: eppFlags(), values: map[string]string{}}
	for i := range g.flags {
		f := &g.flags[i]
		text := plain(f.outcome())
		if f.def != "" {
			text += " (default there " + f.def + ")"
		}
		fs.Var(eppValue{f, g.values}, f.name, text)
	}
	return g
}

// apply lays what was given over c, and refuses what cannot be ignored.
func (g *eppGiven) apply(c *Config) error {
	var errs []error
	for i := range g.flags {
		f := &g.flags[i]
		v, given := g.values[f.name]
		if !given {
			continue
		}
		switch f.fate {
		case eppSets:
			if err := f.set(c, v); err != nil {
				errs = append(errs, fmt.Errorf("--%s %q: %w", f.name, v, err))
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

// notes are for the flags without effect that were given, in the table's order.
// That metrics are open is said unless that is asked for: the reference asks
// who reads them by default.
func (g *eppGiven) notes(c *Config) (out []Note) {
	for i := range g.flags {
		f := &g.flags[i]
		v, given := g.values[f.name]
		n := Note{Level: slog.LevelInfo, Flag: "--" + f.name, Reason: plain(f.text)}
		if f.name == "metrics-endpoint-auth" {
			n.Level, given = slog.LevelWarn, c.Metrics.Listen != "" && (!given || yes(v))
		}
		if given && f.fate == eppNoted {
			out = append(out, n)
		}
	}
	return out
}

// glued is the short form that the reference takes for --v=4.
var glued = regexp.MustCompile(`^-v(\d+)$`)

var errNoWorkers = errors.New("epp: no source of workers is set: InferencePools are not read yet; " +
	"set --workers, --etcd-endpoints or --baton-config")

// EPP adds the flags of a reference endpoint picker, and those of serve, and reads the
// command line. The notes are of flags without effect.
func EPP(fs *flag.FlagSet, args []string) (Config, []Note, error) {
	base, err := eppBase()
	if err != nil {
		return base, nil, err
	}
	given := addEPPFlags(fs)
	config := overlay{
		base: base, file: "baton-config",
		under: func(c *Config) error {
			if err := given.apply(c); err != nil {
				return fmt.Errorf("epp: %w", err)
			}
			return nil
		},
		over: func(c *Config) error {
			if c.Discovery.File == "" && len(c.Discovery.Etcd.Endpoints) == 0 {
				return errNoWorkers
			}
			return nil
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
