package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/cache"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
)

// sourcing makes the sources of the view, in order of precedence.
type sourcing struct {
	d       *config.DiscoveryConfig
	workers string // the namespace of workers that are served
	log     *slog.Logger
	pools   *pools
	asking  func(discovery.Source) (discovery.Source, error) // wraps a source whose workers are asked for what it leaves open
	expires func(discovery.Source) discovery.Source          // wraps a source whose records have leases
	allowed *discovery.Addresses
	dry     bool // nothing will be reached: what only a pod has may be missing

	out     []discovery.Named
	closers []io.Closer // to be closed after the view has ended, also after an error
}

func (s *sourcing) all() error {
	d := s.d
	if d.File != "" {
		f, err := file.New(file.Config{Path: d.File, Poll: d.Poll, Logger: s.log})
		if err != nil {
			return err
		}
		asked, err := s.asking(s.guarded(f, true))
		if err != nil {
			return err
		}
		s.out = append(s.out, discovery.Named{Name: "file " + d.File, Source: s.guarded(asked, true)})
	}
	if len(d.Etcd.Endpoints) > 0 {
		if err := s.etcd(); err != nil {
			return err
		}
	}
	s.pools.all, s.pools.beside = len(d.Kubernetes), len(s.out) > 0
	return s.kubernetes()
}

// guarded refuses what is at addresses where no worker of the source may be. A source whose
// workers are asked is guarded within, so that only such workers are asked, and around,
// since an engine tells addresses, too.
func (s *sourcing) guarded(source discovery.Source, operator bool) *discovery.Guard {
	return &discovery.Guard{Inner: source, Addresses: s.allowed, Operator: operator}
}

// add adds a source whose store may be away at a start: its last set is kept, if it is to
// be.
func (s *sourcing) add(name, suffix, identity string, source discovery.Source, vouches bool) error {
	if s.d.Cache != "" {
		kept, err := cache.New(cache.Config{Inner: source, Path: s.d.Cache + suffix, Identity: identity, MaxAge: s.d.CacheMaxAge, Logger: s.log})
		if err != nil {
			return err
		}
		source = kept
	}
	g := s.guarded(source, false)
	g.Unvouched = !vouches
	s.out = append(s.out, discovery.Named{Name: name, Source: g})
	return nil
}

func (s *sourcing) etcd() error {
	d := s.d
	conf, err := d.Etcd.Client()
	if err != nil {
		return err
	}
	client, err := etcd.Dial(conf)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, client)
	ours, err := etcd.New(client, etcd.Config{Prefix: d.Etcd.Prefix, Logger: s.log})
	if err != nil {
		return err
	}
	if err := s.add("etcd "+strings.Join(d.Etcd.Endpoints, ","), "", "etcd "+d.Etcd.Prefix, s.expires(s.guarded(ours, false)), d.Etcd.Vouches()); err != nil || !d.Dynamo {
		return err
	}
	theirs, err := etcd.NewDynamo(client, etcd.DynamoConfig{Logger: s.log})
	if err != nil {
		return err
	}
	return s.add("dynamo", ".dynamo", "dynamo", theirs, d.Etcd.Vouches())
}

// kubernetes makes a source for each pool. Pools of one apiserver share a client.
func (s *sourcing) kubernetes() error {
	if len(s.d.Kubernetes) > 0 {
		kubernetes.Quiet()
	}
	clients := make(map[string]*kubernetes.Client)
	notices := make(map[string]func(text string)) // of each cluster one
	for i := range s.d.Kubernetes {
		k := &s.d.Kubernetes[i]
		conf, err := k.Source()
		if err != nil {
			return err
		}
		if clients[k.Kubeconfig] == nil {
			client, err := kubernetes.Dial(kubernetes.ClientConfig{Kubeconfig: k.Kubeconfig, Agent: "baton/" + Version(), Nowhere: s.dry})
			if err != nil {
				return fmt.Errorf("discovery.kubernetes[%d].kubeconfig (--kubeconfig): %w", i, err)
			}
			clients[k.Kubeconfig] = client
			s.closers = append(s.closers, client)
			var once sync.Once
			notices[k.Kubeconfig] = func(text string) { once.Do(func() { s.log.Info(text) }) }
		}
		ref := conf.Ref()
		conf.Client, conf.Workers, conf.Notice = clients[k.Kubeconfig], s.workers, notices[k.Kubeconfig]
		conf.Presence = func(exists bool, why string) { s.pools.note(ref, exists, why) }
		source, err := kubernetes.New(conf)
		if err != nil {
			return fmt.Errorf("discovery.kubernetes[%d]: %w", i, err)
		}
		asked, err := s.asking(s.guarded(source, false))
		if err != nil {
			return err
		}
		if err := s.add("kubernetes "+ref, ".kubernetes-"+strings.NewReplacer("/", "-", ",", "-").Replace(ref), "kubernetes "+ref, asked, true); err != nil {
			return err
		}
	}
	return nil
}

// Allowed says at which addresses workers may be.
func Allowed(c *config.Config) (*discovery.Addresses, error) {
	var here []netip.Addr
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("which addresses this machine has: %w", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				here = append(here, ip.Unmap())
			}
		}
	}
	return c.Addresses(here)
}

// Namespace is the namespace of pools that name none: that of the environment, else that of
// the pod in which the process runs.
func Namespace(environment string) string {
	return cmp.Or(strings.TrimSpace(environment), strings.TrimSpace(kubernetes.NamespaceHere()), "default")
}

func closeAll(closers []io.Closer) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
