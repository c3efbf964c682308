package envoyfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-60ae5743/baton/envoy"
)

// Options say what is merged into a file, and where.
type Options struct {
	envoy.Params

	// Listener is the name of the listener that clients reach. It may be empty if only one can be.
	Listener string
	// Cluster is the cluster whose routes lead to Baton from now on. It may be empty if all routes
	// lead to one, or if Baton is in the file already.
	Cluster string
}

// NoteTLS says what the owner of an Envoy adds by himself if the plugin serves TLS.
const NoteTLS = "the plugin's configuration has tls: give the cluster extproc a transport_socket of TLS, with your certificates; Envoy does not reach the plugin without"

// Merge puts Baton's parts into a bootstrap file and returns it, with a line for each value of the user's
// that it had to change. The file's order, comments and anchors stay; its indentation becomes the usual one. JSON
// stays JSON.
// Of what is only advised it adds what the file is silent about. Errors name all that is in the way.
func Merge(f File, o Options) (out []byte, changed []string, err error) {
	doc, err := parse(f.Name, f.Data)
	if err != nil {
		return nil, nil, err
	}
	root := doc.Content[0]
	if get(root, "static_resources") == nil {
		return nil, nil, fmt.Errorf("%s: it has no static_resources: expected Envoy's bootstrap file. For an Envoy that has its listeners and clusters from elsewhere use --parts", f.Name)
	}
	want, err := wanted(o.Params)
	if err != nil {
		return nil, nil, err
	}
	renameAnchors(want.bootstrap)
	m := &merger{name: f.Name, root: root, want: want}
	m.clients(o)
	m.join(root, "bootstrap_extensions", items(want.bootstrap, "bootstrap_extensions"))
	advise(root, "overload_manager", get(want.bootstrap, "overload_manager"))
	if layers := items(want.bootstrap, "layered_runtime", "layers"); len(layers) > 0 {
		m.join(m.own(root, "layered_runtime", yaml.MappingNode), "layers", layers)
	}
	m.replace("clusters", ownClusters) // first: the listeners of an earlier merge say which are Baton's
	m.replace("listeners", ownListeners)
	if o.PluginTLS && get(named(items(root, "static_resources", "clusters"), "extproc"), "transport_socket") == nil {
		m.changed = append(m.changed, NoteTLS)
	}
	if len(m.errs) > 0 {
		return nil, nil, errors.Join(m.errs...)
	}
	if json.Valid(f.Data) { // Envoy refuses YAML in a file named .json
		out, err = encodeJSON(root)
		return out, m.changed, err
	}
	anchored(doc)
	unfold(doc)
	out, err = encode(doc)
	return out, m.changed, err
}

// The names of Baton's own listeners and clusters.
var (
	ownListeners = []string{"main_leg", "prefill_leg", "sync_leg"}
	ownClusters  = []string{"extproc", "picker", "main_leg", "prefill_leg", "decode", "prefill", "otel_collector"}
)

