package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	dry     bool                                             // nothing will be reached: what only a pod has may be missing

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
		asked, err := s.asking(f)
		if err != nil {
			return err
		}
		s.out = append(s.out, discovery.Named{Name: "file " + d.File, Source: asked})
	}
	if len(d.Etcd.Endpoints) > 0 {
		if err := s.etcd(); err != nil {
			return err
		}
	}
	s.pools.all, s.pools.beside = len(d.Kubernetes), len(s.out) > 0
	return s.kubernetes()
}

// add adds a source whose store may be away at a start: its last set is kept, if it is to
// be.
func (s *sourcing) add(name, suffix, identity string, source discovery.Source) error {
	if s.d.Cache != "" {
		kept, err := cache.New(cache.Config{Inner: source, Path: s.d.Cache + suffix, Identity: identity, MaxAge: s.d.CacheMaxAge, Logger: s.log})
		if err != nil {
			return err
		}
		source = kept
	}
	s.out = append(s.out, discovery.Named{Name: name, Source: source})
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
	if err := s.add("etcd "+strings.Join(d.Etcd.Endpoints, ","), "", "etcd "+d.Etcd.Prefix, ours); err != nil || !d.Dynamo {
		return err
	}
	theirs, err := etcd.NewDynamo(client, etcd.DynamoConfig{Logger: s.log})
	if err != nil {
		return err
	}
	return s.add("dynamo", ".dynamo", "dynamo", theirs)
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
		asked, err := s.asking(source)
		if err != nil {
			return err
		}
		if err := s.add("kubernetes "+ref, ".kubernetes-"+strings.NewReplacer("/", "-", ",", "-").Replace(ref), "kubernetes "+ref, asked); err != nil {
			return err
		}
	}
	return nil
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
