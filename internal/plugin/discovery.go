package plugin

import (
	"errors"
	"io"
	"log/slog"
	"strings"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/cache"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
)

// sources makes the sources of the view, in order of precedence. The caller must close
// the closers after the view has ended.
func sources(d *config.DiscoveryConfig, log *slog.Logger) (out []discovery.Named, closers []io.Closer, err error) {
	defer func() {
		if err != nil {
			_ = closeAll(closers)
		}
	}()
	if d.File != "" {
		s, err := file.New(file.Config{Path: d.File, Poll: d.Poll, Logger: log})
		if err != nil {
			return nil, nil, err
		}
		out = append(out, discovery.Named{Name: "file " + d.File, Source: s})
	}
	if len(d.Etcd.Endpoints) == 0 {
		return out, nil, nil
	}
	conf, err := d.Etcd.Client()
	if err != nil {
		return nil, nil, err
	}
	client, err := etcd.Dial(conf)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, client)
	ours, err := etcd.New(client, etcd.Config{Prefix: d.Etcd.Prefix, Logger: log})
	if err != nil {
		return nil, closers, err
	}
	add := func(name, suffix, identity string, s discovery.Source) error {
		if d.Cache != "" {
			kept, err := cache.New(cache.Config{Inner: s, Path: d.Cache + suffix, Identity: identity, MaxAge: d.CacheMaxAge, Logger: log})
			if err != nil {
				return err
			}
			s = kept
		}
		out = append(out, discovery.Named{Name: name, Source: s})
		return nil
	}
	if err := add("etcd "+strings.Join(d.Etcd.Endpoints, ","), "", "etcd "+d.Etcd.Prefix, ours); err != nil {
		return nil, closers, err
	}
	if d.Dynamo {
		theirs, err := etcd.NewDynamo(client, etcd.DynamoConfig{Logger: log})
		if err != nil {
			return nil, closers, err
		}
		if err := add("dynamo", ".dynamo", "dynamo", theirs); err != nil {
			return nil, closers, err
		}
	}
	return out, closers, nil
}

func closeAll(closers []io.Closer) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
