package sources

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// KubernetesConfig says which pods are workers: those of an InferencePool, or of a
// selector.
type KubernetesConfig struct {
	// Pool is the name of an InferencePool.
	Pool string `yaml:"pool"`
	// Namespace is that of the pool and its pods. Default: the environment variable
	// NAMESPACE, else that of the pod in which the plugin runs, else default.
	Namespace string `yaml:"namespace"`
	// Group is the API group of the pool. Default inference.networking.k8s.io.
	Group string `yaml:"group"`
	// Selector has the labels of the pods in place of a pool: name=value, separated by
	// commas.
	Selector string `yaml:"selector"`
	// TargetPorts are the ports of the selector's pods; port i is rank i of its engine.
	TargetPorts []int `yaml:"target_ports"`
	// PrefillSelector has the labels of pods outside of the pool that prefill.
	PrefillSelector string `yaml:"prefill_selector"`
	// PrefillTargetPorts are the ports of these pods. Default: the pool's.
	PrefillTargetPorts []int `yaml:"prefill_target_ports"`
	// Kubeconfig says how the apiserver is reached. Default: by the service account of the
	// pod in which the plugin runs.
	Kubeconfig string `yaml:"kubeconfig"`
	// Presets name the rules by which a pod's labels say its role: baton, llm-d, dynamo,
	// aibrix. Default: all of them, in this order.
	Presets []string `yaml:"presets"`
	// Roles are rules that come before those of the presets.
	Roles []RoleConfig `yaml:"roles"`
	// KVGroupLabel is a label whose value is the kv_group of a pod. Default: none.
	KVGroupLabel string `yaml:"kv_group_label"`
}

// RoleConfig says which role a pod has that carries a label, or that a selector selects.
type RoleConfig struct {
	Label    string `yaml:"label"`
	Value    string `yaml:"value"`    // "*": every other value
	Selector string `yaml:"selector"` // in place of label and value, as Kubernetes writes it; "*": every pod
	Role     string `yaml:"role"`     // prefill, decode, aggregated; none: the pod gets no requests
}

// checkPools returns the faults of the list.
func checkPools(d *Config) (errs []error) {
	seen := make(map[string]int)
	for i := range d.Kubernetes {
		k := &d.Kubernetes[i]
		c, faults := k.source()
		for _, f := range faults {
			errs = append(errs, fmt.Errorf("discovery.kubernetes[%d].%w", i, f))
		}
		if c.Namespace == "" {
			c.Namespace = "default" // it is set before a start
		}
		if err := c.Validate(); err != nil && len(faults) == 0 {
			text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "kubernetes: "), "\n", "; ")
			errs = append(errs, fmt.Errorf("discovery.kubernetes[%d]: %s", i, text))
		}
		if before, twice := seen[c.Ref()]; twice {
			errs = append(errs, fmt.Errorf("discovery.kubernetes[%d]: %s is discovery.kubernetes[%d] already", i, c.Ref(), before))
		}
		seen[c.Ref()] = i
	}
	return errs
}

// Source converts to the settings of a source. The caller adds the client, and what is to
// be told.
func (k *KubernetesConfig) Source() (kubernetes.Config, error) {
	c, faults := k.source()
	return c, errors.Join(faults...)
}

// source is Source; each fault begins with its key.
func (k *KubernetesConfig) source() (c kubernetes.Config, faults []error) {
	c = kubernetes.Config{Namespace: k.Namespace, Pool: k.Pool, Group: k.Group, KVGroupLabel: k.KVGroupLabel}
	selector := func(key, text string) map[string]string {
		if text == "" {
			return nil
		}
		labels, err := kubernetes.ParseSelector(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", key, err))
		}
		return labels
	}
	ports := func(key string, list []int) (out []uint16) {
		for _, p := range list {
			if p < 1 || p > 65535 {
				faults = append(faults, fmt.Errorf("%s: %d: expected ports from 1 to 65535", key, p))
				continue
			}
			out = append(out, uint16(p)) //nolint:gosec // checked above
		}
		return out
	}
	c.Selector, c.PrefillSelector = selector("selector", k.Selector), selector("prefill_selector", k.PrefillSelector)
	c.Ports, c.PrefillPorts = ports("target_ports", k.TargetPorts), ports("prefill_target_ports", k.PrefillTargetPorts)
	rules, err := k.rules()
	if err != nil {
		faults = append(faults, err)
	}
	c.Rules = rules
	return c, faults
}

