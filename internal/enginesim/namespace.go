package enginesim

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
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
func (s *Sim) spaceOf(q *genRequest, i int) (ns namespace, err error) {
	sglang := s.cfg.Engine == worker.SGLang
	of := func(name string, v []byte) string {
		if err != nil || isNull(v) {
			return ""
		}
		text, ok := unquote(v)
		if ok {
			return text
		}
		if v[0] != '[' || !sglang {
			err = badRequest("%s: expected a string", name)
			return ""
		}
		var all []string
		_ = eachElem(v, func(e []byte) error { // null: none
			text, _ := unquote(e)
			all = append(all, text)
			return nil
		})
		if len(all) != len(q.prompts) {
			err = badRequest("The length of %s should be equal to the batch size.", name)
			return ""
		}
		return all[i]
	}
	ns.salt, ns.seen = of("cache_salt", q.cacheSalt), q.seen
	switch {
	case sglang:
		ns.extra = of("extra_key", q.extraKey)
		if ns.adapter = s.adapterInModel(q); ns.adapter == "" {
			ns.adapter = of("lora_path", q.loraPath)
		}
	case slices.Contains(s.cfg.Adapters, q.model):
		ns.adapter = q.model
	}
	switch {
	case err != nil:
		return ns, err
	case s.vllm() && !isNull(q.cacheSalt) && (ns.salt == "" || len(ns.salt) > 128):
		return ns, badRequest("Parameter 'cache_salt' must be a non-empty string of at most 128 characters.")
	case ns.adapter != "" && len(s.cfg.Adapters) == 0:
		return ns, badRequest("LoRA adapter '%s' was requested, but LoRA is not enabled.", ns.adapter)
	case ns.adapter != "" && !slices.Contains(s.cfg.Adapters, ns.adapter):
		return ns, badRequest("Got LoRA adapter that has never been loaded: %s", ns.adapter)
	}
	return ns, nil
}

// adapterInModel returns the adapter in SGLang's "base:adapter", or ""
// (OpenAIServingBase._parse_model_parameter).
func (s *Sim) adapterInModel(q *genRequest) string {
	if q.api == apiGenerate || slices.Contains(s.cfg.Models, q.model) {
		return ""
	}
	if adapter, ok := strings.CutPrefix(q.model, s.cfg.Models[0]+":"); ok {
		return strings.TrimSpace(adapter)
	}
	_, adapter, _ := strings.Cut(q.model, ":")
	return strings.TrimSpace(adapter)
}

// names reports whether the worker serves the model that the request names: its own names
// and its adapters', and at SGLang also "base:adapter" and "default". A request that names none
// is for the first.
func (s *Sim) names(q *genRequest) bool {
	m := q.model
	if m == "default" && s.cfg.Engine == worker.SGLang {
		return true
	}
	if s.cfg.Engine == worker.SGLang {
		if base, adapter, ok := strings.Cut(m, ":"); ok && slices.Contains(s.cfg.Adapters, strings.TrimSpace(adapter)) {
			m = strings.TrimSpace(base)
		}
	}
	return m == "" || slices.Contains(s.cfg.Models, m) || slices.Contains(s.cfg.Adapters, m)
}

// loraID is vLLM's number of an adapter, counted from 1.
func (s *Sim) loraID(adapter string) int { return slices.Index(s.cfg.Adapters, adapter) + 1 }

// validateAdapters reports adapters that no engine would accept.
func (c Config) validateAdapters(bad func(format string, a ...any)) {
	for i, a := range c.Adapters {
		if a == "" || slices.Contains(c.Adapters[:i], a) || slices.Contains(c.Models, a) {
			bad("adapters %q: expected names, each once and none of them a model's", a)
		}
	}
	if len(c.Adapters) > 0 && c.Engine == worker.TensorRTLLM {
		bad("adapters: none of trtllm are simulated")
	}
}
