package vllm

import (
	"strconv"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// truncation is what a request says about cutting its prompts
// (docs/engines.md#truncation), as raw JSON; nil: absent.
type truncation struct{ to, side []byte }

func truncationOf(q *core.GenRequest) truncation {
	return truncation{to: q.Own("truncate_prompt_tokens"), side: q.Own("truncation_side")}
}

// read returns how many tokens are kept, and which. keep is -1 for as many as fit. Without
// a side the tokenizer decides: that of an engine which generates keeps the last tokens.
func (t truncation) read() (keep int, first bool, err error) {
	if !core.IsNull(t.to) {
		keep, err = strconv.Atoi(string(t.to))
		if err != nil || keep < -1 {
			return 0, false, core.BadRequest("truncate_prompt_tokens %.20s: Input should be a valid integer, greater than or equal to -1", t.to)
		}
	}
	if !core.IsNull(t.side) && string(t.side) != `"left"` && string(t.side) != `"right"` {
		return 0, false, core.BadRequest("truncation_side %.20s: Input should be 'left' or 'right'", t.side)
	}
	return keep, string(t.side) == `"right"`, nil
}

// answerLimit is for how long an answer vLLM leaves room when it cuts a prompt; 0: the
// request does not say.
func answerLimit(q *core.GenRequest) int {
	if q.MaxTokens < 0 && q.API == core.APICompletion {
		return core.DefaultOutput
	}
	return max(q.MaxTokens, 0)
}

// fit cuts the request's prompts, and limits its answer to what they leave of the model's
// length. It refuses what vLLM refuses there (TokenizeParams and get_max_tokens of 0.32).
func (v *engine) fit(q *core.GenRequest) error {
	length, answer := v.cfg.MaxModelLen, answerLimit(q)
	if answer > length {
		return core.BadRequest("max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", answer, length)
	}
	most, fits := length, length // tokens that a prompt may have, and those that are left of one that is cut to what fits
	switch {
	case v.cfg.CutForAnswer:
		most, fits = length-answer, length-answer
	case answer > 0:
		fits = length - 1
	}
	err := cut(q, most, fits)
	if err != nil {
		return err
	}
	longest := 0
	for _, p := range q.Prompts {
		if len(p) == 0 {
			return core.BadRequest("The decoder prompt cannot be empty")
		}
		longest = max(longest, len(p))
	}
	left := length - longest
	switch {
	case longest > most:
		return core.BadRequest("This model's maximum context length is %d tokens. However, your prompt contains %d input tokens. "+
			"Please reduce the length of the input prompt.", length, longest)
	case left == 0:
		return core.BadRequest("max_tokens must be at least 1, got 0.")
	case q.MaxTokens > left, q.MaxTokens < 0 && left < core.DefaultOutput:
		q.MaxTokens = left
	}
	return nil
}

// cut cuts the prompts, if the request asks for that. No number may be above most; fits
// are the tokens that -1 leaves.
func cut(q *core.GenRequest, most, fits int) error {
	asked := truncationOf(q)
	keep, first, err := asked.read()
	switch {
	case err != nil || core.IsNull(asked.to):
		return err
	case keep > most:
		return core.BadRequest("truncate_prompt_tokens=%d cannot be greater than max_model_len = %d. Please request a smaller truncation size.", keep, most)
	case keep < 0:
		keep = fits
	}
	for i, p := range q.Prompts {
		from, to := 0, min(keep, len(p))
		if !first {
			from, to = len(p)-to, len(p)
		}
		err = keepPictures(q, from, to)
		if err != nil {
			return err
		}
		q.Prompts[i] = p[from:to]
	}
	return nil
}

// keepPictures moves the pictures to their places in a prompt of which the tokens
// [from, to) are left. vLLM cuts no picture.
func keepPictures(q *core.GenRequest, from, to int) error {
	if q.Seen == nil {
		return nil
	}
	moved := make(core.Gallery, 0, len(*q.Seen))
	for _, p := range *q.Seen {
		if p.Offset < from || p.Offset+p.Length > to {
			return core.BadRequest("truncate_prompt_tokens=%s would split or drop a(n) image item, which spans tokens %d to %d. "+
				"Please raise truncate_prompt_tokens or shorten the multimodal input.", truncationOf(q).to, p.Offset, p.Offset+p.Length)
		}
		p.Offset -= from
		moved = append(moved, p)
	}
	q.Seen = &moved
	return nil
}
