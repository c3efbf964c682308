package eppconfig

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
)

// Rule says which role the pods have that a label selector selects, in Kubernetes' notation. Of
// several rules that select a pod, the first one counts. The role "none": it is no worker.
type Rule struct{ Selector, Role string }

// EveryPod is the selector of a rule for all pods.
const EveryPod = "*"

// selected is a condition on a pod's labels: one of these selectors selects it. "": all pods.
type selected []string

// and returns the condition that both hold.
func (a selected) and(b selected) (out selected) {
	for _, x := range a {
		for _, y := range b {
			out = append(out, strings.Trim(x+","+y, ","))
		}
	}
	return out
}

// mostRules bounds the rules that filters become: there are products of them.
const mostRules = 64

// labelParameters are those of label-selector-filter, as Kubernetes writes a selector, and of
// by-label.
type labelParameters struct {
	MatchLabels      map[string]string `yaml:"matchLabels"`
	MatchExpressions []struct {
		Key      string   `yaml:"key"`
		Operator string   `yaml:"operator"`
		Values   []string `yaml:"values"`
	} `yaml:"matchExpressions"`

	Label         string   `yaml:"label"`
	ValidValues   []string `yaml:"validValues"`
	AllowsNoLabel bool     `yaml:"allowsNoLabel"`
}

// selectedBy returns whom a filter keeps, by its type; nil for what is no filter by labels. fault
// says what is wrong with its parameters.
// https://github.com/llm-d/llm-d-router has the labels of the filters by role, in bylabel/roles.go.
func selectedBy(d *strictyaml.Document, at string, p *plugin) (who selected, fault string) {
	const role = "llm-d.ai/role"
	switch p.Type {
	case "decode-filter":
		return selected{role + " in (decode,prefill-decode,both,encode-prefill-decode)", "!" + role}, ""
	case "prefill-filter":
		return selected{role + " in (prefill,encode-prefill,prefill-decode,both,encode-prefill-decode)"}, ""
	case "by-label", "by-label-selector", "label-selector-filter":
		var x labelParameters
		d.ReadPart(p.Parameters, at+": ", &x)
		return x.selected(p.Type == "by-label")
	}
	return nil, ""
}

// inLabels is what a label's name or value is made of: what else a selector has is its notation.
var inLabels = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)

// selected returns the condition, or what is wrong with the parameters.
func (x *labelParameters) selected(byLabel bool) (who selected, fault string) {
	texts := slices.Concat(slices.Collect(maps.Keys(x.MatchLabels)), slices.Collect(maps.Values(x.MatchLabels)), x.ValidValues)
	parts := []string{}
	for _, k := range slices.Sorted(maps.Keys(x.MatchLabels)) {
		parts = append(parts, k+"="+x.MatchLabels[k])
	}
	for _, e := range x.MatchExpressions {
		texts = append(append(texts, e.Key), e.Values...)
		list := " (" + strings.Join(e.Values, ",") + ")"
		switch {
		case e.Operator == "In" && len(e.Values) > 0:
			parts = append(parts, e.Key+" in"+list)
		case e.Operator == "NotIn" && len(e.Values) > 0:
			parts = append(parts, e.Key+" notin"+list)
		case e.Operator == "Exists" && len(e.Values) == 0:
			parts = append(parts, e.Key)
		case e.Operator == "DoesNotExist" && len(e.Values) == 0:
			parts = append(parts, "!"+e.Key)
		default:
			return selected{""}, fmt.Sprintf("matchExpressions: operator %q with %d values: expected In or NotIn with values, Exists or DoesNotExist without", strictyaml.Clip(e.Operator), len(e.Values))
		}
	}
	who = selected{strings.Join(parts, ",")}
	if byLabel {
		texts = append(texts, x.Label)
		who = nil
		if len(x.ValidValues) > 0 {
			who = append(who, x.Label+" in ("+strings.Join(x.ValidValues, ",")+")")
		}
		if x.AllowsNoLabel {
			who = append(who, "!"+x.Label)
		}
	}
	if (x.Label != "" || len(x.ValidValues) > 0) != byLabel || len(who) == 0 || byLabel && len(parts) > 0 {
		return selected{""}, "expected matchLabels and matchExpressions; of by-label: label with validValues or allowsNoLabel"
	}
	for _, s := range texts {
		if s != "" && !inLabels.MatchString(s) {
			return selected{""}, fmt.Sprintf("%q: expected the name or the value of a label", strictyaml.Clip(s))
		}
	}
	return who, ""
}

