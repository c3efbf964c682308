package handoff

import (
	"github.com/seed-60ae5743/baton/internal/engine/capability"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// Obstacle is what prevents a hand-off: NoPath, or a member of the body. The zero value is none.
type Obstacle = capability.Obstacle

// NoPath is the obstacle of a request on whose path the engine takes no hand-off.
const NoPath = "path"

// Hindrance returns why the request cannot be handed from prefill to decode. body is the body
// that r was read from. A member prevents it if it asks for several generations (one hand-off
// serves one), for what only the worker that computes the prompt knows, if it holds a prompt that
// is not text or token ids (docs/engines.md#obstacles), or if it is in no row of what the engine
// takes; known says which of these last may be handed over all the same, nil: none.
func Hindrance(k Kind, body []byte, r *openai.Request, known func(member string) bool) Obstacle {
	switch {
	case k == nil || !k.Takes.Takes(r.Path):
		return Obstacle{Member: NoPath}
	case r.Prompts > 1 && !k.ManyPrompts:
		return Obstacle{Member: r.PromptField.String()}
	}
	return k.Takes.Obstacle(body, r, known)
}
