package leg

import (
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Told is what a prefill worker's answer tells of the request's tokens. It is as small as
// what an access log can tell.
type Told struct {
	Reading Reading `json:"reading,omitempty"`
	Prompt  int64   `json:"prompt,omitempty"`
	Output  int64   `json:"output,omitempty"` // made; below 0: not told
	Choices int64   `json:"choices,omitempty"`
}

// toldOf returns what a whole answer tells.
func toldOf(u *openai.Usage, known bool, choices int) Told {
	if !known {
		return Told{}
	}
	t := Told{Reading: ReadUsage, Prompt: u.Prompt, Output: u.Output, Choices: int64(choices)}
	if !u.HasOutput {
		t.Output = -1
	}
	return t
}

// against says, for those who run the router, what is told of a prompt of so many tokens.
func (t *Told) against(expected int64) string {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return n(t.Prompt) + " tokens in the prompt where " + n(expected) + " were expected, and " + n(max(t.Output, 0)) + " made"
}

// Reading says whether the usage of an answer was read.
type Reading uint8

// The values of Reading.
const (
	ReadNothing Reading = iota // there is no usage, or none that can be read
	ReadUsage
	ReadTooLong // the answer is too long to be read
)

// Proof says whether an answer of prefill's proves that the prompt was computed. The values
// are metric labels.
type Proof string

// The proofs. With NotMade and Miscounted prefill has failed.
const (
	Proven     Proof = "proven"
	NoUsage    Proof = "no_usage"   // nothing is known
	Unread     Proof = "too_long"   // the same
	NotMade    Proof = "no_token"   // no token was made
	Miscounted Proof = "miscounted" // the worker counts other tokens in the prompt than were expected
	Believed   Proof = "believed"   // the same, as an attempt before has: what was expected is wrong
	Unrepeated Proof = "unrepeated" // the same, not far from what was expected, and no other attempt can tell who is wrong
)

// Expected is what is known of a prompt before it is computed, and what earlier attempts of
// the request were told.
type Expected struct {
	Tokens int64 // of all prompts; 0: not known
	Exact  bool  // Tokens is what the engine counts; false: an estimate

	Told int64       // the count that an earlier attempt has contradicted Tokens with; 0: none has
	By   worker.Rank // that told it
}

// estimateFactor is how many times fewer tokens than estimated a prompt may have. An estimate
// is of bytes: with the default of 4 bytes for a token, these would be tokens of 256 bytes. Of
// more tokens there is no bound: templates, tools and pictures add any number.
const estimateFactor = 64

// near reports whether the prompt may have so many tokens, if Tokens were an estimate.
func (e *Expected) near(tokens int64) bool { return tokens >= e.Tokens/estimateFactor }

// prove judges what prefill's answer tells.
func (e *Expected) prove(t *Told) Proof {
	switch {
	case t.Reading == ReadTooLong:
		return Unread
	case t.Reading != ReadUsage:
		return NoUsage
	case t.Output >= 0 && t.Output < max(t.Choices, 1):
		return NotMade
	}
	right := e.near(t.Prompt)
	if e.Exact {
		right = t.Prompt == e.Tokens
	}
	switch {
	case e.Tokens > 0 && !right && t.Output > 0 && t.Prompt > 0 && t.Prompt == e.Told:
		return Believed
	case e.Tokens > 0 && !right:
		return Miscounted
	case t.Output < 0:
		return NoUsage
	default:
		return Proven
	}
}

// proves judges the answer of a prefill leg, and notes the judgement in r. It returns false if
// prefill has failed. A count that is not as expected fails prefill only once: if the next
// attempt's worker tells the same, it is believed.
func (m *pairing) proves(r *Report) bool {
	if m.handover.asked == askedResponse { // the answer is the client's
		return true
	}
	e := &m.plan.Expected
	r.Proof, r.Expected = e.prove(&r.Told), e.Tokens
	switch r.Proof {
	case NotMade:
		return false
	case Miscounted:
		f := failPrefill
		if e.near(r.Told.Prompt) && !(m.awaitsAnswer() && m.mayRetry(&f)) {
			r.Proof = Unrepeated
			return true
		}
		e.Told, e.By = r.Told.Prompt, m.plan.Prefill
		return false
	case Believed:
		m.plan.Suspects = m.plan.Suspects.Cleared(e.By)
	}
	return true
}
