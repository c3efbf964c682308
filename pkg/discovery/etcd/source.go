package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxValue is the longest value of a key that is read as a worker.
const maxValue = 64 << 10

// Config configures a [Source].
type Config struct {
	// Prefix of the keys. Default DefaultPrefix.
	Prefix string

	// Progress is how often etcd is asked whether changes were missed. Default 1 s. A
	// higher value saves small reads.
	Progress time.Duration

	// Silence is how long the set counts as fresh without a confirmation by etcd.
	// Default 3 s. With a higher value shorter outages are not shown, and each is shown
	// later.
	Silence time.Duration

	// ListTimeout is the most time for one listing. Default 3 s.
	ListTimeout time.Duration

	// Grace is how long workers have time to register again after etcd lost its data.
	// Those that have not are then dropped. Default 15 s. With a higher value workers
	// that were stopped meanwhile stay known for longer.
	Grace time.Duration

	// Return is how long workers whose leases ended while etcd was away or hung have
	// time to register again. Those that have not are then dropped. Default 3 s. With a
	// higher value workers that were stopped meanwhile stay known for longer; below 2
	// s, healthy workers are dropped for a moment.
	Return time.Duration

	// PageSize is how many keys are listed at a time. Default 500.
	PageSize int

	// Logger is told when etcd has lost its data. Nil means no log.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.Progress = cmp.Or(c.Progress, time.Second)
	c.Silence = cmp.Or(c.Silence, 3*time.Second)
	c.ListTimeout = cmp.Or(c.ListTimeout, 3*time.Second)
	c.Grace = cmp.Or(c.Grace, 15*time.Second)
	c.Return = cmp.Or(c.Return, 3*time.Second)
	c.PageSize = cmp.Or(c.PageSize, 500)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := c.paceFaults()
	if err := checkPrefix(c.Prefix); err != nil {
		errs = append(errs, err)
	}
	return discovery.Faults("etcd", errs...)
}

func (c Config) paceFaults() []error {
	var errs []error
	if c.Progress < 0 || c.Silence < 2*c.Progress {
		errs = append(errs, fmt.Errorf("progress %s, silence %s: expected durations above 0, silence at least twice progress", c.Progress, c.Silence))
	}
	if c.ListTimeout < 0 || c.Grace < 0 || c.Return < 0 {
		errs = append(errs, fmt.Errorf("list timeout %s, grace %s, return %s: expected durations above 0", c.ListTimeout, c.Grace, c.Return))
	}
	if c.PageSize < 0 {
		errs = append(errs, fmt.Errorf("page size %d: expected a number above 0", c.PageSize))
	}
	return errs
}

// Source reads workers in Baton's own layout. It implements [discovery.Source]. Run
// must not be called again before it has returned.
type Source struct{ *follower }

var _ discovery.Source = (*Source)(nil)

// New returns a source. The caller closes the client, after Run has returned.
func New(client *clientv3.Client, cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("etcd: source: expected a client")
	}
	cfg = cfg.withDefaults()
	return newSource(storeOf(client, cfg), len(client.Endpoints()), cfg), nil
}

// maxTries is how many members are asked at most in the time for one answer.
const maxTries = 3

// storeOf returns the client as a store. It divides the time for a read among the
// members.
func storeOf(client *clientv3.Client, c Config) clientStore {
	s := clientStore{Client: client}
	if n := min(len(client.Endpoints()), maxTries); n > 1 {
		s.try = c.ListTimeout / time.Duration(n)
	}
	return s
}

func newSource(s store, members int, c Config) *Source {
	dir := folder(c.Prefix)
	return &Source{newFollower(s, members, c, dir, clientv3.GetPrefixRangeEnd(dir), plain{dir})}
}

// newFollower uses everything in c except the prefix.
func newFollower(s store, members int, c Config, from, end string, r reader) *follower {
	return &follower{
		store: s, from: from, end: end, reader: r, logger: c.Logger,
		pace: pace{
			progress: c.Progress, silence: c.Silence, listTimeout: c.ListTimeout, grace: c.Grace, comeback: c.Return,
			pageSize: int64(c.PageSize), tries: min(members, maxTries),
		},
	}
}

// mostLooked is how many workers Workers reads.
const mostLooked = 1000

// Workers returns the workers under the prefix that can be read, of very many only some.
func Workers(ctx context.Context, client *clientv3.Client, prefix string) ([]*worker.Worker, error) {
	p := plain{folder(cmp.Or(prefix, DefaultPrefix))}
	res, err := client.Get(ctx, p.dir, clientv3.WithPrefix(), clientv3.WithLimit(mostLooked), clientv3.WithSerializable())
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	var ws []*worker.Worker
	for _, kv := range res.Kvs {
		if w, err := p.worker(kv); err == nil {
			ws = append(ws, w)
		}
	}
	return ws, nil
}

// plain reads Baton's own layout, in which each key is a worker.
type plain struct{ dir string }

func (p plain) list(kvs []*mvccpb.KeyValue) []discovery.Entry {
	es := make([]discovery.Entry, 0, len(kvs))
	for _, kv := range kvs {
		es = append(es, p.entry(kv))
	}
	return es
}

func (p plain) change(events []*clientv3.Event) []discovery.Op {
	ops := make([]discovery.Op, 0, len(events))
	for _, ev := range events {
		if ev.Type != clientv3.EventTypeDelete {
			ops = append(ops, discovery.Put(p.entry(ev.Kv)))
			continue
		}
		var version uint64
		if ev.PrevKv != nil {
			version = uint64(ev.PrevKv.Version)
		}
		ops = append(ops, discovery.Delete(string(ev.Kv.Key), version))
	}
	return ops
}

func (p plain) entry(kv *mvccpb.KeyValue) discovery.Entry {
	e := discovery.Entry{Key: string(kv.Key), Revision: uint64(kv.ModRevision), Version: uint64(kv.Version), Lease: leaseOf(kv)}
	w, err := p.worker(kv)
	if err != nil {
		e.Fault = err.Error()
		return e
	}
	e.Worker = w
	return e
}

func (p plain) worker(kv *mvccpb.KeyValue) (*worker.Worker, error) {
	id, err := worker.ParseID(strings.TrimPrefix(string(kv.Key), p.dir))
	if err != nil {
		return nil, fmt.Errorf("key %q: expected %s and an instance id", kv.Key, p.dir)
	}
	if p.dir+id.String() != string(kv.Key) {
		return nil, fmt.Errorf("key %q: expected %s%s", kv.Key, p.dir, id)
	}
	if len(kv.Value) > maxValue {
		return nil, fmt.Errorf("value of %d bytes; expected at most %d", len(kv.Value), maxValue)
	}
	w, err := record.ParseKnown("value", kv.Value)
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if w.ID != id {
		return nil, fmt.Errorf("id %d in the value; expected that of the key, %d", w.ID, id)
	}
	return w, nil
}
