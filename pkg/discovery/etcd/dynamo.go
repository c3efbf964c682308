package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// DynamoConfig is what a source of Dynamo's layout is made of.
type DynamoConfig struct {
	// Instances and Cards are the prefixes of the two kinds of key that make a
	// worker. Defaults: v1/instances and v1/mdc. Both are read in one range, so a
	// user with a password needs read permission from the first to the end of
	// the last.
	Instances, Cards string

	// As in Config, with the same defaults.
	Progress, Silence, ListTimeout, Grace, Return time.Duration
	PageSize                                      int

	// Logger is told when etcd has lost its data. Nil means silence.
	Logger *slog.Logger
}

func (c DynamoConfig) withDefaults() DynamoConfig {
	if c.Instances == "" {
		c.Instances = "v1/instances"
	}
	if c.Cards == "" {
		c.Cards = "v1/mdc"
	}
	return c
}

// plain returns what c shares with the other layout.
func (c DynamoConfig) plain() Config {
	return Config{
		Progress: c.Progress, Silence: c.Silence, ListTimeout: c.ListTimeout, Grace: c.Grace, Return: c.Return, PageSize: c.PageSize, Logger: c.Logger,
	}.withDefaults()
}

// Validate returns every fault of c, joined, or nil.
func (c DynamoConfig) Validate() error {
	c = c.withDefaults()
	errs := c.plain().paceFaults()
	for _, p := range []string{c.Instances, c.Cards} {
		if err := checkPrefix(p); err != nil {
			errs = append(errs, err)
		}
	}
	if i, m := c.Instances+"/", c.Cards+"/"; strings.HasPrefix(i, m) || strings.HasPrefix(m, i) {
		errs = append(errs, fmt.Errorf("prefixes %q and %q: expected neither within the other", c.Instances, c.Cards))
	}
	return joined(errs)
}

// DynamoSource reads workers that Dynamo has registered. It implements
// [discovery.Source]. Run must not be called again before it has returned.
//
// A worker is an instance key together with the model card of the same
// namespace, component, endpoint and id; without a card an instance is not
// (yet) a worker, and an instance that never gets one is something else. Cards
// with a suffix are LoRA adapters, whose names the worker answers to as well.
// All workers are Fronted: they speak Dynamo's request plane and no HTTP.
type DynamoSource struct{ *follower }

var _ discovery.Source = (*DynamoSource)(nil)

// NewDynamo returns a source. The client stays the caller's and must live
// longer than Run.
func NewDynamo(client *clientv3.Client, cfg DynamoConfig) (*DynamoSource, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("etcd: dynamo: expected a client")
	}
	c := cfg.withDefaults()
	instances, cards := c.Instances+"/", c.Cards+"/"
	// One range, and so one listing and one watch, covers both kinds: the set is
	// then known at one revision. What else lies between is passed over.
	j := &joiner{instances: instances, cards: cards}
	return &DynamoSource{newFollower(storeOf(client, c.plain()), len(client.Endpoints()), c.plain(), min(instances, cards), clientv3.GetPrefixRangeEnd(max(instances, cards)), j)}, nil
}
