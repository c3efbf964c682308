package lacking

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-60ae5743/baton/internal/envoyfile"
)

// Part takes a part out of a configuration that the templates have written; nil if the part is not in it.
func Part(data []byte, id string) ([]byte, error) {
	var root map[string]any
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, err
	}
	t := taker{id: id, parts: envoyfile.Parts()}
	for _, key := range []string{"bootstrap_extensions", "overload_manager", "layered_runtime"} {
		t.from(root, key, "bootstrap/"+key)
	}
	static := root["static_resources"].(map[string]any)
	static["listeners"] = t.objects(static["listeners"].([]any), "", t.listener)
	static["clusters"] = t.objects(static["clusters"].([]any), "cluster/", func(name string, m map[string]any) { t.below(m, "cluster/"+name) })
	if !t.took {
		return nil, nil
	}
	return yaml.Marshal(root)
}

// taker removes what a part owns.
type taker struct {
	id    string
	parts []envoyfile.Part
	took  bool
}

func (t *taker) mine(place string) bool {
	p := envoyfile.Owner(t.parts, place)
	return p != nil && p.ID == t.id
}

// objects are the listeners or clusters without those that are the part, each without what of it is.
func (t *taker) objects(list []any, before string, inside func(string, map[string]any)) []any {
	return slices.DeleteFunc(list, func(o any) bool {
		m := o.(map[string]any)
		name := m["name"].(string)
		if t.mine(before+name) && name != "client" {
			t.took = true
			return true
		}
		inside(name, m)
		return false
	})
}

func (t *taker) listener(name string, l map[string]any) {
	http := l["filter_chains"].([]any)[0].(map[string]any)["filters"].([]any)[0].(map[string]any)["typed_config"].(map[string]any)
	t.below(l, name+"/listener", "filter_chains", "name", "address", "internal_listener")
	if name != "client" {
		t.below(http, name+"/http", "@type", "stat_prefix")
		return
	}
	host := http["route_config"].(map[string]any)["virtual_hosts"].([]any)[0].(map[string]any)
	t.below(host["routes"].([]any)[0], "client/route", "match")
	t.below(host, "client/host", "routes", "name", "domains")
	t.below(http, "client/http", "@type", "route_config", "stat_prefix", "http_filters")
	http["http_filters"] = t.below(http["http_filters"], "client/http/http_filters")
}

// from removes a key of a mapping if all below it is the part, and else what of it is.
func (t *taker) from(m map[string]any, key, place string) {
	v, ok := m[key]
	if !ok {
		return
	}
	if t.all(v, place) && !strings.HasSuffix(place, "/@type") && !strings.HasSuffix(place, "envoy.filters.http.router") {
		t.took = true
		delete(m, key)
		return
	}
	if left := t.below(v, place); left != nil {
		m[key] = left
	}
}

// all says that a place and all below it is the part.
func (t *taker) all(v any, place string) bool {
	if !t.mine(place) {
		return false
	}
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			if !t.all(below, place+"/"+key) {
				return false
			}
		}
	case []any:
		for i, below := range v {
			if !t.all(below, place+"/"+element(below, i)) {
				return false
			}
		}
	}
	return true
}

// below removes the part below a place. It returns what is left of a list.
func (t *taker) below(v any, place string, but ...string) any {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if !slices.Contains(but, key) {
				t.from(v, key, place+"/"+key)
			}
		}
	case []any:
		i := -1
		return slices.DeleteFunc(v, func(e any) bool {
			i++
			at := place + "/" + element(e, i)
			if t.all(e, at) && !strings.HasSuffix(at, "envoy.filters.http.router") {
				t.took = true
				return true
			}
			t.below(e, at)
			return false
		})
	}
	return nil
}

func element(v any, i int) string {
	if m, ok := v.(map[string]any); ok {
		if name, ok := m["name"].(string); ok {
			return name
		}
	}
	return strconv.Itoa(i)
}
