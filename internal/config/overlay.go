package config

import (
	"errors"
	"flag"
	"strings"
)

// Flags adds the flags that serve and check share. The function that it returns gives the
// effective configuration once the flags are parsed. A flag overrides the file.
func Flags(fs *flag.FlagSet) func() (Config, error) {
	return overlay{base: Default(), file: "config"}.flags(fs)
}

// overlay holds what a configuration is made from. Each step overrides the ones before:
// base, the file, the function under, the flags of serve, the function over. The result
// is then validated.
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
	fs.StringVar(&given.Discovery.Cache, "discovery-cache", "", "`file` that keeps the last set of workers from etcd, for a start while etcd cannot be reached (discovery.cache)")
	fs.Var((*list)(&given.Discovery.Networks), "discovery-networks", "`networks`, separated by commas, in which workers from etcd and Kubernetes may be (discovery.networks)")
	fs.StringVar(&given.Leg.Advertise, "leg-advertise", "", "`address` at which other replicas reach this one (leg.advertise)")
	fs.BoolVar(&given.EnforceDisagg, "enforce-disagg", false, "refuse what cannot be served by separate prefill and decode workers")
	etcd := etcdFlags(fs)
	return func() (Config, error) {
		c, places, fault := readOver(o.base, *file)
		if fault != nil && !places.Known() {
			return c, Usage(fault) // further faults cannot be found in a file that cannot be read
		}
		if o.under != nil {
			if err := o.under(&c); err != nil {
				return c, Usage(errors.Join(fault, err))
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
				return c, Usage(errors.Join(fault, err))
			}
		}
		fault = places.InOrder(errors.Join(fault, places.Explain(c.Validate())))
		if fault != nil {
			return c, Usage(fault)
		}
		return c, nil
	}
}

// overrule copies the value that a flag has given.
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
	case "discovery-networks":
		c.Discovery.Networks = given.Discovery.Networks
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
	case "leg-advertise":
		c.Leg.Advertise = given.Leg.Advertise
	case "enforce-disagg":
		c.EnforceDisagg = given.EnforceDisagg
	}
}

// keyOfFlag returns the key that a flag of serve overrides, "" for none.
func keyOfFlag(name string) string {
	switch name {
	case "listen", "namespace":
		return name
	case "workers":
		return "discovery.file"
	case "admin":
		return "admin.listen"
	case "log-level", "log-format", "trace-endpoint", "discovery-cache", "discovery-networks", "leg-advertise":
		return strings.Replace(name, "-", ".", 1)
	case "enforce-disagg", "insecure-listen":
		return strings.Replace(name, "-", "_", 1)
	}
	if rest, ok := strings.CutPrefix(name, "etcd-"); ok {
		return "discovery.etcd." + strings.ReplaceAll(strings.ReplaceAll(rest, "cacert", "ca"), "-", "_")
	}
	return ""
}
