package config

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
)

// EtcdConfig says how to reach etcd, and where the workers are in it.
type EtcdConfig struct {
	Endpoints    []string `yaml:"endpoints"` // default: none, etcd is not used
	Prefix       string   `yaml:"prefix"`    // of the keys in Baton's own layout; default baton/v1
	Username     string   `yaml:"username"`
	PasswordFile string   `yaml:"password_file"`
	CA           string   `yaml:"ca"`          // PEM; verifies the servers
	Cert         string   `yaml:"cert"`        // PEM; shown to the servers
	Key          string   `yaml:"key"`         // PEM
	ServerName   string   `yaml:"server_name"` // the name that the servers' certificates must have; default: the endpoint's host
}

func (d *DiscoveryConfig) validate() error {
	var errs []error
	bad := func(text string) { errs = append(errs, errors.New(text)) }
	e := &d.Etcd
	if d.none() {
		bad("discovery.file (--workers), discovery.etcd.endpoints (--etcd-endpoints) or discovery.kubernetes: expected at least one of them: they list the workers")
	}
	errs = append(errs, d.validateKubernetes()...)
	if _, err := d.networks(); err != nil {
		errs = append(errs, err)
	}
	if d.Cache != "" && len(e.Endpoints) == 0 && len(d.Kubernetes) == 0 {
		bad("discovery.cache (--discovery-cache): expected discovery.etcd.endpoints (--etcd-endpoints) or discovery.kubernetes, too")
	}
	if len(e.Endpoints) == 0 {
		for _, f := range []struct {
			key string
			set bool
		}{
			{"discovery.dynamo", d.Dynamo},
			{"discovery.etcd.username (--etcd-user)", e.Username != ""}, {"discovery.etcd.ca (--etcd-cacert)", e.CA != ""},
			{"discovery.etcd.cert (--etcd-cert)", e.Cert != ""}, {"discovery.etcd.key (--etcd-key)", e.Key != ""},
			{"discovery.etcd.server_name (--etcd-server-name)", e.ServerName != ""},
			{"discovery.etcd.password_file (--etcd-password-file)", e.PasswordFile != ""},
		} {
			if f.set {
				bad(f.key + ": expected discovery.etcd.endpoints (--etcd-endpoints), too")
			}
		}
	}
	if (e.Username == "") != (e.PasswordFile == "") {
		bad("discovery.etcd: expected both username and password_file, or neither")
	}
	if (e.Cert == "") != (e.Key == "") {
		bad("discovery.etcd: expected both cert and key, or neither")
	}
	return errors.Join(errs...)
}

// none reports whether no source of workers is set.
func (d *DiscoveryConfig) none() bool {
	return d.File == "" && len(d.Etcd.Endpoints) == 0 && len(d.Kubernetes) == 0
}

// Client converts to the settings of an etcd client.
func (c EtcdConfig) Client() (etcd.ClientConfig, error) {
	out := etcd.ClientConfig{
		Endpoints: c.Endpoints, Username: c.Username, PasswordFile: c.PasswordFile,
		CA: c.CA, Cert: c.Cert, Key: c.Key, ServerName: c.ServerName,
	}
	if c.PasswordFile != "" { // reported at the start, not when etcd first asks for the password
		if _, err := os.ReadFile(c.PasswordFile); err != nil {
			return out, fmt.Errorf("discovery.etcd.password_file (--etcd-password-file) %q: %w", c.PasswordFile, reason(err))
		}
	}
	if err := out.Validate(); err != nil {
		return out, fmt.Errorf("discovery.etcd (--etcd-endpoints): %w", err)
	}
	return out, nil
}

// etcdFlags adds the flags that serve, check and register share. The function that it
// returns copies the given ones to c.
func etcdFlags(fs *flag.FlagSet) func(c *EtcdConfig) {
	endpoints := fs.String("etcd-endpoints", "", "etcd's `addresses`, separated by commas: host:port, http://host:port or https://host:port")
	texts := map[string]*string{
		"etcd-prefix":        fs.String("etcd-prefix", etcd.DefaultPrefix, "`prefix` of the workers' keys"),
		"etcd-user":          fs.String("etcd-user", "", "user `name`, if etcd requires one"),
		"etcd-password-file": fs.String("etcd-password-file", "", "`file` that holds the user's password"),
		"etcd-cacert":        fs.String("etcd-cacert", "", "`file` of the certificate authority that signs etcd's certificates (PEM)"),
		"etcd-cert":          fs.String("etcd-cert", "", "`file` of the certificate to show to etcd (PEM)"),
		"etcd-key":           fs.String("etcd-key", "", "`file` of that certificate's key (PEM)"),
		"etcd-server-name":   fs.String("etcd-server-name", "", "`name` that etcd's certificates must be for"),
	}
	return func(c *EtcdConfig) {
		to := map[string]*string{
			"etcd-prefix": &c.Prefix, "etcd-user": &c.Username, "etcd-password-file": &c.PasswordFile,
			"etcd-cacert": &c.CA, "etcd-cert": &c.Cert, "etcd-key": &c.Key, "etcd-server-name": &c.ServerName,
		}
		fs.Visit(func(f *flag.Flag) {
			if f.Name == "etcd-endpoints" {
				c.Endpoints = splitList(*endpoints)
			} else if p, ok := to[f.Name]; ok {
				*p = *texts[f.Name]
			}
		})
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