func encode(doc *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	e.CompactSeqIndent()
	if err := e.Encode(doc); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// encodeJSON writes JSON, in the order of the nodes: with what aliases stand for, and without comments.
func encodeJSON(root *yaml.Node) ([]byte, error) {
	var flat, out bytes.Buffer
	err := appendJSON(&flat, root)
	if err != nil {
		return nil, err
	}
	err = json.Indent(&out, flat.Bytes(), "", "  ")
	out.WriteByte('\n')
	return out.Bytes(), err
}

func appendJSON(b *bytes.Buffer, n *yaml.Node) error {
	n = real(n)
	if n.Kind == yaml.ScalarNode {
		var v any
		if err := n.Decode(&v); err != nil {
			return err
		}
		e := json.NewEncoder(b)
		e.SetEscapeHTML(false)
		return e.Encode(v)
	}
	ends, between := "[]", ","
	if n.Kind == yaml.MappingNode {
		ends, between = "{}", ":,"
	}
	b.WriteByte(ends[0])
	for i, c := range n.Content {
		if i > 0 {
			b.WriteByte(between[(i-1)%len(between)])
		}
		if err := appendJSON(b, c); err != nil {
			return err
		}
	}
	b.WriteByte(ends[1])
	return nil
}

// renameAnchors keeps our anchors apart from the user's.
func renameAnchors(n *yaml.Node) {
	walk(n, func(n *yaml.Node) {
		if n.Anchor != "" {
			n.Anchor = "baton_" + n.Anchor
		}
		if n.Kind == yaml.AliasNode {
			n.Value = "baton_" + n.Value
		}
	})
}

// merger changes a user's file.
type merger struct {
	name    string
	root    *yaml.Node
	want    *config
	changed []string
	errs    []error
}

func (m *merger) fail(n *yaml.Node, format string, args ...any) {
	at := m.name
	if n != nil && n.Line > 0 {
		at = fmt.Sprintf("%s:%d", m.name, n.Line)
	}
	m.errs = append(m.errs, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
}

// tell notes what was changed that was the user's.
func (m *merger) tell(was *yaml.Node, format string, args ...any) {
	m.changed = append(m.changed, fmt.Sprintf("%s:%d: %s", m.name, real(was).Line, fmt.Sprintf(format, args...)))
}

// own returns the value of a key as a node that may be changed: it makes an empty one where there is none.
func (m *merger) own(in *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	i := at(in, key)
	if i < 0 {
		n := &yaml.Node{Kind: kind}
		set(in, key, n)
		return n
	}
	n := m.alone(in.Content[i])
	if isNull(n) {
		n.Kind, n.Tag, n.Value = kind, "", ""
	}
	if n.Kind != kind {
		m.fail(n, "%s is neither a mapping nor a list as Envoy reads it", key)
		return &yaml.Node{Kind: kind}
	}
	return n
}

// alone makes a node one that may be changed with nothing else: a copy takes the place of an alias, of which others
// are. Those that are aliases of the node stand for a copy, which has its anchor, from then on.
func (m *merger) alone(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		*n = *copied(real(n))
		return n
	}
	var kept *yaml.Node
	walk(m.root, func(c *yaml.Node) {
		switch {
		case c.Kind != yaml.AliasNode || c.Alias != n:
		case kept == nil:
			kept = c
			*c = *copied(n)
			c.Anchor, n.Anchor = n.Anchor, ""
		default:
			c.Alias = kept
		}
	})
	return n
}

// must gives a key the value that Baton needs, and tells of another one that was there.
func (m *merger) must(in *yaml.Node, key string, value *yaml.Node) {
	was := get(in, key)
	if was != nil && equal(value, was) {
		return
	}
	set(in, key, clone(value))
	if was != nil {
		m.tell(was, "%s was %s, and is %s now", key, short(was), short(value))
	}
}

// advise gives a key a value if it has none.
func advise(in *yaml.Node, key string, value *yaml.Node) {
	if value != nil && get(in, key) == nil {
		set(in, key, clone(value))
	}
}

// join adds elements to a list. One of the same name that differs is replaced, and told of.
func (m *merger) join(in *yaml.Node, key string, add []*yaml.Node) {
	list := m.own(in, key, yaml.SequenceNode)
	for _, a := range add {
		is := keyOf(a)
		i := slices.IndexFunc(list.Content, func(n *yaml.Node) bool { return is != "" && keyOf(n) == is })
		switch {
		case i < 0:
			list.Content = append(list.Content, clone(a))
		case !equal(a, list.Content[i]):
			m.tell(list.Content[i], "%s: %s was another one, and is Baton's now", key, is)
			list.Content[i] = clone(a)
		}
	}
}

// strip adds mutations of headers. An extension of the same name keeps those that it has: they are the user's.
func (m *merger) strip(http, wantHTTP *yaml.Node) {
	const key = "early_header_mutation_extensions"
	want := items(wantHTTP, key)[0]
	have := named(items(http, key), text(want, "name"))
	if have == nil || text(have, "typed_config", "@type") != text(want, "typed_config", "@type") {
		m.join(http, key, []*yaml.Node{want})
		return
	}
	list := m.own(http, key, yaml.SequenceNode)
	have = m.alone(list.Content[slices.Index(items(list), have)])
	to := m.own(m.own(have, "typed_config", yaml.MappingNode), "mutations", yaml.SequenceNode)
	for _, w := range items(want, "typed_config", "mutations") {
		if !slices.ContainsFunc(to.Content, func(n *yaml.Node) bool { return equal(w, n) }) {
			to.Content = append(to.Content, clone(w))
		}
	}
}

// keyOf is what tells elements of a list apart.
func keyOf(n *yaml.Node) string {
	return cmp.Or(real(n).Value, text(n, "name"), strings.ToLower(text(n, "header", "key")))
}

// replace puts Baton's own listeners or clusters into their list: in place of those of an earlier merge, or at its end.
func (m *merger) replace(list string, roles []string) {
	to := m.own(m.own(m.root, "static_resources", yaml.MappingNode), list, yaml.SequenceNode)
	wanted := items(m.want.bootstrap, "static_resources", list)
	for _, role := range roles {
		w := named(wanted, role)
		i := slices.IndexFunc(to.Content, func(n *yaml.Node) bool { return text(real(n), "name") == role })
		switch {
		case i >= 0 && !m.ours(list, role, real(to.Content[i])):
			if w != nil {
				m.fail(real(to.Content[i]), "the name %s in %s is taken: Baton needs it; give yours another one", role, list)
			}
		case i >= 0 && w == nil: // of another form
			to.Content = slices.Delete(to.Content, i, i+1)
		case i >= 0:
			was := real(to.Content[i])
			to.Content[i] = clone(w)
			if tls := at(was, "transport_socket"); role == "extproc" && tls >= 0 { // the user's: see Params.PluginTLS
				set(to.Content[i], "transport_socket", was.Content[tls])
			}
			if !same(was, to.Content[i]) {
				m.tell(was, "%s in %s was otherwise, and is as Baton writes it now", role, list)
			}
		case w != nil:
			to.Content = append(to.Content, clone(w))
		}
	}
}

// same says that two nodes have the same values.
func same(a, b *yaml.Node) bool {
	var x, y any
	return a.Decode(&x) == nil && b.Decode(&y) == nil && reflect.DeepEqual(x, y)
}

// ours says that a listener or cluster is of an earlier merge.
func (m *merger) ours(list, role string, n *yaml.Node) bool {
	if list == "listeners" {
		return len(https(n)) == 1 && strings.HasPrefix(text(https(n)[0], "stat_prefix"), role)
	}
	switch role {
	case "decode", "prefill":
		return text(n, "original_dst_lb_config", "http_header_name") != ""
	case "main_leg", "prefill_leg":
		return internalOf(n) == role
	default: // a name that others may choose, too: Baton's filters ask there, or it is as Baton writes it
		asked := false
		main := named(items(m.root, "static_resources", "listeners"), "main_leg")
		if main != nil && m.ours("listeners", "main_leg", main) {
			walk(main, func(n *yaml.Node) { asked = asked || text(n, "cluster_name") == role })
		}
		w := named(m.want.clusters, role)
		return asked || w != nil && equal(without(w, "load_assignment"), n)
	}
}

// clients makes the user's listeners that lead to models lead to Baton: in each of their filter chains that does.
func (m *merger) clients(o Options) {
	listeners := m.listeners(o.Listener)
	if len(listeners) == 0 {
		return
	}
	cluster := m.cluster(o.Cluster, listeners)
	found := false
	for _, l := range listeners {
		for i, http := range https(l) {
			to := clustersOf(http)
			if slices.Contains(to, "main_leg") || slices.Contains(to, cluster) {
				found = true
				l = m.aloneBelow(m.root, l)
				m.client(l, m.aloneBelow(l, https(l)[i]), cluster)
			}
		}
	}
	if !found && len(m.errs) == 0 {
		m.fail(listeners[0], "no route of listener %s leads to cluster %q", text(listeners[0], "name"), cluster)
	}
}

// client makes the routes to a cluster lead to Baton, and gives their hosts and their listener what they need.
func (m *merger) client(l, http *yaml.Node, cluster string) {
	want := named(m.want.listeners, "client")
	wantHTTP := https(want)[0]
	wantHost := items(wantHTTP, "route_config", "virtual_hosts")[0]
	hosts := m.own(m.own(http, "route_config", yaml.MappingNode), "virtual_hosts", yaml.SequenceNode)
	for _, host := range hosts.Content {
		here := false
		for j, route := range items(host, "routes") {
			to := destinations(route)
			byName := text(route, "route", "cluster") != ""
			switch {
			case byName && to[0] == cluster || slices.Contains(to, "main_leg"):
				here = true
				m.alone(host)
				m.route(m.alone(m.own(host, "routes", yaml.SequenceNode).Content[j]), wantHost, http)
			case !byName && slices.Contains(to, cluster):
				m.fail(route, "this route leads to %s by more than a name (weighted_clusters, cluster_header, …), which would be lost: write it with cluster alone, or as several routes", cluster)
			}
		}
		if here {
			m.must(host, "include_request_attempt_count", get(wantHost, "include_request_attempt_count"))
			m.must(host, "request_body_buffer_limit", get(wantHost, "request_body_buffer_limit"))
			if per := get(wantHost, "typed_per_filter_config"); per != nil {
				advise(m.own(host, "typed_per_filter_config", yaml.MappingNode), "envoy.filters.http.cors", per.Content[1])
			}
		}
	}
	m.http(l, http, want, wantHTTP)
}

// aloneBelow is alone for what is below a node, with all between them.
func (m *merger) aloneBelow(n, below *yaml.Node) *yaml.Node {
	for _, i := range way(n, below) {
		n = m.alone(n.Content[i])
	}
	return n
}

// http gives the listener itself what it needs.
func (m *merger) http(l, http, want, wantHTTP *yaml.Node) {
	m.must(http, "stream_idle_timeout", get(wantHTTP, "stream_idle_timeout"))
	m.strip(http, wantHTTP)
	m.filters(http, get(wantHTTP, "http_filters"))
	advise(http, "tracing", get(wantHTTP, "tracing"))
	if len(clustersOf(http)) > 1 {
		return // other routes of this listener's are not Baton's, and have their own needs
	}
	for i := 0; i < len(wantHTTP.Content); i += 2 {
		switch key := wantHTTP.Content[i].Value; key {
		case "http_filters", "route_config", "early_header_mutation_extensions":
		case "use_remote_address": // says who stands before this Envoy: only its owner knows
		default:
			advise(http, key, wantHTTP.Content[i+1])
		}
	}
	if len(clustersOf(https(l)...)) > 1 {
		return // nor are its other filter chains
	}
	for _, key := range []string{"per_connection_buffer_limit_bytes", "max_connections_to_accept_per_socket_event"} {
		advise(l, key, get(want, key))
	}
}

// filters adds filters of Baton's to the listener, before all others: CORS, where it is asked for.
func (m *merger) filters(http, want *yaml.Node) {
	list := m.own(http, "http_filters", yaml.SequenceNode)
	for _, w := range want.Content {
		name := text(w, "name")
		if name != "envoy.filters.http.router" && named(items(http, "http_filters"), name) == nil {
			list.Content = slices.Insert(list.Content, 0, clone(w))
		}
	}
}

// route makes one route lead to Baton. One that does so by weights keeps them.
func (m *merger) route(route, wantHost, http *yaml.Node) {
	const limit = "request_body_buffer_limit"
	want := items(wantHost, "routes")[0]
	to := m.own(route, "route", yaml.MappingNode)
	for _, key := range []string{"cluster", "timeout", "retry_policy"} {
		if key != "cluster" || get(to, key) != nil {
			m.must(to, key, get(want, "route", key))
		}
	}
	if get(route, limit) != nil { // it goes before the virtual host's
		m.must(route, limit, get(wantHost, limit))
	}
	bounds := []string{"idle_timeout", "max_stream_duration"}
	if streamBound(http) != nil { // which stays for other routes
		bounds = bounds[:1]
		m.must(to, "max_stream_duration", &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{scalar("max_stream_duration"), scalar("0s")}})
	}
	for _, key := range bounds {
		if i := at(to, key); i >= 0 {
			m.tell(to.Content[i], "%s was %s, and is gone now", key, short(to.Content[i]))
			to.Content = slices.Delete(to.Content, i-1, i+1)
		}
	}
	for _, key := range []string{"request_headers_to_add", "response_headers_to_remove"} {
		m.join(route, key, get(want, key).Content)
	}
}

