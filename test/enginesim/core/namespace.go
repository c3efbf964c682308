package core

import (
	"encoding/binary"
	"slices"
)

// Namespace is what separates a prompt's KV blocks from blocks of the same tokens.
type Namespace struct {
	Adapter string // the LoRA adapter's name
	Salt    string // cache_salt
	Extra   string // SGLang's extra_key, which events do not have

	Seen *Gallery // the prompt's pictures; each separates the blocks that contain it
}

// told is the part of the namespace that events, and the hashes in them, depend on.
// SGLang hashes an extra_key only together with an adapter
// (compute_node_event_hash_values, _namespace_seed).
func (ns Namespace) told() Namespace {
	if ns.Adapter == "" {
		ns.Extra = ""
	}
	return ns
}

// root is the bytes with which the first block's hash begins; nil for the plain model.
func (ns Namespace) root() []byte {
	ns.Seen = nil
	if ns == (Namespace{}) {
		return nil
	}
	var b []byte
	for _, part := range []string{ns.Adapter, ns.Salt, ns.Extra} {
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(part))), part...)
	}
	return b
}

// spaceOf reads the namespace of prompt i of a request, as the engine does.
func (s *Sim) spaceOf(q *GenRequest, i int) (Namespace, error) {
	if s.engine.Space != nil {
		return s.engine.Space(q, i)
	}
	return s.cfg.PlainSpace(q)
}

// PlainSpace is the namespace of a request whose model is the adapter.
func (c Config) PlainSpace(q *GenRequest) (ns Namespace, err error) {
	ns.Seen = q.Seen
	if !IsNull(q.CacheSalt) {
		text, ok := Unquote(q.CacheSalt)
		if !ok {
			return ns, BadRequest("cache_salt: expected a string")
		}
		ns.Salt = text
	}
	if slices.Contains(c.Adapters, q.Model) {
		ns.Adapter = q.Model
	}
	return ns, nil
}

// Serves reports whether a request may name the model: one of the worker's, one of its
// adapters, none, which is the first, or what else the engine understands.
func (s *Sim) Serves(model string) bool {
	return model == "" || slices.Contains(s.cfg.Models, model) || slices.Contains(s.cfg.Adapters, model) ||
		s.engine.Serves != nil && s.engine.Serves(model)
}

// validateAdapters reports adapters that no engine would accept.
func (c Config) validateAdapters(bad func(format string, a ...any)) {
	for i, a := range c.Adapters {
		if a == "" || slices.Contains(c.Adapters[:i], a) || slices.Contains(c.Models, a) {
			bad("adapters %q: expected names, each once and none of them a model's", a)
		}
	}
}
