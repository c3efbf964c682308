package sources

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
)

// Config says where workers are found: in a file, in etcd, in Kubernetes, or in
// several of them. If two name the same worker, the entry of the earlier one is used.
type Config struct {
	File string `yaml:"file"`

	Etcd EtcdConfig `yaml:"etcd"`
	// Dynamo also reads the workers that Dynamo keeps in the same etcd.
	Dynamo bool `yaml:"dynamo"`
	// Networks are those in which workers from etcd and Kubernetes may be: their endpoints,
	// bootstrap hosts and KV events. Default: everywhere but on loopback, which a network of
	// loopback addresses allows.
	Networks []string `yaml:"networks"`
	// Kubernetes lists pools whose pods are workers. Default: none.
	Kubernetes []KubernetesConfig `yaml:"kubernetes"`
	// Cache is a file that keeps the last worker set from etcd or Kubernetes, for a start
	// while the store cannot be reached. Default: none.
	Cache string `yaml:"cache"`
}

// Default is the configuration without a file and flags.
func Default() Config {
	return Config{Etcd: EtcdConfig{Prefix: etcd.DefaultPrefix}}
}

// None reports whether no source of workers is set.
func (c *Config) None() bool {
	return !slices.ContainsFunc(kinds, func(k kind) bool { return k.given(c) })
}

// Needed is the fault of c if no source of workers is set.
func (c *Config) Needed() error {
	if !c.None() {
		return nil
	}
	return fmt.Errorf("%s: expected at least one of them: they list the workers", keys(func(kind) bool { return true }))
}

// Validate returns every other fault of c, joined, or nil.
func (c *Config) Validate() error {
	var errs []error
	for _, k := range kinds {
		if k.check != nil {
			errs = append(errs, k.check(c)...)
		}
	}
	_, err := c.InNetworks()
	errs = append(errs, err)
	if c.Cache != "" && !slices.ContainsFunc(kinds, func(k kind) bool { return k.away && k.given(c) }) {
		errs = append(errs, fmt.Errorf("discovery.cache (--discovery-cache): expected %s, too", keys(func(k kind) bool { return k.away })))
	}
	return errors.Join(errs...)
}

// keys are those of the kinds that are meant, as "a, b or c".
func keys(meant func(kind) bool) string {
	var out []string
	for _, k := range kinds {
		if k.key != "" && meant(k) {
			out = append(out, k.key)
		}
	}
	last := len(out) - 1
	return strings.Join(out[:last], ", ") + " or " + out[last]
}

// ValidateFiles reads the files that c names, as the start does.
func (c *Config) ValidateFiles() error {
	var errs []error
	for _, k := range kinds {
		if k.files != nil && k.given(c) {
			errs = append(errs, k.files(c))
		}
	}
	return errors.Join(errs...)
}

// Elsewhere says of each source that has to be reached where it has its workers.
func (c *Config) Elsewhere() []string {
	var out []string
	for _, k := range kinds {
		if k.shown != nil && k.given(c) {
			out = append(out, k.shown(c)...)
		}
	}
	return out
}

// In sets the namespace of the pools that name none.
func (c *Config) In(namespace string) {
	c.Kubernetes = slices.Clone(c.Kubernetes)
	for i := range c.Kubernetes {
		if k := &c.Kubernetes[i]; k.Namespace == "" {
			k.Namespace = namespace
		}
	}
}

// InNetworks reads discovery.networks.
func (c *Config) InNetworks() (out []netip.Prefix, err error) {
	var errs []error
	for _, text := range c.Networks {
		n, err := netip.ParsePrefix(text)
		if err != nil || n.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("discovery.networks (--discovery-networks) %q: expected a network, such as 10.0.0.0/8 or fd00::/8", text))
			continue
		}
		out = append(out, n.Masked())
	}
	return out, errors.Join(errs...)
}
