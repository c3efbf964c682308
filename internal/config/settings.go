package config

import (
	"flag"
	"reflect"
	"strings"

	"github.com/seed-60ae5743/baton/internal/sources"
)

// setting is a flag that overrides a key.
type setting[T any] struct {
	flag, key, usage string
	of               func(c *T) any // the key's value in c: a *string, a *bool or a *[]string
}

// addSettings adds the flags to fs; their defaults are what base has. The function that it
// returns copies the given ones to c, and calls overruled with the key of each.
func addSettings[T any](fs *flag.FlagSet, base T, all []setting[T]) func(c *T, overruled func(key string)) {
	given, byFlag := &base, make(map[string]setting[T], len(all))
	for _, s := range all {
		byFlag[s.flag] = s
		switch v := s.of(given).(type) {
		case *string:
			fs.StringVar(v, s.flag, *v, s.usage)
		case *bool:
			fs.BoolVar(v, s.flag, *v, s.usage)
		case *[]string:
			fs.Var((*list)(v), s.flag, s.usage)
		}
	}
	return func(c *T, overruled func(key string)) {
		fs.Visit(func(f *flag.Flag) {
			s, is := byFlag[f.Name]
			if !is {
				return
			}
			overruled(s.key)
			reflect.ValueOf(s.of(c)).Elem().Set(reflect.ValueOf(s.of(given)).Elem())
		})
	}
}

// settings are the flags that serve and check share, without those of etcd.
func settings() []setting[Config] {
	return []setting[Config]{
		{"listen", "listen", "where Envoy reaches the plugin: unix:///path or host:port", func(c *Config) any { return &c.Listen }},
		{"insecure-listen", "insecure_listen", "allow a --listen that other machines reach without a client certificate (insecure_listen)", func(c *Config) any { return &c.InsecureListen }},
		{"workers", "discovery.file", "`file` that lists the workers (discovery.file)", func(c *Config) any { return &c.Discovery.File }},
		{"admin", "admin.listen", "`address` of the status page, metrics and health", func(c *Config) any { return &c.Admin.Listen }},
		{"namespace", "namespace", "namespace whose models are served", func(c *Config) any { return &c.Namespace }},
		{"log-level", "log.level", "debug, info, warn or error", func(c *Config) any { return &c.Log.Level }},
		{"log-format", "log.format", "text or json", func(c *Config) any { return &c.Log.Format }},
		{"trace-endpoint", "trace.endpoint", "OTLP gRPC collector as host:port; empty: no spans", func(c *Config) any { return &c.Trace.Endpoint }},
		{"discovery-cache", "discovery.cache", "`file` that keeps the last set of workers from etcd, for a start while etcd cannot be reached (discovery.cache)", func(c *Config) any { return &c.Discovery.Cache }},
		{"discovery-networks", "discovery.networks", "`networks`, separated by commas, in which workers from etcd and Kubernetes may be (discovery.networks)", func(c *Config) any { return &c.Discovery.Networks }},
		{"leg-advertise", "leg.advertise", "`address` at which other replicas reach this one (leg.advertise)", func(c *Config) any { return &c.Leg.Advertise }},
		{"leg-replicas", "leg.replicas", "`addresses` of the other replicas, separated by commas; a name stands for all that it resolves to (leg.replicas)", func(c *Config) any { return &c.Leg.Replicas }},
		{"enforce-disagg", "enforce_disagg", "refuse what cannot be served by separate prefill and decode workers", func(c *Config) any { return &c.EnforceDisagg }},
	}
}

// etcdSettings are the flags that serve, check and register share.
func etcdSettings() []setting[sources.EtcdConfig] {
	return []setting[sources.EtcdConfig]{
		{"etcd-endpoints", "discovery.etcd.endpoints", "etcd's `addresses`, separated by commas: host:port, http://host:port or https://host:port", func(c *sources.EtcdConfig) any { return &c.Endpoints }},
		{"etcd-prefix", "discovery.etcd.prefix", "`prefix` of the workers' keys", func(c *sources.EtcdConfig) any { return &c.Prefix }},
		{"etcd-user", "discovery.etcd.username", "user `name`, if etcd requires one", func(c *sources.EtcdConfig) any { return &c.Username }},
		{"etcd-password-file", "discovery.etcd.password_file", "`file` that holds the user's password", func(c *sources.EtcdConfig) any { return &c.PasswordFile }},
		{"etcd-cacert", "discovery.etcd.ca", "`file` of the certificate authority that signs etcd's certificates (PEM)", func(c *sources.EtcdConfig) any { return &c.CA }},
		{"etcd-cert", "discovery.etcd.cert", "`file` of the certificate to show to etcd (PEM)", func(c *sources.EtcdConfig) any { return &c.Cert }},
		{"etcd-key", "discovery.etcd.key", "`file` of that certificate's key (PEM)", func(c *sources.EtcdConfig) any { return &c.Key }},
		{"etcd-server-name", "discovery.etcd.server_name", "`name` that etcd's certificates must be for", func(c *sources.EtcdConfig) any { return &c.ServerName }},
	}
}

// list is the value of a flag that is a list.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(s string) error {
	*l = splitList(s)
	return nil
}

func splitList(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if part != "" {
			out = append(out, part)
		}
	}
	return out
}