// listeners finds those that clients reach: the one of that name, or those of an earlier merge, or the only one.
func (m *merger) listeners(name string) []*yaml.Node {
	var can, led []*yaml.Node
	names := []string{}
	for _, l := range items(m.root, "static_resources", "listeners") {
		is := text(l, "name")
		if len(https(l)) == 0 || slices.Contains(ownListeners, is) {
			continue
		}
		names = append(names, cmp.Or(is, "(one without a name: give it one)"))
		if is == name || name == "" {
			can = append(can, l)
		}
		if name == "" && slices.Contains(clustersOf(https(l)...), "main_leg") {
			led = append(led, l)
		}
	}
	switch {
	case len(led) > 0:
		return led
	case len(can) == 0:
		m.fail(nil, "there is no listener %q of HTTP: expected one of: %s", name, strings.Join(names, ", "))
	case name == "" && len(can) > 1:
		m.fail(nil, "which listener do clients of models reach? Say --client-listener with one of: %s", strings.Join(names, ", "))
		return nil
	}
	return can
}

// cluster is the one whose routes become Baton's.
func (m *merger) cluster(name string, listeners []*yaml.Node) string {
	var in []*yaml.Node
	for _, l := range listeners {
		in = append(in, https(l)...)
	}
	all := clustersOf(in...)
	rds := slices.IndexFunc(in, func(http *yaml.Node) bool { return get(http, "rds") != nil })
	switch {
	case rds >= 0 && !slices.Contains(all, name) && !slices.Contains(all, "main_leg"):
		m.fail(in[rds], "the listener %s has its routes served from elsewhere (rds): use --parts, and give them there what client.yaml says", text(listeners[0], "name"))
	case name != "" || slices.Contains(all, "main_leg"):
		return name
	case len(all) == 1:
		return all[0]
	case len(all) == 0:
		m.fail(in[0], "no route of this listener leads to a cluster")
	default:
		m.fail(in[0], "which routes lead to models? Say --cluster with the cluster to which they lead now, one of: %s", strings.Join(all, ", "))
	}
	return ""
}

