package handoff

import "github.com/seed-60ae5743/baton/internal/openai"

// Bounds of what is spliced. A million tokens in blocks of 16 are some 500 KB
// of block ids; the engines nest no deeper than four.
const (
	MaxHandOffBytes   = 8 << 20
	MaxHandOffDepth   = 16
	MaxHandOffMembers = 128
)

// Verdict says how to go on after prefill's answer.
type Verdict uint8

// The verdicts. The zero value is none.
const (
	HandOff  Verdict = iota + 1 // go on with decode
	Finished                    // the generation is over: this answer is the response
	Missing                     // not over, and nothing to hand over
	Failed                      // an error body, or a generation that was aborted
)

// String returns the verdict as it stands in labels.
func (v Verdict) String() string {
	switch v {
	case HandOff:
		return "hand_off"
	case Finished:
		return "finished"
	case Missing:
		return "missing"
	case Failed:
		return "failed"
	default:
		return "invalid"
	}
}

// Result is what [ReadAnswer] found. The spans are places in the answer.
type Result struct {
	Verdict Verdict
	Finish  openai.FinishReason
	Choices int

	HandOff   openai.Span // the hand-off, an object; zero: none, or nothing is held under it
	PromptIDs openai.Span // ContextFirst: the prompt's token ids, a list; zero: none
	Usage     openai.Span // ContextFirst: prefill's usage, an object; zero: none
}

// Held reports whether the prefill worker holds KV that a decode must take,
// whatever the verdict is.
func (r Result) Held() bool { return r.HandOff.End != 0 }

// Malformed says why an answer must not be used. The set is closed; a
// [ReadAnswer] returns no other errors.
type Malformed uint8

// The faults.
const (
	NotJSON        Malformed = iota + 1 // not JSON, such as a cut body
	NoChoices                           // not an error body, and nothing generated
	ManyChoices                         // more than one, where there is one hand-off for one
	NotAnObject                         // the hand-off is neither an object nor null
	TwoHandOffs                         // the hand-off's key is there twice
	RepeatedMember                      // a key of the hand-off, or of what goes with it, is there twice
	TooLarge                            // beyond MaxHandOffBytes or MaxHandOffMembers
	TooDeep                             // beyond MaxHandOffDepth
	NotTokenIDs                         // the prompt's ids are no list of such, or an empty one
)

// String returns the fault as it stands in labels.
func (m Malformed) String() string {
	switch m {
	case NotJSON:
		return "not_json"
	case NoChoices:
		return "no_choices"
	case ManyChoices:
		return "many_choices"
	case NotAnObject:
		return "not_an_object"
	case TwoHandOffs:
		return "two_hand_offs"
	case RepeatedMember:
		return "repeated_member"
	case TooLarge:
		return "too_large"
	case TooDeep:
		return "too_deep"
	case NotTokenIDs:
		return "not_token_ids"
	default:
		return "invalid"
	}
}

// Error returns a sentence that holds no part of the answer.
func (m Malformed) Error() string {
	return "handoff: prefill's answer is malformed: " + m.String()
}
