package record

import (
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const kvTransferKeys = "domain, enforcement, weight"

func (r *reader) kvTransferField(k *worker.KVTransfer, key string, v ast.Node) bool {
	switch key {
	case "domain":
		k.Domain = r.text(v)
	case "enforcement":
		k.Enforcement = parsed(r, v, worker.ParseEnforcement)
	case "weight":
		k.Weight = r.share(v)
	default:
		return false
	}
	return true
}

// pairs reads a mapping of texts to texts. A domain without a value gets an empty
// value, so that it is known that the domain was declared.
func (r *reader) pairs(v ast.Node) map[string]string {
	m, ok := v.(*ast.MappingNode)
	if !ok {
		r.bad(v, ": %s: expected a mapping of names to values", describe(v))
		return nil
	}
	key := r.key
	out := make(map[string]string, len(m.Values))
	for _, kv := range m.Values {
		k, ok := kv.Key.(*ast.StringNode)
		if !ok {
			r.fault(kv.Key, "%s: %s: key %q: expected text, in quotes if it looks like something else", r.what, key, kv.Key.String())
			continue
		}
		if _, null := kv.Value.(*ast.NullNode); null {
			out[k.Value] = ""
			continue
		}
		r.key = key + "." + short(k.Value)
		out[k.Value] = r.text(kv.Value)
	}
	r.key = key
	if len(out) == 0 {
		return nil
	}
	return out
}

// share reads a plain decimal number from 0 to 1.
func (r *reader) share(v ast.Node) float64 {
	switch v.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		if f, err := strconv.ParseFloat(v.GetToken().Value, 64); err == nil && f >= 0 && f <= 1 {
			return f
		}
	}
	r.plain(v, "a number from 0 to 1")
	return 0
}