// clustersOf are the clusters to which the routes lead, each once.
func clustersOf(https ...*yaml.Node) (out []string) {
	for _, http := range https {
		for _, host := range items(http, "route_config", "virtual_hosts") {
			for _, r := range items(host, "routes") {
				for _, c := range destinations(r) {
					if !slices.Contains(out, c) {
						out = append(out, c)
					}
				}
			}
		}
	}
	return out
}

// destinations are the clusters of one route. Where a header or an extension names the cluster, that stands for it.
func destinations(route *yaml.Node) (out []string) {
	to := get(route, "route")
	if c := text(to, "cluster"); c != "" {
		return []string{c}
	}
	for _, c := range items(to, "weighted_clusters", "clusters") {
		out = append(out, text(c, "name")+text(c, "cluster_header"))
	}
	for _, by := range []string{"cluster_header", "cluster_specifier_plugin", "inline_cluster_specifier_plugin"} {
		if n := get(to, by); n != nil {
			out = append(out, by+" "+short(n))
		}
	}
	return out
}

// Split gives the parts as files of their own, by name, for an Envoy whose listeners and clusters are served
// from elsewhere: bootstrap.yaml; lds.yaml and cds.yaml as Envoy reads them from files; client.yaml, what your
// own listener and its routes need.
func Split(p envoy.Params) (map[string][]byte, error) {
	want, err := wanted(p)
	if err != nil {
		return nil, err
	}
	client := named(want.listeners, "client")
	http := https(client)[0]
	host := items(http, "route_config", "virtual_hosts")[0]
	out := map[string][]byte{}
	files := map[string]*yaml.Node{
		"bootstrap.yaml": without(want.bootstrap, "static_resources", "admin"),
		"lds.yaml":       resources("listener.v3.Listener", slices.DeleteFunc(slices.Clone(want.listeners), func(l *yaml.Node) bool { return l == client })),
		"cds.yaml":       resources("cluster.v3.Cluster", want.clusters),
		"client.yaml": {Kind: yaml.MappingNode, HeadComment: "# What your own listener needs. Not a file that Envoy reads.", Content: []*yaml.Node{
			scalar("listener"), without(client, "filter_chains", "address", "name"),
			scalar("http_connection_manager"), without(http, "route_config", "stat_prefix"),
			scalar("virtual_host"), without(host, "routes", "name", "domains"),
			scalar("route"), without(items(host, "routes")[0], "match"),
		}},
	}
	for name, n := range files {
		doc := &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{clone(n)}}
		anchored(doc)
		out[name], err = encode(doc)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// resources is what a discovery service answers.
func resources(kind string, list []*yaml.Node) *yaml.Node {
	seq := &yaml.Node{Kind: yaml.SequenceNode}
	for _, n := range list {
		r := clone(n)
		r.Content = append([]*yaml.Node{scalar("@type"), scalar("type.googleapis.com/envoy.config." + kind)}, r.Content...)
		seq.Content = append(seq.Content, r)
	}
	return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{scalar("resources"), seq}}
}
