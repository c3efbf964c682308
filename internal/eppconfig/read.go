package eppconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
)

// Config is what Baton takes from a scheduler's configuration. The zero value is none.
type Config struct {
	splits   bool
	profiles int // scheduling profiles
	ignored  []Ignored
	roles    []Rule
}

// Ignored is a part of the configuration that has no counterpart, and what Baton does instead.
type Ignored struct{ Part, Instead string }

// file is the form of the configuration. Parts of type any are not read, and of those of type
// strictyaml.Part only which plugins they use.
type file struct {
	APIVersion         string    `yaml:"apiVersion"`
	Kind               string    `yaml:"kind"`
	Metadata           any       `yaml:"metadata"`
	Plugins            []plugin  `yaml:"plugins"`
	SchedulingProfiles []profile `yaml:"schedulingProfiles"`
	RequestHandler     handler   `yaml:"requestHandler"`
	Parser             ref       `yaml:"parser"`
	FeatureGates       []string  `yaml:"featureGates"`
	DataLayer          dataLayer `yaml:"dataLayer"`
	Data               dataLayer `yaml:"data"` // its name in the inference extension up to v1.4

	FlowControl        strictyaml.Part `yaml:"flowControl"`
	SaturationDetector strictyaml.Part `yaml:"saturationDetector"`
}

type plugin struct {
	Name       string          `yaml:"name"`
	Type       string          `yaml:"type"`
	Parameters strictyaml.Part `yaml:"parameters"`
}

// name is what references call the plugin.
func (p *plugin) name() string { return cmp.Or(p.Name, p.Type) }

type profile struct {
	Name    string `yaml:"name"`
	Plugins []ref  `yaml:"plugins"`
}

type handler struct {
	Parsers           []ref `yaml:"parsers"`
	Parser            ref   `yaml:"parser"`
	PropagatePriority any   `yaml:"propagatePriority"`
}

// dataLayer says where what is known of the pool's pods comes from; only discovery may
// name other workers than those pods. The rest is of the picker's replicas.
type dataLayer struct {
	InjectDefaults any             `yaml:"injectDefaults"`
	Sources        strictyaml.Part `yaml:"sources"`
	Discovery      discovery       `yaml:"discovery"`
	PeerDiscovery  strictyaml.Part `yaml:"peerDiscovery"`
	CrossReplica   strictyaml.Part `yaml:"crossReplica"`
	Syncer         strictyaml.Part `yaml:"crossReplicaSyncerPluginRef"`
	SyncInterval   any             `yaml:"crossReplicaSyncInterval"`
	PublishTimeout any             `yaml:"crossReplicaPublishTimeout"`
}

type discovery struct {
	PluginRef any             `yaml:"pluginRef"`
	Endpoints any             `yaml:"endpoints"`
	Peers     strictyaml.Part `yaml:"peers"`
}

type ref struct {
	PluginRef string          `yaml:"pluginRef"`
	Weight    strictyaml.Part `yaml:"weight"`
}

// The forms of the configuration that are known.
const kindOfConfig = "EndpointPickerConfig"

func apiVersions() []string {
	return []string{"llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"}
}

// Read reads a configuration. name is what faults call it; their lines in JSON are those of
// its indented form, since KServe passes it in one line.
func Read(name string, data []byte) (Config, error) {
	var f file
	var indented bytes.Buffer
	if json.Indent(&indented, data, "", "  ") == nil {
		data = indented.Bytes()
	}
	d := strictyaml.Form{}.Open(name, data)
	places, _ := d.Read(&f)
	if !places.Known() && d.Err() != nil {
		return Config{}, d.Err()
	}
	c := Config{profiles: len(f.SchedulingProfiles)}
	found := f.faults(name, places)
	found = append(found, c.take(d, &f)...)
	found = append(found, c.takeFilters(d, &f)...)
	found = append(found, c.takeParts(&f, places)...)
	found = append(found, f.refs()...)
	err := places.InOrder(errors.Join(d.Err(), places.Explain(errors.Join(found...))))
	if err != nil {
		return Config{}, err
	}
	return c, nil
}

