package envoyfile

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// difference is a place at which a configuration is not as the templates have it.
type difference struct {
	place string
	line  int    // of what is there, or of what it would be in; 0 if not known
	is    string // "" if nothing is there
	want  string
}

// comparer compares what is there with what must be. What is there may have more, and other names.
type comparer struct {
	names map[string]string // of clusters and listeners: what they are called there → as the templates call them
	found []difference
}

// free are fields whose values are the user's own.
var free = map[string]bool{
	"stat_prefix": true, "mode": true, "name": true, "random_sampling": true, "max_heap_size_bytes": true,
	"max_active_downstream_connections": true, "buffer_size_bytes": true, "buffer_flush_interval": true, "vm_id": true, "root_id": true,
	"service_name": true, "base_interval": true, "max_interval": true, "num_retries": true, "delayed_close_timeout": true,
	"buffer_size_kb": true, "max_age": true, "message": true, "access_log_flush_interval": true, "priority": true, "update_merge_window": true,
}

// least are fields of which more is as good. A duration of 0s is one without end.
var least = map[string]bool{
	"max_headers_count": true, "max_request_headers_kb": true, "request_body_buffer_limit": true, "per_connection_buffer_limit_bytes": true,
	"max_connections": true, "max_pending_requests": true, "max_requests": true, "max_retries": true, "timeout": true,
	"stream_idle_timeout": true, "message_timeout": true, "max_message_timeout": true, "connect_timeout": true,
	"max_outbound_frames": true, "max_outbound_control_frames": true, "initial_stream_window_size": true, "initial_connection_window_size": true,
	"max_connections_to_accept_per_socket_event": true,
}

// equal says that nothing differs.
func equal(want, is *yaml.Node) bool {
	c := comparer{}
	c.compare("x", want, is, 0)
	return len(c.found) == 0
}

// compare compares one value. place ends with its key.
func (c *comparer) compare(place string, want, is *yaml.Node, line int) {
	want, is = real(want), real(is)
	if is == nil || isNull(is) && !isNull(want) {
		if want.Kind == yaml.ScalarNode && unsaid(place[strings.LastIndexByte(place, '/')+1:], want.Value) {
			return
		}
		if want.Kind == yaml.MappingNode && len(want.Content) > 0 && !whole(want) {
			for i := 0; i < len(want.Content); i += 2 { // its parts may be of several owners
				c.compare(place+"/"+want.Content[i].Value, want.Content[i+1], nil, line)
			}
			return
		}
		c.found = append(c.found, difference{place: place, line: line, want: short(want)})
		return
	}
	line = cmp.Or(is.Line, line)
	switch {
	case want.Kind == yaml.MappingNode && is.Kind == yaml.MappingNode:
		for i := 0; i < len(want.Content); i += 2 {
			key := want.Content[i].Value
			var have *yaml.Node // and not get: null is a value in an answer of JSON
			if j := at(is, key); j >= 0 {
				have = is.Content[j]
			}
			c.compare(place+"/"+key, want.Content[i+1], have, line)
		}
	case want.Kind == yaml.SequenceNode && is.Kind == yaml.SequenceNode:
		c.list(place, items(want), items(is), line)
	case want.Kind == yaml.ScalarNode && is.Kind == yaml.ScalarNode:
		if !c.same(place[strings.LastIndexByte(place, '/')+1:], want.Value, is.Value) {
			c.found = append(c.found, difference{place, line, is.Value, want.Value})
		}
	default:
		c.found = append(c.found, difference{place, line, short(is), short(want)})
	}
}

// unsaid says that a value is what Envoy takes where nothing is said. What Envoy tells of itself leaves it out.
func unsaid(key, want string) bool {
	switch want {
	case "false":
		return key != "successful_active_health_check_uneject_host"
	case "NONE", "STATIC", "EQ", "DEFAULT", "STRING":
		return true
	case "0":
		return key == "start"
	}
	return key == "preserve_external_request_id" // an internal listener keeps the id in any case
}

// whole says that a mapping is one thing: an element with a name or a type.
func whole(n *yaml.Node) bool { return get(n, "@type") != nil || get(n, "name") != nil }

// list compares lists. An element with a name is found by it; another one is whatever fits best. What
// is found must be in the same order.
func (c *comparer) list(place string, want, is []*yaml.Node, line int) {
	last, taken := -1, map[int]bool{}
	for i, w := range want {
		name := text(w, "name")
		at := place + "/" + cmp.Or(name, strconv.Itoa(i))
		best, fewest := -1, []difference(nil)
		for j, have := range is {
			if taken[j] || name != "" && text(have, "name") != name {
				continue
			}
			try := comparer{names: c.names}
			try.compare(at, w, have, line)
			if best < 0 || len(try.found) < len(fewest) {
				best, fewest = j, try.found
			}
		}
		scalar := w.Kind == yaml.ScalarNode || get(w, "remove") != nil || get(w, "remove_on_match") != nil || get(w, "header") != nil
		if best < 0 || name == "" && scalar && len(fewest) > 0 {
			c.found = append(c.found, difference{place: at, line: line, want: short(w)})
			continue
		}
		taken[best] = true
		c.found = append(c.found, fewest...)
		if ordered(place) && best < last {
			c.found = append(c.found, difference{at, is[best].Line, "after another filter", "before it"})
		}
		last = max(last, best)
	}
}

// ordered says that a list's order has a meaning.
func ordered(place string) bool {
	return strings.HasSuffix(place, "/http_filters") || strings.HasSuffix(place, "/routes") || strings.HasSuffix(place, "/mappers")
}

func (c *comparer) same(key, want, is string) bool {
	if want == is || free[key] {
		return true
	}
	if key == "code" && want == "511" && is == "NetworkAuthenticationRequired" { // as Envoy tells it
		return true
	}
	if as, ok := c.names[is]; ok && as == want {
		return true
	}
	if a, err := time.ParseDuration(want); err == nil {
		b, err := time.ParseDuration(is)
		return err == nil && (a == b || least[key] && a > 0 && (b == 0 || b > a))
	}
	a, err := strconv.ParseFloat(want, 64)
	if err != nil {
		return strings.EqualFold(want, is) && (want == "true" || want == "false")
	}
	b, err := strconv.ParseFloat(is, 64)
	return err == nil && (a == b || least[key] && b > a)
}

// short shows a value on one line.
func short(n *yaml.Node) string {
	const most = 60
	n = real(n)
	s := cmp.Or(n.Value, text(n, "name"), text(n, "remove"), text(n, "header", "key"), text(n, "remove_on_match", "key_matcher", "prefix"))
	switch {
	case s != "" || n.Kind == yaml.ScalarNode:
	case n.Kind == yaml.MappingNode && len(n.Content) > 0:
		keys := []string{}
		for i := 0; i < len(n.Content); i += 2 {
			keys = append(keys, n.Content[i].Value)
		}
		s = "{" + strings.Join(keys, ", ") + "}"
	default:
		s = fmt.Sprintf("a list of %d", len(n.Content))
	}
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
