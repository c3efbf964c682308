package config

import (
	"flag"
	"strings"

	"github.com/seed-60ae5743/baton/internal/sources"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
)

// etcdFlags adds the flags that serve, check and register share. The function that it
// returns copies the given ones to c.
func etcdFlags(fs *flag.FlagSet) func(c *sources.EtcdConfig) {
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
	return func(c *sources.EtcdConfig) {
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
