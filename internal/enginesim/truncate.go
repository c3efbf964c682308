package enginesim

import "strconv"

// readTruncation returns how many tokens are kept, and which. keep is -1 for as many as fit. Without
// a side the tokenizer decides: that of an engine which generates keeps the last tokens.
func readTruncation(t *truncation) (keep int, first bool, err error) {
	if !isNull(t.to) {
		keep, err = strconv.Atoi(string(t.to))
		if err != nil || keep < -1 {
			return 0, false, badRequest("truncate_prompt_tokens %.20s: Input should be a valid integer, greater than or equal to -1", t.to)
		}
	}
	if !isNull(t.side) && string(t.side) != `"left"` && string(t.side) != `"right"` {
		return 0, false, badRequest("truncation_side %.20s: Input should be 'left' or 'right'", t.side)
	}
	return keep, string(t.side) == `"right"`, nil
}

// answerLimit is for how long an answer vLLM leaves room when it cuts a prompt; 0: the
// request does not say.
func answerLimit(q *genRequest) int {
	if q.maxTokens < 0 && q.api == apiCompletion {
		return defaultOutput
	}
	return max(q.maxTokens, 0)
}

// fit cuts the request's prompts, and limits its answer to what they leave of the model's
// length. It refuses what vLLM refuses there (TokenizeParams and get_max_tokens of 0.32).
func (v *vllm) fit(q *genRequest) error {
	length, answer := v.cfg.MaxModelLen, answerLimit(q)
	if answer > length {
		return badRequest("max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", answer, length)
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
	for _, p := range q.prompts {
		if len(p) == 0 {
			return badRequest("The decoder prompt cannot be empty")
		}
		longest = max(longest, len(p))
	}
	left := length - longest
	switch {
	case longest > most:
		return badRequest("This model's maximum context length is %d tokens. However, your prompt contains %d input tokens. "+
			"Please reduce the length of the input prompt.", length, longest)
	case left == 0:
		return badRequest("max_tokens must be at least 1, got 0.")
	case q.maxTokens > left, q.maxTokens < 0 && left < defaultOutput:
		q.maxTokens = left
	}
	return nil
}

// cut cuts the prompts, if the request asks for that. No number may be above most; fits
// are the tokens that -1 leaves.
func cut(q *genRequest, most, fits int) error {
	keep, first, err := readTruncation(&q.truncation)
	switch {
	case err != nil || isNull(q.truncation.to):
		return err
	case keep > most:
		return badRequest("truncate_prompt_tokens=%d cannot be greater than max_model_len = %d. Please request a smaller truncation size.", keep, most)
	case keep < 0:
		keep = fits
	}
	for i, p := range q.prompts {
		from, to := 0, min(keep, len(p))
		if !first {
			from, to = len(p)-to, len(p)
		}
		err = keepPictures(q, from, to)
		if err != nil {
			return err
		}
		q.prompts[i] = p[from:to]
	}
	return nil
}

// keepPictures moves the pictures to their places in a prompt of which the tokens
// [from, to) are left. vLLM cuts no picture.
func keepPictures(q *genRequest, from, to int) error {
	if q.seen == nil {
		return nil
	}
	moved := make(gallery, 0, len(*q.seen))
	for _, p := range *q.seen {
		if p.offset < from || p.offset+p.length > to {
			return badRequest("truncate_prompt_tokens=%s would split or drop a(n) image item, which spans tokens %d to %d. "+
				"Please raise truncate_prompt_tokens or shorten the multimodal input.", q.truncation.to, p.offset, p.offset+p.length)
		}
		p.offset -= from
		moved = append(moved, p)
	}
	q.seen = &moved
	return nil
}
