package record

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed-60ae5743/baton/internal/strictyaml"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// workerField reads one key of a worker. False means that there is no such key.
func (r *reader) workerField(w *worker.Worker, key string, v ast.Node) bool {
	switch key {
	case "id":
		w.ID = r.id(v)
	case "role":
		w.Role = parsed(r, v, worker.ParseRole)
	case "engine":
		w.Engine = parsed(r, v, worker.ParseEngine)
	case "models":
		w.Models = r.texts(v)
	case "namespace":
		w.Namespace = r.text(v)
	case "deployment":
		w.Deployment = r.text(v)
	case "endpoint":
		w.Endpoint = parsed(r, v, worker.ParseEndpoint)
	case "dp_size":
		w.DPSize = uint32(r.number(v, 32))
	case "port_per_rank":
		w.PortPerRank = r.flag(v)
	case "block_size":
		w.BlockSize = uint32(r.number(v, 32))
	case "capacity_blocks":
		w.CapacityBlocks = r.number(v, 64)
	case "max_model_len":
		w.MaxModelLen = uint32(r.number(v, 32))
	case "eagle":
		w.Eagle = r.flag(v)
	case "bootstrap":
		r.inner(v, bootstrapKeys, func(k string, v ast.Node) bool { return r.bootstrapField(&w.Bootstrap, k, v) })
	case "kv_events":
		r.inner(v, kvEventsKeys, func(k string, v ast.Node) bool { return r.kvEventsField(&w.KVEvents, k, v) })
	case "model_files":
		r.inner(v, modelFilesKeys, func(k string, v ast.Node) bool { return r.modelFilesField(&w.ModelFiles, k, v) })
	case "adapters":
		if w.Adapters = r.texts(v); len(w.Adapters) == 0 {
			w.Adapters = nil // as if the key were absent
		}
	case "taints":
		if w.Taints = r.texts(v); len(w.Taints) == 0 {
			w.Taints = nil // as if the key were absent
		}
	case "topology_domains":
		w.TopologyDomains = r.pairs(v)
	case "kv_transfer":
		w.KVTransfer.Enforcement = worker.Required
		r.inner(v, kvTransferKeys, func(k string, v ast.Node) bool { return r.kvTransferField(&w.KVTransfer, k, v) })
	case "accepts_aggregated":
		w.AcceptsAggregated = r.flag(v)
	case "header_overrides":
		w.HeaderOverrides = r.flag(v)
	case "draining":
		w.Draining = r.flag(v)
	case "fronted":
		w.Fronted = r.flag(v)
	default:
		return r.askedField(w, key, v)
	}
	return true
}

// askedField reads one key of a worker of which not all facts are known.
func (r *reader) askedField(w *worker.Worker, key string, v ast.Node) bool {
	switch key {
	case "facts_unknown":
		w.FactsUnknown = r.flag(v)
	case "engine_rank":
		w.EngineRank = worker.DPRank(r.number(v, 32))
	case "facts":
		r.asked = r.flag(v)
	case "facts_port":
		w.FactsPort = uint16(r.number(v, 16))
	default:
		return false
	}
	return true
}

func (r *reader) bootstrapField(b *worker.Bootstrap, key string, v ast.Node) bool {
	switch key {
	case "host":
		b.Host = r.host(v)
	case "port":
		b.Port = uint16(r.number(v, 16))
	case "engine_ids":
		if b.EngineIDs = r.texts(v); len(b.EngineIDs) == 0 {
			b.EngineIDs = nil // as if the key were absent
		}
	default:
		return false
	}
	return true
}

func (r *reader) kvEventsField(k *worker.KVEvents, key string, v ast.Node) bool {
	switch key {
	case "host":
		k.Host = r.host(v)
	case "port":
		k.Port = uint16(r.number(v, 16))
	case "replay_port":
		k.ReplayPort = uint16(r.number(v, 16))
	case "topic":
		k.Topic = r.text(v)
	default:
		return false
	}
	return true
}

func (r *reader) modelFilesField(m *worker.ModelFiles, key string, v ast.Node) bool {
	switch key {
	case "digest":
		m.Digest = r.text(v)
	case "port":
		m.Port = uint16(r.number(v, 16))
	default:
		return false
	}
	return true
}

