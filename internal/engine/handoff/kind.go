package handoff

import (
	"regexp"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/capability"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Kind says how the KV of a prompt gets from prefill to decode. Nil is no kind: no request is
// handed over. An engine's room has its kind, which nobody changes.
type Kind = *Protocol

// Protocol is how an engine wants the two requests to be written. It begins both legs at once,
// or prefill first: exactly one of Together and First is set, but neither if a sidecar of
// decode sends the prefill leg.
type Protocol struct {
	Name     string // as labels and the status page show it
	Together *Together
	First    *First

	// Lease is how long prefill holds KV after its answer, as the engine has it by default, for a
	// decode that has not come: then it gives the blocks to other requests. 0: not known, or it
	// holds none.
	Lease time.Duration

	// Takes says on which paths the engine takes a hand-off, and which members prevent one.
	Takes *capability.Table
	// ManyPrompts says that a request for several prompts can be handed over.
	ManyPrompts bool
}

// Together is a protocol in which both legs begin at once and meet.
type Together struct {
	// Members appends the raw JSON members of decode's body.
	Members func(dst []byte, m *Meeting) []byte
	// Shared says that prefill's body has the same members. Else Prefill writes its own.
	Shared bool
	// Prefill returns the edits that make prefill's body from r's, which has decode's members
	// or, if they are not Shared, may lack them: one token, no stream. body is the body that r
	// was read from. What is returned may be shared and must not be written to.
	Prefill func(body []byte, r *openai.Request, room prefill.Room) []openai.Edit
	// Overrides are the headers for the host, the port and the room that the engine takes in
	// place of the members, on these paths, if it was started so; nil: none.
	Overrides   []string
	OverridesOn []openai.Path
	// Quoted matches the members where an engine's refusal quotes the body, with the comma before
	// each; nil: the engine quotes none.
	Quoted *regexp.Regexp
	// NamesRank says that prefill's request must name the rank. Else prefill knows it from the
	// room.
	NamesRank bool
	// Collect appends a request that fetches the KV which prefill holds for a decode that has
	// not come, so that the KV is freed (docs/engines.md#mooncake-holds). Nil: the end of
	// prefill's own request frees it.
	Collect func(dst []byte, model string, m *Meeting) []byte
}

// First is a protocol in which decode needs prefill's answer.
type First struct {
	// Hold appends the members by which prefill holds its KV for a decode. id is the attempt's,
	// from MinRequestID to MaxRequestID.
	Hold func(dst []byte, id uint64) []byte
	// Added names the members that the engine adds to an answer of prefill's, at its top or in
	// its choices. No client gets them.
	Added []string
	// Read finds the hand-off in prefill's answer.
	Read func(answer []byte, top Members) (Parts, error)
	// DrawsAgain says that decode draws the first token itself, so that prefill's decides nothing: an
	// end that prefill draws is not the answer's (docs/engines.md#vllm-stop-holds).
	DrawsAgain bool
	// OnlyToDecode says that nothing is held if the generation is over, though the members are
	// there all the same.
	OnlyToDecode bool
	// Append appends the hand-off to decode's body.
	Append func(dst, answer []byte, p Parts) []byte
	// IDs says which member of decode's body takes the prompt's ids, and which one they replace,
	// by path. Nil: prefill's answer has none.
	IDs func(p openai.Path) (takes, replaced openai.Field)
}

// Meeting is where the legs of one attempt meet.
type Meeting struct {
	Bootstrap worker.Bootstrap // the prefill worker's
	Rank      worker.DPRank    // of the prefill worker
	Room      prefill.Room     // drawn anew for each attempt
}

// SidecarOf returns the kind of no engine: a sidecar before decode's engine, any of these, sends
// the prefill leg, and hands over as the engine needs it. So it has the obstacles of them all.
func SidecarOf(tables ...*capability.Table) Kind {
	return &Protocol{Name: "by_sidecar", Takes: capability.Join([]openai.Path{openai.ChatCompletions, openai.Completions}, tables...)}
}

// String returns the kind as labels and the status page show it.
func (p *Protocol) String() string {
	if p == nil {
		return "invalid"
	}
	return p.Name
}

// PrefillFirst reports whether decode needs prefill's answer
// (docs/behaviour.md#prefill-first).
func (p *Protocol) PrefillFirst() bool { return p != nil && p.First != nil }

// Begun returns how both legs begin at once, or nil if they do not.
func (p *Protocol) Begun() *Together {
	if p == nil {
		return nil
	}
	return p.Together
}

// Unquoted returns an engine's refusal without the members that both bodies carry, which are nothing
// for a client. quoted is false if it quotes none.
func (p *Protocol) Unquoted(refusal []byte) (cleaned []byte, quoted bool) {
	t := p.Begun()
	if t == nil || t.Quoted == nil || !t.Quoted.Match(refusal) {
		return refusal, false
	}
	return t.Quoted.ReplaceAll(refusal, nil), true
}

// Holds reports whether prefill, which begins together with decode, keeps its KV until
// a decode fetches it: the end of prefill's own request does not free it
// (docs/engines.md#mooncake-holds).
func (p *Protocol) Holds() bool {
	t := p.Begun()
	return t != nil && t.Collect != nil
}

// ByOthers reports whether a sidecar of decode sends the prefill leg.
func (p *Protocol) ByOthers() bool { return p != nil && p.Together == nil && p.First == nil }

// Host returns the host of a bootstrap server as it is written before a port: an IPv6 address
// in brackets.
func Host(b worker.Bootstrap) string {
	if strings.Contains(b.Host, ":") && !strings.HasPrefix(b.Host, "[") {
		return "[" + b.Host + "]"
	}
	return b.Host
}

// RankHeader names a data-parallel rank of the worker at an address.
const RankHeader = "x-data-parallel-rank"
