package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// DefaultGroup is the API group of inference pools, and OldGroup the one that they had
// before.
const (
	DefaultGroup = "inference.networking.k8s.io"
	OldGroup     = "inference.networking.x-k8s.io"
)

// Config configures a [Source]. Either Pool is set, or Selector and Ports are.
type Config struct {
	Client *Client // required
	// Namespace of the pool and its pods. Required.
	Namespace string
	// Pool is the name of the InferencePool, and Group its API group. Default group:
	// DefaultGroup.
	Pool, Group string
	// Selector has the labels of the pods in place of a pool, and Ports the ports at which
	// they serve: port i is rank i of the pod's engine. At most MaxPorts.
	Selector map[string]string
	Ports    []uint16
	// PrefillSelector has the labels of pods outside of the pool that prefill, and
	// PrefillPorts their ports. Default: no such pods, and the pool's ports.
	PrefillSelector map[string]string
	PrefillPorts    []uint16
	// Rules say the roles of pods. Default: DefaultRules.
	Rules []Rule
	// KVGroupLabel is the label whose value is a pod's worker.KVGroup, unless an annotation
	// gives it. Default: none.
	KVGroupLabel string
	// Workers is the namespace of the workers, in Baton's sense: worker.Worker.Namespace.
	Workers string
	// Presence is called when it is first known whether the pool exists, and when that
	// changes, by the goroutine of Run. why says why there is no pool. Nil: not called.
	Presence func(exists bool, why string)
	// Notice is called at most once, with something that an operator should know of the
	// cluster, from a goroutine of its own. Nil: not called.
	Notice func(text string)
	// Pace says how the apiserver is asked.
	Pace Pace
}

// Validate returns every fault of c, joined, or nil.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.Namespace == "" {
		bad("namespace: expected the pool's")
	}
	switch {
	case c.Pool != "" && (len(c.Selector) > 0 || len(c.Ports) > 0):
		bad("expected a pool, or a selector with ports, not both")
	case c.Pool == "" && len(c.Selector) == 0:
		bad("expected the name of a pool, or a selector")
	case c.Pool == "" && len(c.Ports) == 0:
		bad("selector: expected ports, too")
	}
	if c.Group != "" && c.Group != DefaultGroup && c.Group != OldGroup {
		bad("group %.60q: expected %s or %s", c.Group, DefaultGroup, OldGroup)
	}
	if len(c.PrefillPorts) > 0 && len(c.PrefillSelector) == 0 {
		bad("prefill ports: expected a prefill selector, too")
	}
	if p := c.Pace; min(p.Least, p.Most, p.Answer, p.Silence, time.Duration(p.Page)) < 0 {
		bad("pace %+v: expected numbers above 0", p)
	}
	errs = append(errs, checkPorts(c.Ports), checkPorts(c.PrefillPorts), CheckLabels(c.Selector), CheckLabels(c.PrefillSelector))
	for _, r := range c.Rules {
		errs = append(errs, r.Validate())
	}
	if c.KVGroupLabel != "" {
		errs = append(errs, CheckLabels(map[string]string{c.KVGroupLabel: ""}))
	}
	return discovery.Faults("kubernetes", errs...)
}

// checkPorts returns the faults of a list of ports, joined, or nil.
func checkPorts(ports []uint16) error {
	var errs []error
	if len(ports) > MaxPorts {
		errs = append(errs, fmt.Errorf("%d ports: expected at most %d", len(ports), MaxPorts))
	}
	for i, p := range ports {
		if p == 0 || slices.Contains(ports[:i], p) {
			errs = append(errs, fmt.Errorf("port %d: expected ports from 1 to 65535, none twice", p))
		}
	}
	return errors.Join(errs...)
}

// CheckLabels returns a fault of the labels of a selector, or nil.
func CheckLabels(labels map[string]string) error {
	var errs []error
	for k, v := range labels {
		for _, why := range validation.IsQualifiedName(k) {
			errs = append(errs, fmt.Errorf("label %.60q: %s", k, why))
		}
		for _, why := range validation.IsValidLabelValue(v) {
			errs = append(errs, fmt.Errorf("label %s: value %.60q: %s", k, v, why))
		}
	}
	return errors.Join(errs...)
}

// ParseSelector reads labels as "name=value,name=value". No other operator is known.
func ParseSelector(s string) (map[string]string, error) {
	out := make(map[string]string)
	for part := range strings.SplitSeq(s, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(part), "=")
		v = strings.TrimPrefix(v, "=") // "==" is the same
		k = strings.TrimSpace(k)
		if !ok || k == "" || strings.HasSuffix(k, "!") {
			return nil, fmt.Errorf("selector %.100q: expected name=value, separated by commas", s)
		}
		out[k] = strings.TrimSpace(v)
	}
	return out, CheckLabels(out)
}

// Ref names what is read: "namespace/pool", or "namespace/selector".
func (c *Config) Ref() string {
	if c.Pool == "" {
		return c.Namespace + "/" + SelectorText(c.Selector)
	}
	return c.Namespace + "/" + c.Pool
}

