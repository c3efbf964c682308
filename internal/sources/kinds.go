package sources

import (
	"errors"
	"io"
	"log/slog"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/cache"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
)

// kind is a kind of sources. Functions that are nil have nothing to say.
type kind struct {
	name  string
	key   string                   // the setting that makes it a source, and its flag; "" if that follows from others
	away  bool                     // its store may be away at a start, so that discovery.cache keeps its set
	given func(d *Config) bool     // whether the configuration names a source of this kind
	check func(d *Config) []error  // the faults of its settings, also if it is not given
	files func(d *Config) error    // reads the files that its settings name
	shown func(d *Config) []string // where its workers are, for `check`, which does not reach them
	open  func(o *opening) error   // adds its sources
}

// kinds are all kinds of sources, in the order of precedence: if two sources name the same
// worker, the entry of the earlier one is used.
var kinds = []kind{
	{name: "file", key: "discovery.file (--workers)", given: func(d *Config) bool { return d.File != "" }, open: openFile},
	{name: "etcd", key: etcdKey, away: true, given: ofEtcd, check: checkEtcd, files: etcdFiles, shown: etcdShown, open: openEtcd},
	{name: "dynamo", away: true, given: func(d *Config) bool { return d.Dynamo && ofEtcd(d) }, open: openDynamo},
	{name: "kubernetes", key: "discovery.kubernetes", away: true, given: func(d *Config) bool { return len(d.Kubernetes) > 0 }, check: checkPools, shown: poolsShown, open: openPools},
}

// World is what the process has for its sources.
type World struct {
	Log       *slog.Logger
	Agent     string // the name of the process at an apiserver
	Namespace string // of workers that are served
	Allowed   *discovery.Addresses
	Dry       bool // nothing will be reached: what only a pod has may be missing

	Asking func(discovery.Source) (discovery.Source, error) // wraps a source whose workers are asked for what it leaves open
	// Expires wraps a source whose records have leases. before is discovery.Expiry.Before.
	Expires  func(inner discovery.Source, before func() ([]discovery.Entry, bool)) discovery.Source
	Presence func(ref string, exists bool, why string) // is told whether a pool is there
}

// Opened are sources that are ready to run. Closers are to be closed after they have ended.
type Opened struct {
	Sources []discovery.Named
	Closers []io.Closer
}

// Open makes the sources that c names, in the order of precedence. After an error nothing is
// open.
func (c *Config) Open(w World) (Opened, error) {
	o := &opening{World: w, d: c}
	for _, k := range kinds {
		if !k.given(c) {
			continue
		}
		if err := k.open(o); err != nil {
			errs := []error{err}
			for _, open := range o.closers {
				errs = append(errs, open.Close())
			}
			return Opened{}, errors.Join(errs...)
		}
	}
	return Opened{o.out, o.closers}, nil
}

// opening is what openers share. Owned by Open.
type opening struct {
	World
	d          *Config
	etcdClient *etcd.Client
	out        []discovery.Named
	closers    []io.Closer
}

// guarded refuses what is at addresses where no worker of the source may be. A source whose
// workers are asked is guarded within, so that only such workers are asked, and around,
// since an engine tells addresses, too.
func (o *opening) guarded(source discovery.Source, operator bool) *discovery.Guard {
	return &discovery.Guard{Inner: source, Addresses: o.Allowed, Operator: operator}
}

// origin describes a source whose store may be away at a start.
type origin struct {
	name     string
	suffix   string // of the file that keeps its last set
	identity string // of what is read, for that file
	vouches  bool   // it knows who has written a worker
	leased   bool   // its records have leases
}

// add adds a source. Its last set is kept, if it is to be.
func (o *opening) add(of origin, source discovery.Source) error {
	var kept *cache.Source
	if of.leased {
		source = o.Expires(source, func() ([]discovery.Entry, bool) { return o.before(kept) })
	}
	if o.d.Cache != "" {
		var err error
		kept, err = cache.New(cache.Config{Inner: source, Path: o.d.Cache + of.suffix, Identity: of.identity, Logger: o.Log})
		if err != nil {
			return err
		}
		source = kept
	}
	g := o.guarded(source, false)
	g.Unvouched = !of.vouches
	o.out = append(o.out, discovery.Named{Name: of.name, Source: g})
	return nil
}

// before returns what was kept of a source before the start. Where workers may be can have
// changed since.
func (o *opening) before(kept *cache.Source) (entries []discovery.Entry, served bool) {
	if kept == nil {
		return nil, false
	}
	entries, served = kept.Before()
	refused := func(e discovery.Entry) bool { return o.Allowed.Refuse(e.Worker, false) != "" }
	return slices.DeleteFunc(entries, refused), served
}
