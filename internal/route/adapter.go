package route

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Engines name LoRA adapters in two ways:
//
//   - vLLM takes the adapter's name as the model; it reads neither lora_path nor
//     extra_key;
//   - SGLang takes "base:adapter" as the model, or the adapter from lora_path. SGLang
//     reads an adapter's name alone as any other name, and the base model answers
//     (OpenAIServingBase._resolve_lora_path, 0.5.23).

// home is the pool that serves a request, and the LoRA adapter that the request names
// beside the pool's model.
type home struct {
	pool    *worker.Pool
	adapter string // only for SGLang; "": none
}

// maxCuts is how many colons of a model's name may be the one in front of an adapter, from the right. The name is
// the client's, and each cut reads all that is left of it: without a bound a name of colons alone takes hours.
const maxCuts = 16

// homeOf finds the pool of the model that a request names, or of the only model if the
// request names none. A worker whose models are not known has a pool of its own: a request
// that names such a worker is for that pool, and so is, if PassUnknown is set, one for a
// model that no worker is known to serve. If it is not set, such a model may get a worker
// as soon as the workers tell theirs: that is no unknown model. The home has no pool if
// there is a refusal.
func (m *models) homeOf(q *Question) (home, *Refusal) {
	r, world, now := &q.req, q.world, q.now
	key, untold := m.keyOf(q)
	switch {
	case untold:
		return home{pool: m.untold(world)}, nil
	case key.Model == "":
		return home{}, badMember(openai.Error{Kind: openai.MissingField, Field: "model"})
	}
	h := home{pool: world.Pool(key)}
	departed := h.pool == nil && world.Departed(key, now)
	// SGLang's native path /generate reads no model.
	for at, cuts := len(key.Model), 0; h.pool == nil && r.Scan.Path != openai.Generate && cuts < maxCuts; cuts++ {
		at = strings.LastIndexByte(key.Model[:at], ':')
		if at < 0 {
			break
		}
		base := worker.Key{Model: strings.TrimSpace(key.Model[:at]), Namespace: key.Namespace}
		departed = departed || world.Departed(base, now)
		if p := world.Pool(base); p != nil && every(p, namesAdapter) {
			h.pool, h.adapter = p, strings.TrimSpace(key.Model[at+1:])
		}
	}
	if h.pool == nil {
		h.pool = m.byDefault(q, key.Model)
	}
	others := m.untold(world)
	if h.pool == nil && m.passUnknown {
		h.pool = others
	}
	switch {
	case h.pool == nil && (departed || others != nil):
		return h, refuse(NoWorker)
	case h.pool == nil:
		return h, &Refusal{Reason: UnknownModel, Model: key.Model}
	case h.adapter == "" && h.pool.Key.Model != worker.NoModel && r.Scan.LoRA != nil && every(h.pool, namesAdapter):
		h.adapter = firstText(r, openai.LoRAPath, r.Scan.LoRA)
	}
	if h.adapter == "" {
		return h, nil
	}
	// Only those workers of the base model serve the adapter that have loaded it. If no
	// worker says that it has, the pool stays the base model's: a worker may load the
	// adapter when it is asked for.
	base := h.pool.Key.Model
	own := world.Pool(worker.Key{Model: h.adapter, Namespace: key.Namespace})
	if own != nil && every(own, func(w *worker.Worker) bool {
		return slices.Contains(w.Adapters, h.adapter) && slices.Contains(w.Models, base)
	}) {
		h.pool = own
	}
	return h, nil
}

// byDefault returns the pool of the only model if all its engines know it by that name, too.
func (m *models) byDefault(q *Question, name string) *worker.Pool {
	only := q.world.Pool(m.onlyModel(q.world, q.now))
	if only == nil || !every(only, func(w *worker.Worker) bool { return engines.Of(w.Engine).DefaultModel == name }) {
		return nil
	}
	return only
}

// keyOf returns the key that a request is for: of the model that it names, or of the only
// one if it names none, as a request on /generate; zero if there are several. It returns
// true if the request is for the workers whose models are not known, since it names one of
// them, or since it names no model and none is known.
func (m *models) keyOf(q *Question) (key worker.Key, untold bool) {
	some := m.untold(q.world) != nil
	if some && q.wish.namesUntold(q.world) {
		return key, true
	}
	key = worker.Key{Model: string(q.req.Scan.Model), Namespace: m.namespace}
	if key.Model == "" {
		key = m.onlyModel(q.world, q.now)
		untold = key.Model == "" && some && m.passUnknown && m.noneTold(q.world)
	}
	return key, untold
}

// saltOf returns the salt by which the request's KV blocks differ from blocks of the same
// tokens under another adapter or cache salt, as lead's engine knows them.
func (h *home) saltOf(lead *worker.Worker, r *Request) kvindex.Salt {
	s := kvindex.Salt{CacheSalt: firstText(r, openai.CacheSalt, r.Scan.CacheSalt)}
	if !namesAdapter(lead) {
		if model := h.pool.Key.Model; slices.Contains(lead.Adapters, model) {
			s.LoRA = model
		}
		return s
	}
	s.LoRA = h.adapter
	if r.Scan.ExtraKey != nil {
		// SGLang keeps blocks of another extra_key apart, and no KV event names the key.
		// So the salt below matches what was routed with the same key, and no block of an
		// event.
		s.CacheSalt += "\x00extra_key\x00" + firstText(r, openai.ExtraKey, r.Scan.ExtraKey)
	}
	return s
}

func namesAdapter(w *worker.Worker) bool { return engines.Of(w.Engine).AdapterInModel }

// every reports whether holds is true of each worker of a pool.
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

// adapterAlone reports whether all of the pool's workers have the pool's model as an
// adapter.
func adapterAlone(p *worker.Pool) bool {
	return every(p, func(w *worker.Worker) bool { return slices.Contains(w.Adapters, p.Key.Model) })
}

// firstText returns the text that a field has for the first prompt. A field that is a
// list has an element for each prompt. If it is not a list, its text is the argument
// given.
func firstText(r *Request, f openai.Field, given []byte) string {
	s, body := r.Scan.Value(f), r.Body
	if given == nil || s.End == 0 || body[s.Start] != '[' {
		return string(given)
	}
	first, found := "", false
	openai.EachElement(body, s, func(v openai.Span) {
		if !found {
			_ = json.Unmarshal(v.Of(body), &first) // stays "" for null; the engine refuses any other value
		}
		found = true
	})
	return first
}
