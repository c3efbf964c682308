package config

import (
	"errors"
	"flag"
	"fmt"
)

// Flags adds the flags that serve and check share. The function that it returns gives the
// effective configuration once the flags are parsed. A flag overrides the file.
func Flags(fs *flag.FlagSet) func() (Config, error) {
	return overlay{base: Default(), file: "config"}.flags(fs)
}

// FlagsWithoutWorkers is [Flags] for a command that needs no workers if without says so: that no source
// lists them is no fault then.
func FlagsWithoutWorkers(fs *flag.FlagSet, without func() bool) func() (Config, error) {
	return overlay{base: Default(), file: "config", without: without}.flags(fs)
}

// overlay holds what a configuration is made from. Each step overrides the ones before:
// base, the file, the function under, the flags of serve, the function over. The result
// is then validated.
type overlay struct {
	base        Config
	file        string // the flag that names the file
	under, over func(c *Config) error
	without     func() bool // no workers are needed; nil: they are
}

func (o overlay) flags(fs *flag.FlagSet) func() (Config, error) {
	file := fs.String(o.file, "", "configuration `file` (YAML); see docs/config.md")
	given := addSettings(fs, o.base, settings())
	etcd := addSettings(fs, o.base.Discovery.Etcd, etcdSettings())
	return func() (Config, error) {
		c, places, fault := readOver(o.base, *file)
		if fault != nil && !places.Known() {
			return c, Usage(fault) // further faults cannot be found in a file that cannot be read
		}
		if o.under != nil {
			if err := o.under(&c); err != nil {
				return c, Usage(errors.Join(fault, fmt.Errorf("epp: %w", err))) // no other command has these
			}
		}
		overruled := func(key string) {
			if places.Known() {
				places.Overruled(key)
			}
		}
		given(&c, overruled)
		etcd(&c.Discovery.Etcd, overruled)
		if o.over != nil {
			if err := o.over(&c); err != nil {
				return c, Usage(errors.Join(fault, fmt.Errorf("epp: %w", err))) // no other command has these
			}
		}
		fault = places.InOrder(errors.Join(fault, places.Explain(c.validate(o.without == nil || !o.without()))))
		if fault != nil {
			return c, Usage(fault)
		}
		return c, nil
	}
}
