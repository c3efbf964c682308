package strictyaml

import "github.com/goccy/go-yaml/ast"

// Part is the value of a key, or an item of a list, that is read later and by itself: see
// [Document.ReadPart].
type Part struct{ node ast.Node }

// Line is the line on which the part begins.
func (p Part) Line() int { return lineOf(p.node) }

// IsMapping reports whether the part is a mapping.
func (p Part) IsMapping() bool {
	_, ok := p.node.(*ast.MappingNode)
	return ok
}

// Scalar returns the text of a scalar at a key of the mapping that p is, as it was written
// but without quotes; "" where something else stands. False: it has no such key, or no value.
func (p Part) Scalar(key string) (string, bool) {
	m, ok := p.node.(*ast.MappingNode)
	if !ok {
		return "", false
	}
	for _, kv := range m.Values {
		if _, null := kv.Value.(*ast.NullNode); !null && textOf(kv.Key) == key {
			if compound(kv.Value) {
				return "", true
			}
			return textOf(kv.Value), true
		}
	}
	return "", false
}

// Filled reports whether there is a value.
func (p Part) Filled() bool { return p.node != nil && !isNull(p.node) }

// Texts returns the text of each scalar in the part, without quotes, also of keys.
func (p Part) Texts() (out []string) {
	if p.node == nil {
		return nil
	}
	for _, n := range ast.Filter(ast.StringType, p.node) {
		out = append(out, textOf(n))
	}
	return out
}