// Source follows a pool and its pods. It implements [discovery.Source]. Run must not be
// called again before it has returned.
type Source struct {
	cfg Config // set at construction, read-only

	// Owned by the goroutine of Run, and kept between Runs.
	m        *machine
	presence struct {
		known, exists bool
		why           string
	}
	noticed bool // the cluster was looked at for Notice
}

var _ discovery.Source = (*Source)(nil)

// New returns a source.
func New(c Config) (*Source, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Group = cmp.Or(c.Group, DefaultGroup)
	if len(c.Rules) == 0 {
		c.Rules = DefaultRules()
	}
	c.Pace = c.Pace.withDefaults()
	var fixed *Pool
	if c.Pool == "" {
		fixed = &Pool{Namespace: c.Namespace, Name: SelectorText(c.Selector), Selector: c.Selector, Ports: c.Ports}
	}
	t := terms{rules: c.Rules, kvGroupLabel: c.KVGroupLabel, namespace: c.Workers, prefillPorts: c.PrefillPorts}
	return &Source{cfg: c, m: newMachine(c.Ref(), fixed, c.PrefillSelector, t)}, nil
}

// tidy is how often a set is looked at in which workers leave by the time alone.
const tidy = 30 * time.Second

// Run follows the pool until ctx ends. It then returns nil. It returns an error only if
// the sink refuses an event.
func (s *Source) Run(ctx context.Context, sink discovery.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	s.m.restart()
	inbox := make(chan input, 256)
	running := [resources]following{}
	tell := func(in input) {
		select {
		case inbox <- in:
		case <-ctx.Done():
		}
	}
	if s.cfg.Notice != nil && !s.noticed {
		s.noticed = true
		wg.Go(func() { s.notice(ctx) })
	}
	ticks := time.NewTicker(tidy)
	defer ticks.Stop()
	if !s.m.terms.standalone {
		wg.Go(func() { s.follower(pools, query{}, tell).run(ctx) })
	}
	for {
		for of, q := range s.m.queries() {
			if r := &running[of]; q != r.query { //nolint:gosec // few
				r.change(ctx, q, &wg, func(ctx context.Context) { s.follower(resource(of), q, tell).run(ctx) })
			}
		}
		if err := s.flush(sink); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case in := <-inbox:
			s.m.take(in)
			s.drain(inbox)
		case <-ticks.C:
			if s.m.lingers() {
				s.m.take(tick{})
			}
		}
	}
}

// notice tells which resources of the cluster are not read.
func (s *Source) notice(ctx context.Context) {
	kinds := s.cfg.Client.unread(ctx)
	if len(kinds) > 0 {
		s.cfg.Notice("the cluster has resources that are not read here: " + strings.Join(kinds, ", "))
	}
}

// drain takes what waits: many changes at once are one event for the sink.
func (s *Source) drain(inbox <-chan input) {
	for {
		select {
		case in := <-inbox:
			s.m.take(in)
		default:
			return
		}
	}
}

// flush tells the sink and Presence what is new. That there is no pool is told before its
// workers leave, and that there is one after its workers have come: in between, nobody is
// sent here.
func (s *Source) flush(sink discovery.Sink) error {
	exists, _, known := s.m.presence()
	if known && !exists {
		s.tellPresence()
	}
	for _, ev := range s.m.events(time.Now()) {
		if err := sink.Send(ev); err != nil {
			return err
		}
	}
	if known && exists {
		s.tellPresence()
	}
	return nil
}

func (s *Source) tellPresence() {
	exists, why, _ := s.m.presence()
	p := &s.presence
	if p.known && p.exists == exists && p.why == why {
		return
	}
	p.known, p.exists, p.why = true, exists, why
	if s.cfg.Presence != nil {
		s.cfg.Presence(exists, why)
	}
}

// following is a follower that runs.
type following struct {
	query  query
	cancel context.CancelFunc
}

// change ends the follower and starts the one of another query, if there is one.
func (f *following) change(ctx context.Context, q query, wg *sync.WaitGroup, run func(ctx context.Context)) {
	if f.cancel != nil {
		f.cancel()
		f.cancel = nil
	}
	f.query = q
	if q.selector == "" {
		return
	}
	ctx, f.cancel = context.WithCancel(ctx)
	wg.Go(func() { run(ctx) })
}

// follower returns a follower of a resource.
func (s *Source) follower(of resource, by query, tell func(input)) *follower {
	f := &follower{of: of, by: by, pace: s.cfg.Pace, tell: tell}
	what := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	if of == pools {
		what = schema.GroupVersionResource{Group: s.cfg.Group, Version: "v1", Resource: "inferencepools"}
		if s.cfg.Group == OldGroup {
			what.Version = "v1alpha2"
		}
		f.fields = metav1.ObjectNameField + "=" + s.cfg.Pool
	}
	f.resource = s.cfg.Client.dynamic.Resource(what).Namespace(s.cfg.Namespace)
	return f
}

// Roles lists what a rule's role may be called.
func Roles() []string {
	return []string{worker.Prefill.String(), worker.Decode.String(), worker.Aggregated.String(), "none"}
}
