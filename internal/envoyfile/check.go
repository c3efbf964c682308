package envoyfile

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-60ae5743/baton/envoy"
)

// File is a configuration: Envoy's bootstrap file, what a discovery service of files serves, or what a
// running Envoy tells of itself (/config_dump).
type File struct {
	Name string
	Data []byte
}

// Finding is a part that is missing or differs.
type Finding struct {
	Part   Part
	Places []string // where, what is there, and what must be
}

// String is the finding on a few lines.
func (f Finding) String() string {
	const most = 4
	kind := ""
	if f.Part.Advised {
		kind = " (advised)"
	}
	places := f.Places
	if n := len(places); n > most {
		places = append(places[:most:most], fmt.Sprintf("and %d more", n-most))
	}
	return fmt.Sprintf("%s%s: %s, in %s\n    %s\n    Without it: %s", f.Part.ID, kind, f.Part.What, f.Part.Where, strings.Join(places, "\n    "), f.Part.Without)
}

// Served names the files from which a bootstrap file has its listeners and clusters served.
func Served(f File) []string {
	root, err := parse(f.Name, f.Data)
	if err != nil {
		return nil
	}
	var out []string
	for _, kind := range []string{"lds_config", "cds_config"} {
		d := get(root.Content[0], "dynamic_resources", kind)
		if path := text(d, "path_config_source", "path") + text(d, "path"); path != "" {
			out = append(out, path)
		}
	}
	return out
}

// Check says which parts are missing from a configuration, or differ, in the order of Parts. p is what the
// plugin needs; what the configuration says of its own form (body mode, routing) overrides it.
func Check(p envoy.Params, files ...File) ([]Finding, error) {
	c := &config{routes: map[string]*yaml.Node{}, from: map[*yaml.Node]string{}}
	for _, f := range files {
		doc, err := parse(f.Name, f.Data)
		if err != nil {
			return nil, err
		}
		c.add(f.Name, doc.Content[0])
	}
	if len(c.listeners) == 0 {
		return nil, fmt.Errorf("%s: it has no listeners: expected Envoy's bootstrap file, or what it tells at /config_dump", files[0].Name)
	}
	all := &checked{config: c, roles: c.roles(p.PrefillSocket), parts: Parts()}
	want, err := wanted(all.form(p))
	if err != nil {
		return nil, err
	}
	all.check(want)
	if is := all.cluster["extproc"]; p.PluginTLS && is != nil && get(is, "transport_socket") == nil {
		all.note(difference{place: "cluster/extproc/transport_socket", line: is.Line, want: "TLS, since the plugin's configuration has tls"}, is)
	}
	var out []Finding
	for _, part := range all.parts {
		if places := all.places[part.ID]; len(places) > 0 {
			out = append(out, Finding{part, places})
		}
	}
	return out, nil
}

// wanted is the configuration that the templates give.
func wanted(p envoy.Params) (*config, error) {
	text, err := envoy.Standalone(p)
	if err != nil {
		return nil, err
	}
	doc, err := parse("template", text)
	if err != nil {
		return nil, err
	}
	c := &config{from: map[*yaml.Node]string{}}
	c.started("template", doc.Content[0])
	return c, nil
}

// checked is a configuration with what has been found of it.
type checked struct {
	*config
	roles
	parts  []Part
	places map[string][]string // by part
}

func (c *checked) check(want *config) {
	c.places = map[string][]string{}
	for _, key := range []string{"bootstrap_extensions", "overload_manager", "layered_runtime"} {
		if w := get(want.bootstrap, key); w != nil && c.bootstrap != nil {
			c.compare("bootstrap/"+key, w, get(c.bootstrap, key), c.bootstrap)
		}
	}
	for _, w := range want.listeners {
		if role := text(w, "name"); role == "client" {
			c.clients(w)
		} else {
			c.leg(role, w)
		}
	}
	for _, w := range want.clusters {
		role := text(w, "name")
		is := c.cluster[role]
		if is == nil {
			c.absent("cluster/"+role, "there is no cluster "+role)
			continue
		}
		c.compare("cluster/"+role, without(w, "load_assignment"), is, is)
		if role == "extproc" { // others may be there, too: replicas
			c.compare("cluster/extproc/load_assignment", get(w, "load_assignment", "endpoints"), get(is, "load_assignment", "endpoints"), is)
		}
	}
}

// leg checks one of the listeners that are Baton's alone.
func (c *checked) leg(role string, want *yaml.Node) {
	is := c.listener[role]
	if is == nil || len(https(is)) == 0 {
		c.absent(role, "there is no such listener")
		return
	}
	if filter := map[string]string{"main_leg": "main", "prefill_leg": "prefill"}[role]; filter != "" && filterOf(https(is)[0], filter) == nil {
		c.absent(role+"/http/http_filters/envoy.filters.http.ext_proc", "the listener has no ext_proc filter whose metadata say x-baton-filter: "+filter)
	}
	c.compare(role+"/listener", without(want, "filter_chains"), is, is)
	c.compare(role+"/http", https(want)[0], https(is)[0], is)
}

