package route

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engines name LoRA adapters in two ways:
//
//   - vLLM by the model alone, which is then the adapter's name; it reads neither
//     lora_path nor extra_key;
//   - SGLang by "base:adapter" as the model, else by lora_path. To it an adapter's name
//     alone is a name like any other, and the base model answers
//     (OpenAIServingBase._resolve_lora_path, 0.5.23).

// home is who serves a request, and the adapter that it names where its model is not one.
type home struct {
	pool    *worker.Pool
	adapter string // as SGLang is told it; "": none
}

// homeOf finds the pool of the model that a request names, or of the only model where it
// names none. It has none where the refusal says why.
func (rt *Router) homeOf(q *Question) (home, *Refusal) {
	r, world, now := &q.req, q.world, q.now
	key := worker.Key{Model: string(r.Scan.Model), Namespace: rt.cfg.Policy.Namespace}
	if key.Model == "" { // /generate names no model: right where there is one
		key = rt.onlyModel(world, now)
		if key.Model == "" {
			return home{}, badMember(openai.Error{Kind: openai.MissingField, Field: "model"})
		}
	}
	h := home{pool: world.Pool(key)}
	departed := h.pool == nil && world.Departed(key, now)
	// Its native path reads no model.
	for at := len(key.Model); h.pool == nil && r.Scan.Path != openai.Generate; {
		at = strings.LastIndexByte(key.Model[:at], ':')
		if at < 0 {
			break
		}
		base := worker.Key{Model: strings.TrimSpace(key.Model[:at]), Namespace: key.Namespace}
		departed = departed || world.Departed(base, now)
		if p := world.Pool(base); p != nil && every(p, ofSGLang) {
			h.pool, h.adapter = p, strings.TrimSpace(key.Model[at+1:])
		}
	}
	switch {
	case h.pool == nil && departed:
		return h, refuse(NoWorker)
	case h.pool == nil:
		return h, &Refusal{Reason: UnknownModel, Model: key.Model}
	case h.adapter == "" && r.Scan.LoRA != nil && every(h.pool, ofSGLang):
		h.adapter = firstText(r, openai.LoRAPath, r.Scan.LoRA)
	}
	if h.adapter == "" {
		return h, nil
	}
	// Of the base's workers only those serve it that have loaded it. Where none says so,
	// one may still load it when it is asked.
	base := h.pool.Key.Model
	own := world.Pool(worker.Key{Model: h.adapter, Namespace: key.Namespace})
	if own != nil && every(own, func(w *worker.Worker) bool {
		return slices.Contains(w.Adapters, h.adapter) && slices.Contains(w.Models, base)
	}) {
		h.pool = own
	}
	return h, nil
}

// saltOf returns what separates the request's KV blocks from those of equal tokens at
// lead's engine.
func (h *home) saltOf(lead *worker.Worker, r *Request) kvindex.Salt {
	s := kvindex.Salt{CacheSalt: firstText(r, openai.CacheSalt, r.Scan.CacheSalt)}
	if !ofSGLang(lead) {
		if model := h.pool.Key.Model; slices.Contains(lead.Adapters, model) {
			s.LoRA = model
		}
		return s
	}
	s.LoRA = h.adapter
	if r.Scan.ExtraKey != nil {
		// SGLang keeps blocks of another extra_key apart and tells it in no event. So they
		// match what was routed, and no event's blocks.
		s.CacheSalt += "\x00extra_key\x00" + firstText(r, openai.ExtraKey, r.Scan.ExtraKey)
	}
	return s
}

func ofSGLang(w *worker.Worker) bool { return w.Engine == worker.SGLang }

// every reports whether something holds of each worker of a pool.
func every(p *worker.Pool, holds func(w *worker.Worker) bool) bool {
	for _, ws := range [...][]*worker.Worker{p.Prefill, p.Decode, p.Aggregated} {
		for _, w := range ws {
			if !holds(w) {
				return false
			}
		}
	}
	return true
}

// adapterAlone reports whether the pool's name is an adapter's at all of its workers.
func adapterAlone(p *worker.Pool) bool {
	return every(p, func(w *worker.Worker) bool { return slices.Contains(w.Adapters, p.Key.Model) })
}

// firstText is what a member says of the first prompt: given is its text. It may be a
// list with an element for each prompt.
func firstText(r *Request, f openai.Field, given []byte) string {
	s, body := r.Scan.Value(f), r.Body
	if given == nil || s.End == 0 || body[s.Start] != '[' {
		return string(given)
	}
	first, found := "", false
	openai.EachElement(body, s, func(v openai.Span) {
		if !found {
			_ = json.Unmarshal(v.Of(body), &first) // null: none; what else it may be the engine refuses
		}
		found = true
	})
	return first
}
