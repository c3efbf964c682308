package envoyfile

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-60ae5743/baton/envoy"
)

// config is what a configuration has, wherever it comes from.
type config struct {
	bootstrap *yaml.Node
	listeners []*yaml.Node
	clusters  []*yaml.Node
	routes    map[string]*yaml.Node // route configurations that are served by name (RDS)
	from      map[*yaml.Node]string // the file of a listener or cluster
	dump      bool                  // a running Envoy has told it: lines mean nothing
}

// add reads a bootstrap file, a configuration dump, or an answer of a discovery service.
func (c *config) add(name string, root *yaml.Node) {
	switch {
	case get(root, "configs") != nil:
		c.dump = true
		for _, part := range items(root, "configs") {
			c.dumped(name, part)
		}
	case get(root, "resources") != nil:
		for _, r := range items(root, "resources") {
			c.resource(name, cmp.Or(get(r, "resource"), r))
		}
	default:
		c.started(name, root)
	}
}

// started reads a bootstrap file.
func (c *config) started(name string, root *yaml.Node) {
	c.bootstrap = root
	c.from[root] = name
	for _, l := range items(root, "static_resources", "listeners") {
		c.keep(&c.listeners, name, l)
	}
	for _, cl := range items(root, "static_resources", "clusters") {
		c.keep(&c.clusters, name, cl)
	}
}

// dumped reads one part of a configuration dump.
func (c *config) dumped(name string, part *yaml.Node) {
	if b := get(part, "bootstrap"); b != nil {
		c.bootstrap = b // its listeners and clusters come by themselves
		c.from[b] = name
	}
	for _, l := range items(part, "static_listeners") {
		c.keep(&c.listeners, name, get(l, "listener"))
	}
	for _, l := range items(part, "dynamic_listeners") {
		c.keep(&c.listeners, name, get(l, "active_state", "listener"))
	}
	for _, cl := range slices.Concat(items(part, "static_clusters"), items(part, "dynamic_active_clusters")) {
		c.keep(&c.clusters, name, get(cl, "cluster"))
	}
	for _, r := range items(part, "dynamic_route_configs") {
		c.routes[text(r, "route_config", "name")] = get(r, "route_config")
	}
}

func (c *config) resource(name string, r *yaml.Node) {
	switch kind := text(r, "@type"); kind[strings.LastIndexByte(kind, '.')+1:] {
	case "Listener":
		c.keep(&c.listeners, name, r)
	case "Cluster":
		c.keep(&c.clusters, name, r)
	case "RouteConfiguration":
		c.routes[text(r, "name")] = r
	}
}

// keep adds a listener or cluster, if there is one.
func (c *config) keep(to *[]*yaml.Node, file string, n *yaml.Node) {
	if n != nil {
		*to = append(*to, n)
		c.from[n] = file
	}
}

// https are the configurations of HTTP in a listener.
func https(listener *yaml.Node) (out []*yaml.Node) {
	chains := items(listener, "filter_chains")
	if d := get(listener, "default_filter_chain"); d != nil {
		chains = append(chains, d)
	}
	for _, chain := range chains {
		for _, f := range items(chain, "filters") {
			if t := get(f, "typed_config"); strings.HasSuffix(text(t, "@type"), ".HttpConnectionManager") {
				out = append(out, t)
			}
		}
	}
	return out
}

// hosts are the virtual hosts of a configuration of HTTP.
func (c *config) hosts(http *yaml.Node) []*yaml.Node {
	if name := text(http, "rds", "route_config_name"); name != "" {
		return items(c.routes[name], "virtual_hosts")
	}
	return items(http, "route_config", "virtual_hosts")
}

// filterOf finds the filter of Baton that says that it is so in its metadata.
func filterOf(http *yaml.Node, is string) *yaml.Node {
	for _, f := range items(http, "http_filters") {
		if metadata(get(f, "typed_config"), "x-baton-filter") == is {
			return get(f, "typed_config")
		}
	}
	return nil
}

// metadata is what a filter tells the plugin of itself under a key, or "".
func metadata(filter *yaml.Node, key string) string {
	for _, m := range items(filter, "grpc_service", "initial_metadata") {
		if text(m, "key") == key {
			return text(m, "value")
		}
	}
	return ""
}

// roles are the listeners and clusters by what they are for, as the templates call them. They may have other names.
type roles struct {
	listener, cluster map[string]*yaml.Node
	names             map[string]string // of theirs → the templates'
}

func (c *config) roles(sync string) roles {
	r := roles{map[string]*yaml.Node{}, map[string]*yaml.Node{}, map[string]string{}}
	take := func(to map[string]*yaml.Node, role string, n *yaml.Node) {
		if n != nil && to[role] == nil {
			to[role] = n
			r.names[text(n, "name")] = role
		}
	}
	for _, cl := range c.clusters {
		switch text(cl, "original_dst_lb_config", "http_header_name") {
		case "x-gateway-destination-endpoint":
			take(r.cluster, "decode", cl)
		case "x-prefill-destination-endpoint":
			take(r.cluster, "prefill", cl)
		}
	}
	for _, l := range c.listeners {
		for _, h := range https(l) {
			for filter, role := range map[string]string{"main": "main_leg", "prefill": "prefill_leg", "sync": "sync_leg"} {
				if f := filterOf(h, filter); f != nil {
					take(r.listener, role, l)
					take(r.cluster, "extproc", named(c.clusters, text(f, "grpc_service", "envoy_grpc", "cluster_name")))
				}
			}
		}
		if sync != "" && text(l, "address", "pipe", "path") == sync {
			take(r.listener, "sync_leg", l)
		}
	}
	for _, role := range ownListeners {
		take(r.listener, role, named(c.listeners, role))
	}
	for _, cl := range c.clusters {
		if inner := internalOf(cl); inner != "" {
			take(r.cluster, r.names[inner], cl)
		}
	}
	for _, role := range ownClusters {
		take(r.cluster, role, named(c.clusters, role))
	}
	return r
}

func named(list []*yaml.Node, name string) *yaml.Node {
	if i := slices.IndexFunc(list, func(n *yaml.Node) bool { return text(n, "name") == name }); i >= 0 {
		return list[i]
	}
	return nil
}

// internalOf is the internal listener to which a cluster leads, or "".
func internalOf(cluster *yaml.Node) string {
	for _, e := range items(cluster, "load_assignment", "endpoints") {
		for _, lb := range items(e, "lb_endpoints") {
			if name := text(lb, "endpoint", "address", "envoy_internal_address", "server_listener_name"); name != "" {
				return name
			}
		}
	}
	return ""
}

// form returns the parameters with what a configuration itself says of its form.
func (r roles) form(p envoy.Params) envoy.Params {
	for _, h := range https(r.listener["main_leg"]) {
		f := filterOf(h, "main")
		if mode := text(f, "processing_mode", "request_body_mode"); mode != "" {
			p.FullDuplex = mode == "FULL_DUPLEX_STREAMED"
		}
		p.Routing = cmp.Or(metadata(f, "x-baton-routing"), p.Routing)
		p.Mirrors = p.Mirrors || f != nil && r.listener["prefill_leg"] != nil
	}
	return p
}