// clients checks each listener of the user's that leads to the main leg.
func (c *checked) clients(want *yaml.Node) {
	found := false
	var missing []string // what is served from elsewhere, and was not given
	for _, l := range c.listeners {
		for _, h := range https(l) {
			if name := text(h, "rds", "route_config_name"); name != "" && c.routes[name] == nil {
				missing = append(missing, name)
			}
			if c.leads(want, l, h) {
				found = true
				c.compare("client/listener", without(want, "filter_chains", "address", "name"), l, l)
				c.compare("client/http", without(https(want)[0], "route_config"), h, l)
			}
		}
	}
	switch {
	case found:
	case len(missing) > 0:
		c.absent("client/route/route/cluster", "no route leads to main_leg in what was given; these route configurations are served from elsewhere: "+strings.Join(missing, ", "))
	default:
		c.absent("client/route/route/cluster", "no route of a listener leads to a cluster whose endpoint is the internal listener main_leg")
	}
}

// leads checks the routes that lead to the main leg, with their virtual hosts, and says whether there are any.
func (c *checked) leads(want, l, http *yaml.Node) (any bool) {
	wantHost := items(https(want)[0], "route_config", "virtual_hosts")[0]
	to := text(c.cluster["main_leg"], "name")
	for _, host := range c.hosts(http) {
		here := false
		for _, route := range items(host, "routes") {
			if to == "" || !slices.Contains(destinations(route), to) {
				continue
			}
			here = true
			wantRoute := without(items(wantHost, "routes")[0], "match")
			if text(route, "route", "cluster") == "" { // by weights
				set(wantRoute, "route", without(get(wantRoute, "route"), "cluster"))
			}
			c.compare("client/route", wantRoute, route, l)
			if n := get(route, "request_body_buffer_limit"); n != nil { // it goes before the virtual host's
				c.compare("client/route/request_body_buffer_limit", get(wantHost, "request_body_buffer_limit"), n, l)
			}
			c.bounds(route, http, l)
		}
		if here {
			c.compare("client/host", without(wantHost, "routes", "name", "domains"), host, l)
		}
		any = any || here
	}
	return any
}

// bounds finds times that end a request and that the templates do not have.
func (c *checked) bounds(route, http, in *yaml.Node) {
	for _, key := range []string{"idle_timeout", "max_stream_duration"} {
		if n := get(route, "route", key); n != nil && short(n) != "0s" && !unbound(route, key) {
			c.note(difference{"client/route/route/" + key, n.Line, short(n), "nothing"}, in)
		}
	}
	if n := streamBound(http); n != nil && !unbound(route, "max_stream_duration") {
		c.note(difference{"client/http/common_http_protocol_options/max_stream_duration", n.Line, n.Value, "nothing, or max_stream_duration: {max_stream_duration: 0s} of the route"}, in)
	}
}

// streamBound is how long a listener lets a request take whose route says nothing else; nil: for ever.
func streamBound(http *yaml.Node) *yaml.Node {
	n := get(http, "common_http_protocol_options", "max_stream_duration")
	if n == nil || n.Value == "0s" {
		return nil
	}
	return n
}

// unbound says that a route takes the listener's bound away.
func unbound(route *yaml.Node, key string) bool { return text(route, "route", key, key) == "0s" }

func (c *checked) compare(place string, want, is, in *yaml.Node) {
	by := comparer{names: c.names}
	by.compare(place, want, is, in.Line)
	for _, d := range by.found {
		c.note(d, in)
	}
}

func (c *checked) note(d difference, in *yaml.Node) {
	part := Owner(c.parts, d.place)
	at := c.from[in]
	if d.line > 0 && !c.dump {
		at = fmt.Sprintf("%s:%d", at, d.line)
	}
	line := fmt.Sprintf("%s: %s is missing: %s", at, d.place, d.want)
	if d.is != "" {
		line = fmt.Sprintf("%s: %s is %s: expected %s", at, d.place, d.is, d.want)
	}
	c.places[part.ID] = append(c.places[part.ID], line)
}

func (c *checked) absent(place, why string) {
	id := Owner(c.parts, place).ID
	c.places[id] = append(c.places[id], why)
}

// without copies a mapping, but for some keys.
func without(m *yaml.Node, keys ...string) *yaml.Node {
	out := &yaml.Node{Kind: yaml.MappingNode, Line: m.Line}
	for i := 0; i < len(m.Content); i += 2 {
		if !slices.Contains(keys, m.Content[i].Value) {
			out.Content = append(out.Content, m.Content[i], m.Content[i+1])
		}
	}
	return out
}
