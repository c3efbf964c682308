package handoff

import "github.com/seed-60ae5743/baton/internal/openai"

// ReadAnswer reads prefill's whole answer, a 2xx. The flag alone must be as it was for
// AppendPrefill. An error is a [Malformed] and means that nothing of the answer may be
// used. ReadAnswer keeps nothing of answer and allocates nothing.
func ReadAnswer(k Kind, answer []byte, alone bool) (Result, error) {
	var top Members
	a, err := openai.ScanAnswerMembers(answer, func(key, val openai.Span) { top.note(k, answer, key, val) })
	if err != nil {
		return Result{}, NotJSON
	}
	res := Result{Finish: a.FinishReason, Choices: a.Choices, Tokens: a.Usage, Counted: a.HasUsage}
	switch {
	case a.HasError:
		res.Verdict = Failed
		return res, nil
	case a.Choices == 0 || !top.object:
		return Result{}, NoChoices
	case alone:
		res.Verdict = Finished
		if a.FinishReason.Failed() {
			res.Verdict = Failed
		}
		return res, nil
	case a.Choices > 1:
		return Result{}, ManyChoices
	}
	if k.PrefillFirst() {
		res.Parts, err = k.First.Read(answer, top)
		if err != nil {
			return Result{}, err
		}
	}
	again := res.Held() && k.PrefillFirst() && k.First.DrawsAgain
	res.Verdict = judge(a.FinishReason, res.Held(), again)
	if res.Verdict != HandOff && k.PrefillFirst() && k.First.OnlyToDecode {
		res.Parts = Parts{}
	}
	if res.Verdict == Finished && !top.Choices.found() { // no response is made of such an answer
		res.Verdict = Missing
	}
	return res, nil
}

// judge says how to go on after one token. If the finish reason does not plainly say
// that the text is over, the held KV decides. Going on with held KV is always right,
// since decode's answer is then the whole text, while one token as the response might
// be wrong. For example a tool call is never a single token: the engines' parsers may
// give it as the reason for a call that has just begun.
//
// With again, decode draws the token that prefill has drawn. If an end were then taken from
// either, an end of probability p would come with 2p − p².
func judge(f openai.FinishReason, held, again bool) Verdict {
	switch {
	case f.Failed():
		return Failed
	case again:
		return HandOff
	case f == openai.FinishStop || f == openai.FinishContentFilter:
		return Finished
	case held:
		return HandOff
	case f == openai.FinishNone || f == openai.FinishLength:
		return Missing
	default:
		return Finished
	}
}

// Members are those members of an answer that a hand-off is made of.
type Members struct {
	Choices, Usage Slot
	Added          [maxAdded]Slot // in the order of [First.Added]
	object         bool           // the answer is one, and no list
}

// maxAdded is the most members that an engine adds to an answer.
const maxAdded = 4

func (m *Members) note(k Kind, answer []byte, key, val openai.Span) {
	m.object = true
	switch {
	case openai.IsKey(answer, key, "choices"):
		m.Choices.Put(val)
	case openai.IsKey(answer, key, "usage"):
		m.Usage.Put(val)
	case k.PrefillFirst():
		for i, name := range k.First.Added {
			if openai.IsKey(answer, key, name) {
				m.Added[i].Put(val)
			}
		}
	}
}

// Slot is a member that may occur once.
type Slot struct {
	Val   openai.Span
	Twice bool
}

func (s *Slot) found() bool { return s.Val.End > 0 }

// Put notes the member's value.
func (s *Slot) Put(val openai.Span) {
	s.Twice = s.Twice || s.found()
	s.Val = val
}

// Given reports whether the member is present with a value other than null.
func (s *Slot) Given(answer []byte) bool { return s.found() && answer[s.Val.Start] != 'n' }

// Check checks the member against the bounds for a hand-off. It returns the
// member's value, or the zero Span for null, an empty object or no member.
func Check(answer []byte, m Slot) (openai.Span, error) {
	s := m.Val
	switch {
	case m.Twice:
		return openai.Span{}, TwoHandOffs
	case !m.Given(answer):
		return openai.Span{}, nil
	case answer[s.Start] != '{':
		return openai.Span{}, NotAnObject
	case s.End-s.Start > MaxHandOffBytes:
		return openai.Span{}, TooLarge
	}
	var keys [MaxHandOffMembers]openai.Span
	var fault Malformed
	n := 0
	shallow := openai.EachMemberWithin(answer, s, MaxHandOffDepth, func(key, _ openai.Span) bool {
		for _, k := range keys[:n] {
			if openai.SameKey(answer, k, key) {
				fault = RepeatedMember
				return false
			}
		}
		if n == len(keys) {
			fault = TooLarge
			return false
		}
		keys[n] = key
		n++
		return true
	})
	switch {
	case fault != 0:
		return openai.Span{}, fault
	case !shallow:
		return openai.Span{}, TooDeep
	case n == 0:
		return openai.Span{}, nil
	default:
		return s, nil
	}
}