// parsed reads a text and passes it to parse. An error of parse becomes a fault of the
// line.
func parsed[T any](r *reader, v ast.Node, parse func(string) (T, error)) T {
	var zero T
	before := len(r.faults) + r.more
	s := r.text(v)
	if len(r.faults)+r.more > before {
		return zero
	}
	t, err := parse(s)
	if err != nil {
		// The text of the error names the key itself.
		r.fault(v, "%s: %s%s", r.what, r.in, strings.TrimPrefix(err.Error(), "worker: "))
		return zero
	}
	return t
}

// text reads a string. It refuses numbers and booleans: `topic: 0x10` may mean a number
// or a text, so a text like that has to be quoted.
func (r *reader) text(v ast.Node) string {
	switch n := v.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		if n.Value != nil {
			return n.Value.Value
		}
		return ""
	default:
		r.bad(v, ": %s: expected text, in quotes if it looks like something else", describe(v))
		return ""
	}
}

func (r *reader) texts(v ast.Node) []string {
	seq, ok := v.(*ast.SequenceNode)
	if !ok {
		r.bad(v, ": %s: expected a list of names", describe(v))
		return nil
	}
	ss := make([]string, 0, len(seq.Values))
	key := r.key
	for i, n := range seq.Values {
		r.key = key + "[" + strconv.Itoa(i) + "]"
		ss = append(ss, r.text(n))
	}
	r.key = key
	return ss
}

// number reads a plain decimal of at most the given bits. It reads the token and not
// the parser's value, so that no number passes through a float, and no other notation
// is read as a decimal.
func (r *reader) number(v ast.Node, bits int) uint64 {
	n, ok := v.(*ast.IntegerNode)
	if ok {
		if x, ok := decimal(n.GetToken().Value, bits); ok {
			return x
		}
	}
	kind := "a decimal number" // 0x10 is a number as well
	if strictyaml.Quoted(v) {
		kind = "a number"
	}
	r.plain(v, fmt.Sprintf("%s from 0 to %d", kind, uint64(math.MaxUint64)>>(64-bits)))
	return 0
}

func decimal(s string, bits int) (uint64, bool) {
	if len(s) > 1 && s[0] == '0' {
		return 0, false // some readers of YAML read it as octal
	}
	x, err := strconv.ParseUint(s, 10, bits)
	return x, err == nil
}

// id reads an instance id as a number or a string.
func (r *reader) id(v ast.Node) worker.ID {
	id, ok := readID(v)
	if !ok {
		r.bad(v, " %s: expected a decimal number from 1 to %d", describe(v), uint64(math.MaxUint64))
	}
	return id
}

func readID(v ast.Node) (worker.ID, bool) {
	var s string
	switch n := v.(type) {
	case *ast.IntegerNode:
		s = n.GetToken().Value
	case *ast.StringNode:
		s = n.Value
	}
	if x, ok := decimal(s, 64); ok && x != 0 {
		return worker.ID(x), true
	}
	return 0, false
}

func (r *reader) flag(v ast.Node) bool {
	if n, ok := v.(*ast.BoolNode); ok {
		return n.Value
	}
	r.plain(v, "true or false")
	return false
}

// plain adds a fault of a value that must be a plain value and not a text.
func (r *reader) plain(v ast.Node, expected string) {
	if strictyaml.Quoted(v) {
		r.bad(v, ": text in quotes: expected %s, without quotes", expected)
		return
	}
	r.bad(v, ": %s: expected %s", describe(v), expected)
}

// describe names a value for an error, in a few words. Only text is in quotes: a number
// in quotes would look like text.
func describe(v ast.Node) string {
	switch n := v.(type) {
	case *ast.MappingNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.AliasNode:
		return "an alias"
	case *ast.AnchorNode:
		return "an anchor"
	case *ast.TagNode:
		return "a tag"
	case *ast.NullNode:
		return "no value"
	case *ast.StringNode:
		return strconv.Quote(short(n.Value))
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return short(v.GetToken().Value)
	default:
		if tk := v.GetToken(); tk != nil {
			return strconv.Quote(short(tk.Value))
		}
		return "this value"
	}
}

func short(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
