package handoff

import "github.com/seed-60ae5743/baton/internal/openai"

// Bounds of a hand-off that is copied into a body. A million tokens in blocks of 16
// have some 500 KB of block ids. The engines nest at most four deep.
const (
	MaxHandOffBytes   = 8 << 20
	MaxHandOffDepth   = 16
	MaxHandOffMembers = 128
)

// Verdict says how to go on after prefill's answer.
type Verdict uint8

// The verdicts. The zero value is no verdict.
const (
	HandOff  Verdict = iota + 1 // send the hand-off to decode
	Finished                    // the generation is over: prefill's answer is the response
	Missing                     // the generation is not over, and there is nothing to hand over
	Failed                      // an error body, or an aborted generation
)

var verdicts = [...]string{"invalid", HandOff: "hand_off", Finished: "finished", Missing: "missing", Failed: "failed"}

// String returns the verdict as labels show it.
func (v Verdict) String() string {
	if int(v) >= len(verdicts) {
		return verdicts[0]
	}
	return verdicts[v]
}

// Result is what [ReadAnswer] has read. The spans are places in the answer.
type Result struct {
	Verdict Verdict
	Finish  openai.FinishReason
	Choices int
	Tokens  openai.Usage // as the answer reports them
	Counted bool         // it does

	Parts
}

// Parts are what decode's body gets of prefill's answer. The spans are places in the answer.
type Parts struct {
	HandOff   openai.Span // the hand-off, an object; zero: there is none, or nothing is held under it
	PromptIDs openai.Span // the list of the prompt's token ids; zero: none
	Usage     openai.Span // the object with prefill's usage; zero: none
}

// Held reports whether the prefill worker holds KV that a decode must collect. It may
// be true with every verdict.
func (r Result) Held() bool { return r.HandOff.End != 0 }

// Malformed says why an answer must not be used. ReadAnswer returns no other errors, so
// that the set of labels is fixed.
type Malformed uint8

// The faults.
const (
	NotJSON        Malformed = iota + 1 // not JSON, such as a body that was cut short
	NoChoices                           // not an error body, and without choices
	ManyChoices                         // several choices, while the hand-off serves one
	NotAnObject                         // the hand-off is neither an object nor null
	TwoHandOffs                         // the hand-off occurs twice
	RepeatedMember                      // a member of the hand-off, or a member that goes with it, occurs twice
	TooLarge                            // exceeds MaxHandOffBytes or MaxHandOffMembers
	TooDeep                             // exceeds MaxHandOffDepth
	NotTokenIDs                         // the prompt's ids are not a list of token ids, or the list is empty
)

var faults = [...]string{
	"invalid",
	NotJSON: "not_json", NoChoices: "no_choices", ManyChoices: "many_choices", NotAnObject: "not_an_object", TwoHandOffs: "two_hand_offs",
	RepeatedMember: "repeated_member", TooLarge: "too_large", TooDeep: "too_deep", NotTokenIDs: "not_token_ids",
}

// String returns the fault as labels show it.
func (m Malformed) String() string {
	if int(m) >= len(faults) {
		return faults[0]
	}
	return faults[m]
}

// Error returns a text that has no part of the answer in it.
func (m Malformed) Error() string {
	return "handoff: prefill's answer is malformed: " + m.String()
}
