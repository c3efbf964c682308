package enginesim

import (
	"encoding/binary"
	"slices"
)

// namespace is what separates a prompt's KV blocks from blocks of the same tokens.
type namespace struct {
	adapter string // the LoRA adapter's name
	salt    string // cache_salt
	extra   string // SGLang's extra_key, which events do not have

	seen *gallery // the prompt's pictures; each separates the blocks that contain it
}

// told is the part of the namespace that events, and the hashes in them, depend on.
// SGLang hashes an extra_key only together with an adapter
// (compute_node_event_hash_values, _namespace_seed).
func (ns namespace) told() namespace {
	if ns.adapter == "" {
		ns.extra = ""
	}
	return ns
}

// root is the bytes with which the first block's hash begins; nil for the plain model.
func (ns namespace) root() []byte {
	if ns.seen = nil; ns == (namespace{}) {
		return nil
	}
	var b []byte
	for _, part := range []string{ns.adapter, ns.salt, ns.extra} {
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(part))), part...)
	}
	return b
}

// spaceOf reads the namespace of prompt i of a request, as the engine does.
func (s *Sim) spaceOf(q *genRequest, i int) (namespace, error) {
	if s.engine.space != nil {
		return s.engine.space(q, i)
	}
	return s.cfg.plainSpace(q)
}

// plainSpace is the namespace of a request whose model is the adapter.
func (c Config) plainSpace(q *genRequest) (ns namespace, err error) {
	if ns.seen = q.seen; !isNull(q.cacheSalt) {
		text, ok := unquote(q.cacheSalt)
		if !ok {
			return ns, badRequest("cache_salt: expected a string")
		}
		ns.salt = text
	}
	if slices.Contains(c.Adapters, q.model) {
		ns.adapter = q.model
	}
	return ns, nil
}

// names reports whether a request may name the model: one of the worker's, one of its
// adapters, none, which is the first, or what else the engine understands.
func (s *Sim) names(model string) bool {
	return model == "" || slices.Contains(s.cfg.Models, model) || slices.Contains(s.cfg.Adapters, model) ||
		s.engine.serves != nil && s.engine.serves(model)
}

// validateAdapters reports adapters that no engine would accept.
func (c Config) validateAdapters(bad func(format string, a ...any)) {
	for i, a := range c.Adapters {
		if a == "" || slices.Contains(c.Adapters[:i], a) || slices.Contains(c.Models, a) {
			bad("adapters %q: expected names, each once and none of them a model's", a)
		}
	}
}