// faults returns what is wrong with the parts of f that are no plugins.
func (f *file) faults(name string, places strictyaml.Places) (errs []error) {
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	for _, x := range [...]struct{ key, want string }{
		{"apiVersion", strings.Join(apiVersions(), " or ")}, {"kind", kindOfConfig}, {"plugins", "a list of plugins"},
	} {
		if !places.Given(x.key) {
			bad("%s: no %s: expected %s", name, x.key, x.want)
		}
	}
	if places.Given("apiVersion") && !slices.Contains(apiVersions(), f.APIVersion) {
		bad("apiVersion %q: expected %s", strictyaml.Clip(f.APIVersion), strings.Join(apiVersions(), " or "))
	}
	if places.Given("kind") && f.Kind != kindOfConfig {
		bad("kind %q: expected %s", strictyaml.Clip(f.Kind), kindOfConfig)
	}
	return errs
}

// take takes over what the plugins mean here, and returns what is wrong with them.
func (c *Config) take(d *strictyaml.Document, f *file) (errs []error) {
	stands := f.stands()
	for i := range f.Plugins {
		p := &f.Plugins[i]
		r, known := rowOf(p.Type)
		place, used := stands[p.name()]
		becomes, text := r.fate, r.text
		switch {
		case p.Type == "":
			errs = append(errs, fmt.Errorf("plugins[%d].type: expected the type of a plugin", i))
			continue
		case !known && place != "" && !strings.HasSuffix(p.Type, "-filter"):
			becomes, text = lacking, place
		case !known:
			becomes, text = refused, "nothing is known here of this plugin, nor of who would serve without it: have the pool, or --endpoint-selector, select those who may, and remove it"
		case r.judge != nil:
			judged, why := r.judge(d, c, p)
			becomes, text = judged, cmp.Or(why, text)
		}
		if becomes == refused && !used && c.profiles > 0 && strings.HasSuffix(p.Type, "-filter") {
			becomes, text = lacking, "no profile uses it, so it leaves nobody out there either"
		}
		switch becomes {
		case refused:
			errs = append(errs, fmt.Errorf("plugins[%d].type %q is refused: %s", i, strictyaml.Clip(p.Type), text))
		case lacking:
			c.lack(p.Type, text)
		case same:
		}
		c.splits = c.splits || r.splits
	}
	return errs
}

// stands says of each plugin that the configuration uses what Baton does in its place, where the
// place alone says that it leaves no worker out; else "". In a profile only a scorer has a weight.
func (f *file) stands() map[string]string {
	at := map[string]string{}
	put := func(text string, parts ...strictyaml.Part) {
		for _, p := range parts {
			for _, name := range p.Texts() {
				at[name] = text
			}
		}
	}
	for _, l := range [...]*dataLayer{&f.DataLayer, &f.Data} {
		put(unknownOrder, l.Sources)
		put(ownReplicas, l.PeerDiscovery, l.CrossReplica, l.Syncer, l.Discovery.Peers)
	}
	put(noPriorities, f.FlowControl)
	put(noDetector, f.SaturationDetector)
	for _, r := range append(f.RequestHandler.Parsers, f.RequestHandler.Parser, f.Parser) {
		at[r.PluginRef] = otherPaths
	}
	used := slices.Concat(f.profileRefs()...)
	for _, r := range used {
		at[r.PluginRef] = ""
	}
	for _, r := range used {
		if r.Weight != (strictyaml.Part{}) {
			at[r.PluginRef] = unknownOrder
		}
	}
	return at
}

// profileRefs are the plugins of each profile.
func (f *file) profileRefs() (out [][]ref) {
	for i := range f.SchedulingProfiles {
		out = append(out, f.SchedulingProfiles[i].Plugins)
	}
	return out
}

