package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// alone returns a shipped configuration without the plugin: the same
// listeners, hops, limits and mirror, no ext_proc filter, and fixed workers. It
// is derived, not written, so that the baseline cannot drift from what is
// shipped; what it does not find where it must be is an error. The plugin's
// cluster stays, for what refers to it, and nothing uses it.
//
// NB: the text is edited, not a tree, because anchors within anchors, which
// the shipped file has and Envoy reads, come out as null from the YAML library.
func alone(shipped []byte, decode, prefill netip.AddrPort) ([]byte, error) {
	d := &document{lines: strings.Split(string(shipped), "\n")}
	filters := d.cut("- name: envoy.filters.http.ext_proc")
	looks := d.cut("- name: baton.first_token") + d.cut("- name: baton.usage") // nor does anybody read answers
	routes := d.cut("typed_per_filter_config:")                                // of filters that are gone
	d.cut("access_log:")                                                       // it reports to the plugin
	mirrors := d.replace("- cluster_header: x-prefill-cluster", "- cluster: prefill_leg")
	clusters := d.fix("decode", decode) + d.fix("prefill", prefill)
	if filters != 3 || looks != 2 || routes < 1 || routes > 3 || mirrors != 1 || clusters != 2 {
		return nil, fmt.Errorf("alone: expected 3 ext_proc filters, 1 of first events, 1 of usage, 1 to 3 routes with settings of theirs, 1 mirror and 2 worker clusters in the shipped configuration, found %d, %d, %d, %d and %d",
			filters, looks, routes, mirrors, clusters)
	}
	return []byte(strings.Join(d.lines, "\n")), nil
}

// document is YAML in block style, by lines.
type document struct{ lines []string }

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// block returns the end of the node that begins at line i: a list's item, or
// a key with its value, which may be a list that stands no deeper than the key.
func (d *document) block(i int) int {
	depth := indent(d.lines[i])
	item := strings.HasPrefix(d.lines[i][depth:], "- ")
	for end := i + 1; end < len(d.lines); end++ {
		line := d.lines[end]
		deep := indent(line)
		switch {
		case deep == len(line): // empty
		case deep > depth:
		case deep == depth && !item && strings.HasPrefix(line[deep:], "- "):
		default:
			return end
		}
	}
	return len(d.lines)
}

// cut removes every node whose first line begins so, and returns how many
// there were.
func (d *document) cut(first string) int {
	n := 0
	for i := 0; i < len(d.lines); {
		if strings.HasPrefix(strings.TrimLeft(d.lines[i], " "), first) {
			d.lines = append(d.lines[:i], d.lines[d.block(i):]...)
			n++
			continue
		}
		i++
	}
	return n
}

// replace puts another line for every one that reads so, at its place.
func (d *document) replace(line, other string) int {
	n := 0
	for i, l := range d.lines {
		if strings.TrimSpace(l) == line {
			d.lines[i] = l[:indent(l)] + other
			n++
		}
	}
	return n
}

// fix gives the worker cluster of that name a fixed address.
func (d *document) fix(name string, at netip.AddrPort) int {
	n := 0
	for i := 0; i < len(d.lines); i++ {
		if strings.TrimSpace(d.lines[i]) != "- name: "+name {
			continue
		}
		pad := strings.Repeat(" ", indent(d.lines[i])+2)
		node := []string{
			d.lines[i],
			pad + "type: STATIC",
			pad + fmt.Sprintf("load_assignment: {cluster_name: %s, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %s, port_value: %d}}}}]}]}",
				name, at.Addr(), at.Port()),
		}
		end := d.block(i)
		for _, line := range d.lines[i+1 : end] {
			switch key, _, _ := strings.Cut(strings.TrimSpace(line), ":"); {
			case key == "type" && strings.Contains(line, "ORIGINAL_DST"):
				n++
			case key == "lb_policy", key == "original_dst_lb_config":
			default:
				node = append(node, line)
			}
		}
		d.lines = append(append(append([]string{}, d.lines[:i]...), node...), d.lines[end:]...)
	}
	return n
}
