package envoyfile

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parse reads one document, YAML or JSON, whose root is a mapping.
func parse(name string, data []byte) (*yaml.Node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if doc.Kind != yaml.DocumentNode || doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s: expected a mapping, as Envoy's configuration is", name)
	}
	return &doc, nil
}

// real follows an alias.
func real(n *yaml.Node) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// snake gives a field's name as the templates write it. Envoy reads both forms.
func snake(key string) string {
	if strings.ContainsAny(key, "._@- ") {
		return key
	}
	var b strings.Builder
	for _, c := range key {
		if c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}

// at returns the index of a key's value in a mapping, or -1.
func at(m *yaml.Node, key string) int {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key || snake(m.Content[i].Value) == key {
			return i + 1
		}
	}
	return -1
}

// isNull says that nothing is written behind a key. Envoy takes it as if the key were not there.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// get follows keys from a node; nil if there is no such value.
func get(n *yaml.Node, keys ...string) *yaml.Node {
	for _, k := range keys {
		n = real(n)
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		i := at(n, k)
		if i < 0 {
			return nil
		}
		n = n.Content[i]
	}
	n = real(n)
	if n == nil || isNull(n) {
		return nil
	}
	return n
}

// text is the scalar that keys lead to, or "".
func text(n *yaml.Node, keys ...string) string {
	n = get(n, keys...)
	if n != nil && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

// items are the elements of the list that keys lead to.
func items(n *yaml.Node, keys ...string) []*yaml.Node {
	n = get(n, keys...)
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	out := make([]*yaml.Node, len(n.Content))
	for i, c := range n.Content {
		out[i] = real(c)
	}
	return out
}

// set gives a key of a mapping a value.
func set(m *yaml.Node, key string, value *yaml.Node) {
	if i := at(m, key); i >= 0 {
		m.Content[i] = value
		return
	}
	m.Content = append(m.Content, scalar(key), value)
}

func scalar(value string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: value} }

// copied is clone, without the anchors: the original has them.
func copied(n *yaml.Node) *yaml.Node {
	c := clone(n)
	walk(c, func(n *yaml.Node) { n.Anchor = "" })
	return c
}

// way is how to come from a node to one below it, by indices; nil if there is none.
func way(n, to *yaml.Node) []int {
	n = real(n)
	if n == to {
		return []int{}
	}
	for i, c := range n.Content {
		if w := way(c, to); w != nil {
			return append([]int{i}, w...)
		}
	}
	return nil
}

// clone copies a node with all below it. Aliases still lead to the originals.
func clone(n *yaml.Node) *yaml.Node {
	c := *n
	c.Content = make([]*yaml.Node, len(n.Content))
	for i, below := range n.Content {
		c.Content[i] = clone(below)
	}
	return &c
}

// walk visits a node and all below it in the order in which they are written.
func walk(n *yaml.Node, visit func(*yaml.Node)) {
	visit(n)
	for _, c := range n.Content {
		walk(c, visit)
	}
}

// anchored makes each alias follow its anchor: parts of a document that are moved may leave theirs behind. An
// alias whose anchor is not written before it becomes what it stands for.
func anchored(doc *yaml.Node) {
	written := map[string]bool{}
	walk(doc, func(n *yaml.Node) {
		if n.Kind == yaml.AliasNode && !written[n.Value] {
			*n = *clone(n.Alias)
		}
		if n.Anchor != "" {
			written[n.Anchor] = true
		}
	})
}

// unfold writes a mapping or list in braces on lines of its own if something in it has a comment: in braces there is no
// room for one.
func unfold(n *yaml.Node) (comment bool) {
	for _, c := range n.Content {
		comment = unfold(c) || comment
	}
	if comment {
		n.Style &^= yaml.FlowStyle
	}
	return comment || n.HeadComment != "" || n.LineComment != "" || n.FootComment != ""
}