// rules are the user's own, and then those of the presets.
func (k *KubernetesConfig) rules() (rules []kubernetes.Rule, err error) {
	var errs []error
	for i, r := range k.Roles {
		role := kubernetes.NoRole
		if r.Role != "none" {
			role, err = worker.ParseRole(r.Role)
			if err != nil {
				errs = append(errs, fmt.Errorf("roles[%d].role %q: expected %s", i, r.Role, strings.Join(kubernetes.Roles(), ", ")))
				continue
			}
		}
		rule := kubernetes.Rule{Label: r.Label, Value: r.Value, Role: role}
		if r.Selector != "" {
			rule.Selector, err = kubernetes.ParseRule(r.Selector)
			if err != nil {
				errs = append(errs, fmt.Errorf("roles[%d].selector %q: %w", i, r.Selector, err))
				continue
			}
		}
		if err := rule.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("roles[%d]: %w", i, err))
			continue
		}
		rules = append(rules, rule)
	}
	presets := k.Presets
	if len(presets) == 0 {
		presets = kubernetes.Presets()
	}
	for i, name := range presets {
		more, err := kubernetes.Preset(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("presets[%d] %q: expected %s", i, name, strings.Join(kubernetes.Presets(), ", ")))
		}
		rules = append(rules, more...)
	}
	return rules, errors.Join(errs...)
}

// openPools makes a source for each pool. Pools of one apiserver share a client.
func openPools(o *opening) error {
	kubernetes.Quiet()
	clients := make(map[string]*kubernetes.Client)
	notices := make(map[string]func(text string)) // of each cluster one
	for i := range o.d.Kubernetes {
		k := &o.d.Kubernetes[i]
		conf, err := k.Source()
		if err != nil {
			return err
		}
		if clients[k.Kubeconfig] == nil {
			client, err := kubernetes.Dial(kubernetes.ClientConfig{Kubeconfig: k.Kubeconfig, Agent: o.Agent, Nowhere: o.Dry})
			if err != nil {
				return fmt.Errorf("discovery.kubernetes[%d].kubeconfig (--kubeconfig): %w", i, err)
			}
			clients[k.Kubeconfig] = client
			o.closers = append(o.closers, client)
			var once sync.Once
			notices[k.Kubeconfig] = func(text string) { once.Do(func() { o.Log.Info(text) }) }
		}
		ref := conf.Ref()
		conf.Client, conf.Workers, conf.Notice = clients[k.Kubeconfig], o.Namespace, notices[k.Kubeconfig]
		conf.Presence = func(exists bool, why string) { o.Presence(ref, exists, why) }
		source, err := kubernetes.New(conf)
		if err != nil {
			return fmt.Errorf("discovery.kubernetes[%d]: %w", i, err)
		}
		asked, err := o.Asking(o.guarded(source, false))
		if err != nil {
			return err
		}
		name := "kubernetes " + ref
		of := origin{name: name, suffix: ".kubernetes-" + strings.NewReplacer("/", "-", ",", "-").Replace(ref), identity: name, vouches: true}
		if err := o.add(of, asked); err != nil {
			return err
		}
	}
	return nil
}

// poolsShown says of each pool where its workers are.
func poolsShown(d *Config) (out []string) {
	for i := range d.Kubernetes {
		k := &d.Kubernetes[i]
		if k.Pool == "" {
			out = append(out, "the pods of "+k.Namespace+" with "+k.Selector)
		} else {
			out = append(out, "the InferencePool "+k.Namespace+"/"+k.Pool)
		}
	}
	return out
}