// takeParts does the same for what the configuration has beside its plugins.
func (c *Config) takeParts(f *file, places strictyaml.Places) (errs []error) {
	for _, layer := range [...]string{"dataLayer", "data"} {
		if key := layer + ".discovery"; places.Given(key+".pluginRef") || places.Given(key+".endpoints") {
			errs = append(errs, fmt.Errorf("%s is refused: it names another source of workers: list them for --workers, or have --pool-name name their pool, and remove it", key))
		}
	}
	if f.FlowControl.Filled() {
		c.lack("flowControl", noPriorities)
	}
	if f.SaturationDetector.Filled() {
		c.lack("saturationDetector", noDetector)
	}
	for i, gate := range f.FeatureGates {
		name, value, said := strings.Cut(gate, "=")
		switch {
		case said && value == "false":
		case name == "flowControl":
			c.lack(name, noPriorities)
		case !slices.Contains([]string{"dataLayer", "prepareDataPlugins", "enableLegacyMetrics", "haPopulateNonLeaderDatastore"}, name):
			errs = append(errs, fmt.Errorf("featureGates[%d] %q is refused: nothing is known here of what it turns on: remove it if all of the pool's workers may serve without it", i, strictyaml.Clip(name)))
		}
	}
	slices.SortFunc(c.ignored, func(a, b Ignored) int { return strings.Compare(a.Part, b.Part) })
	c.ignored = slices.Compact(c.ignored)
	return errs
}

// lack notes that name has no counterpart, and what Baton does instead.
func (c *Config) lack(name, instead string) {
	c.ignored = append(c.ignored, Ignored{strictyaml.Clip(name), instead})
}

// refs returns a fault for each reference to a plugin that is not there, and for each plugin whose
// name another one has: of two filters one would be lost.
func (f *file) refs() (errs []error) {
	names := map[string]int{}
	for i := range f.Plugins {
		name := f.Plugins[i].name()
		if at, taken := names[name]; taken && name != "" {
			errs = append(errs, fmt.Errorf("plugins[%d].name %q: plugins[%d] has this name: expected one of its own, and references by it", i, strictyaml.Clip(name), at))
		}
		names[name] = i
	}
	check := func(key string, r ref) {
		if _, there := names[r.PluginRef]; !there || r.PluginRef == "" {
			errs = append(errs, fmt.Errorf("%s.pluginRef %q: expected the name of one of plugins", key, strictyaml.Clip(r.PluginRef)))
		}
	}
	for i, refs := range f.profileRefs() {
		for j, r := range refs {
			check(fmt.Sprintf("schedulingProfiles[%d].plugins[%d]", i, j), r)
		}
	}
	for i, r := range f.RequestHandler.Parsers {
		check(fmt.Sprintf("requestHandler.parsers[%d]", i), r)
	}
	for key, r := range map[string]ref{"requestHandler.parser": f.RequestHandler.Parser, "parser": f.Parser} {
		if r.PluginRef != "" {
			check(key, r)
		}
	}
	return errs
}

// Splits reports whether the configuration has prefill and decode on separate workers.
func (c *Config) Splits() bool { return c.splits }

// Warning says in one line what has no effect, and names what has no counterpart, each
// with what Baton does instead.
func (c *Config) Warning() string {
	text := "Baton picks by its own policy (routing), so weights and parameters of the scheduler's plugins have no effect"
	if len(c.roles) > 0 {
		text += ", but for filters by labels"
	}
	if len(c.ignored) == 0 {
		return text + "; each of its plugins has a counterpart"
	}
	text += "; without a counterpart: "
	for i, x := range c.ignored {
		text += strings.Repeat("; ", min(i, 1)) + x.Part + " (" + x.Instead + ")"
	}
	return text
}

// Ignored returns what has no counterpart, sorted and without doubles. The caller must not change it.
func (c *Config) Ignored() []Ignored { return c.ignored }