// takeFilters makes rules of the filters by labels. Without one other than by role there are none:
// the presets of discovery.kubernetes know those labels. It returns what is wrong.
func (c *Config) takeFilters(d *strictyaml.Document, f *file) (errs []error) {
	filters, kinds, chosen := map[string]selected{}, map[string]string{}, false
	for i := range f.Plugins {
		p := &f.Plugins[i]
		name := p.name()
		at := fmt.Sprintf("plugins[%d].parameters", i)
		who, fault := selectedBy(d, at, p)
		filters[name], kinds[name] = who, p.Type
		if fault != "" {
			errs = append(errs, fmt.Errorf("%s: %s", at, fault))
		}
	}
	whole, sides := f.SchedulingProfiles, map[string]selected{}
	if len(whole) == 0 { // there all plugins are those of one profile
		whole = []profile{{}}
		for i := range f.Plugins {
			whole[0].Plugins = append(whole[0].Plugins, ref{PluginRef: f.Plugins[i].name()})
		}
	}
	for i := range whole {
		who, byRole, labels := whole[i].kept(filters, kinds)
		chosen = chosen || labels
		side := cmp.Or(byRole, whole[i].Name)
		if !c.splits {
			side = "aggregated"
		}
		_, twice := sides[side]
		if labels && whole[i].Name != "encode" && (twice || c.splits && side != "prefill" && side != "decode") {
			errs = append(errs, fmt.Errorf("schedulingProfiles[%d] is refused: a filter by labels says who serves in it, and nothing says that it is the one for prefill or for decode: call them prefill and decode, or remove it", i))
		}
		sides[side] = who
	}
	if chosen {
		c.roles = rulesOf(sides)
	}
	if len(c.roles) > mostRules || !c.splits && chosen && len(whole) > 1 {
		errs = append(errs, fmt.Errorf("schedulingProfiles is refused: filters by labels in %d profiles: expected one, or those of prefill and decode, with fewer alternatives: have the pool, or --endpoint-selector, select the workers", len(whole)))
	}
	return errs
}

// kept returns whom the profile's filters keep, the role by which they do, if by one, and whether
// they do by other labels. kinds are the filters' types.
func (x *profile) kept(filters map[string]selected, kinds map[string]string) (who selected, byRole string, labels bool) {
	who = selected{""}
	for _, r := range x.Plugins {
		if filters[r.PluginRef] == nil {
			continue
		}
		who = who.and(filters[r.PluginRef])
		role, isRole := strings.CutSuffix(kinds[r.PluginRef], "-filter")
		if isRole && role != "label-selector" {
			byRole = role
		} else {
			labels = true
		}
	}
	return who, byRole, labels
}

// rulesOf returns the rules by which pods have the roles of the profiles that keep them.
func rulesOf(sides map[string]selected) (out []Rule) {
	add := func(who selected, role string) {
		for _, s := range who {
			out = append(out, Rule{cmp.Or(s, EveryPod), role})
		}
	}
	add(sides["prefill"].and(sides["decode"]), "aggregated")
	for _, role := range []string{"prefill", "decode", "aggregated"} {
		add(sides[role], role)
	}
	return append(out, Rule{EveryPod, "none"})
}

// Roles returns the rules that say which pods of a pool serve and as what. None: the
// configuration selects no workers by labels other than their role's.
func (c *Config) Roles() []Rule { return c.roles }
