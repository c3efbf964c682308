package sources

import (
	"errors"
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

const etcdKey = "discovery.etcd.endpoints (--etcd-endpoints)"

func ofEtcd(d *Config) bool { return len(d.Etcd.Endpoints) > 0 }

// checkEtcd returns the faults of the settings of etcd, and of Dynamo's layout in it.
func checkEtcd(d *Config) (errs []error) {
	e := &d.Etcd
	bad := func(text string) { errs = append(errs, errors.New(text)) }
	for _, f := range []struct {
		key string
		set bool
	}{
		{"discovery.etcd.username (--etcd-user)", e.Username != ""}, {"discovery.etcd.ca (--etcd-cacert)", e.CA != ""},
		{"discovery.etcd.cert (--etcd-cert)", e.Cert != ""}, {"discovery.etcd.key (--etcd-key)", e.Key != ""},
		{"discovery.etcd.server_name (--etcd-server-name)", e.ServerName != ""},
		{"discovery.etcd.password_file (--etcd-password-file)", e.PasswordFile != ""}, {"discovery.dynamo", d.Dynamo},
	} {
		if f.set && !ofEtcd(d) {
			bad(f.key + ": expected " + etcdKey + ", too")
		}
	}
	if (e.Username == "") != (e.PasswordFile == "") {
		bad("discovery.etcd: expected both username and password_file, or neither")
	}
	if (e.Cert == "") != (e.Key == "") {
		bad("discovery.etcd: expected both cert and key, or neither")
	}
	return errs
}

// Client converts to the settings of an etcd client.
func (c EtcdConfig) Client() (etcd.ClientConfig, error) {
	out := etcd.ClientConfig{
		Endpoints: c.Endpoints, Username: c.Username, PasswordFile: c.PasswordFile,
		CA: c.CA, Cert: c.Cert, Key: c.Key, ServerName: c.ServerName,
	}
	if c.PasswordFile != "" { // reported at the start, not when etcd first asks for the password
		if _, err := os.ReadFile(c.PasswordFile); err != nil {
			return out, fmt.Errorf("discovery.etcd.password_file (--etcd-password-file) %q: %w", c.PasswordFile, Reason(err))
		}
	}
	if err := out.Validate(); err != nil {
		return out, fmt.Errorf("discovery.etcd (--etcd-endpoints): %w", err)
	}
	return out, nil
}

// Reason returns err without the file's name, which the fault already has.
func Reason(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// etcdFiles reads the files that the settings name.
func etcdFiles(d *Config) error {
	_, err := d.Etcd.Client()
	return err
}

// Vouches reports whether etcd, as far as can be known here, knows who writes a worker: it
// asks this plugin who it is.
func (c *EtcdConfig) Vouches() bool { return c.Username != "" || c.Cert != "" }

func etcdShown(d *Config) []string {
	return []string{"etcd (" + strings.Join(d.Etcd.Endpoints, ", ") + ")"}
}

// etcd is the client of both layouts.
func (o *opening) etcd() (*etcd.Client, error) {
	if o.etcdClient != nil {
		return o.etcdClient, nil
	}
	conf, err := o.d.Etcd.Client()
	if err != nil {
		return nil, err
	}
	o.etcdClient, err = etcd.Dial(conf)
	if err == nil {
		o.closers = append(o.closers, o.etcdClient)
	}
	return o.etcdClient, err
}

func openEtcd(o *opening) error {
	client, err := o.etcd()
	if err != nil {
		return err
	}
	e := &o.d.Etcd
	source, err := etcd.New(client, etcd.Config{Prefix: e.Prefix, Logger: o.Log})
	if err != nil {
		return err
	}
	of := origin{name: "etcd " + strings.Join(e.Endpoints, ","), identity: "etcd " + e.Prefix, vouches: e.Vouches(), leased: true}
	return o.add(of, o.guarded(source, false))
}

func openDynamo(o *opening) error {
	client, err := o.etcd()
	if err != nil {
		return err
	}
	source, err := etcd.NewDynamo(client, etcd.DynamoConfig{Logger: o.Log})
	if err != nil {
		return err
	}
	return o.add(origin{name: "dynamo", suffix: ".dynamo", identity: "dynamo", vouches: o.d.Etcd.Vouches()}, source)
}
