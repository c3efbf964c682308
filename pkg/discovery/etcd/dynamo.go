package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// DynamoConfig configures a [DynamoSource].
type DynamoConfig struct {
	// Instances and Cards are the prefixes of the two kinds of key that make a worker.
	// Defaults: v1/instances and v1/mdc. Both are read as one range, so a user with a
	// password needs read permission from the beginning of the first to the end of the
	// last.
	Instances, Cards string

	// See Config. The defaults are the same.
	Progress, Silence, ListTimeout, Grace, Return time.Duration
	PageSize                                      int

	// Logger is told when etcd has lost its data. Nil means no log.
	Logger *slog.Logger
}

func (c DynamoConfig) withDefaults() DynamoConfig {
	c.Instances = cmp.Or(c.Instances, "v1/instances")
	c.Cards = cmp.Or(c.Cards, "v1/mdc")
	return c
}

// plain returns the part of c that both layouts have.
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
	return discovery.Faults("etcd", errs...)
}

// DynamoSource reads workers that Dynamo has registered. It implements
// [discovery.Source]. Run must not be called again before it has returned.
//
// A worker is an instance key and the model card with the same namespace, component,
// endpoint and id. An instance without a card is not a worker, or not yet. A card with
// a suffix is a LoRA adapter, whose name requests may also ask the worker for. All
// workers are Fronted: they speak Dynamo's request plane and no HTTP.
type DynamoSource struct{ *follower }

var _ discovery.Source = (*DynamoSource)(nil)

// NewDynamo returns a source. The caller closes the client, after Run has returned.
func NewDynamo(client *clientv3.Client, cfg DynamoConfig) (*DynamoSource, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("etcd: dynamo: expected a client")
	}
	c := cfg.withDefaults()
	instances, cards := c.Instances+"/", c.Cards+"/"
	// One range, and so one listing and one watch, has both kinds of key, so that the
	// set is known at one revision. Other keys in the range are ignored.
	j := &joiner{instances: instances, cards: cards}
	return &DynamoSource{newFollower(storeOf(client, c.plain()), len(client.Endpoints()), c.plain(), min(instances, cards), clientv3.GetPrefixRangeEnd(max(instances, cards)), j)}, nil
}
