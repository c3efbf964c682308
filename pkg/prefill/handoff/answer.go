package handoff

import "github.com/seed-60ae5743/baton/internal/openai"

// ReadAnswer judges prefill's whole answer, a 2xx. alone is what
// AppendPrefill was told. An error is a [Malformed]: nothing of such an answer
// may be used. It keeps nothing of answer and allocates nothing.
func ReadAnswer(k Kind, answer []byte, alone bool) (Result, error) {
	var top members
	a, err := openai.ScanAnswerMembers(answer, func(key, val openai.Span) { top.note(answer, key, val) })
	if err != nil {
		return Result{}, NotJSON
	}
	res := Result{Finish: a.FinishReason, Choices: a.Choices}
	switch {
	case a.HasError:
		res.Verdict = Failed
		return res, nil
	case a.Choices == 0 || !top.choices.found():
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
	switch k {
	case NIXLPull:
		err = readVLLM(answer, &top, &res)
	case ContextFirst:
		err = readTRT(answer, &top, &res)
	}
	if err != nil {
		return Result{}, err
	}
	if res.Verdict = judge(a.FinishReason, res.Held()); k == ContextFirst && res.Verdict != HandOff {
		// Its members are there all the same, and stand for nothing.
		res.HandOff, res.PromptIDs, res.Usage = openai.Span{}, openai.Span{}, openai.Span{}
	}
	return res, nil
}

// judge says how to go on after one token. Where the reason does not plainly
// say that the text is over, held KV decides: decode's answer is the whole text
// either way, so that going on is never wrong, and one token given as the
// response might be. A tool call, for one, is no single token: the engines'
// parsers may name it for a call that has just begun.
func judge(f openai.FinishReason, held bool) Verdict {
	switch {
	case f.Failed():
		return Failed
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

// members are those of an answer that a hand-off is made of.
type members struct {
	choices, promptIDs, usage slot
	vllm                      slot
}

func (m *members) note(answer []byte, key, val openai.Span) {
	switch {
	case openai.IsKey(answer, key, "choices"):
		m.choices.put(val)
	case openai.IsKey(answer, key, trtPromptIDs):
		m.promptIDs.put(val)
	case openai.IsKey(answer, key, "usage"):
		m.usage.put(val)
	case openai.IsKey(answer, key, vllmMember):
		m.vllm.put(val)
	}
}

// slot is a member that may be there once.
type slot struct {
	val   openai.Span
	twice bool
}

func (s *slot) found() bool { return s.val.End > 0 }

func (s *slot) put(val openai.Span) {
	s.twice = s.twice || s.found()
	s.val = val
}

// given reports whether the member is there with a value other than null.
func (s *slot) given(answer []byte) bool { return s.found() && answer[s.val.Start] != 'n' }

// checkHandOff holds the member against the bounds of what is spliced, and
// returns its value, or the zero Span for null and the empty object.
func checkHandOff(answer []byte, m slot) (openai.Span, error) {
	s := m.val
	switch {
	case m.twice:
		return openai.Span{}, TwoHandOffs
	case !m.given(answer):
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
