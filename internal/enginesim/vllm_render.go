package enginesim

import (
	"net/http"
	"strings"
)

// rendered is the answer of vLLM's /render: the request as vLLM's engine would get it.
// Only some of its members are simulated.
type rendered struct {
	RequestID    string         `json:"request_id"`
	TokenIDs     []uint32       `json:"token_ids"`
	TokenOffsets any            `json:"token_offsets"`
	Features     *features      `json:"features"`
	ContentParts any            `json:"content_parts"`
	Sampling     map[string]int `json:"sampling_params"`
	Model        string         `json:"model"`
	Stream       bool           `json:"stream"`
}

type features struct {
	Hashes       map[string][]string      `json:"mm_hashes"`
	Placeholders map[string][]placeholder `json:"mm_placeholders"`
	Data         map[string][]string      `json:"kwargs_data"` // null if the request did not ask for it
	Metadata     any                      `json:"mm_metadata"`
}

type placeholder struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// render answers POST /v1/chat/completions/render (docs/engines.md#render), or that of another API.
func (v *vllm) render(kind api, w http.ResponseWriter, r *http.Request) {
	if !v.cfg.ScaleOut {
		v.s.pages.refuse(w, &apiError{status: http.StatusForbidden, msg: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."})
		return
	}
	body, err := readBody(r)
	if v.s.pages.foreign(r.Header, false) {
		err = errForeign
	}
	if err != nil {
		v.s.pages.refuse(w, refusalOf(err))
		return
	}
	q, err := v.s.pages.responses.parse(kind, body)
	if err == nil {
		err = v.known(q)
	}
	if err == nil {
		err = v.fit(q)
	}
	if err != nil {
		v.s.pages.refuse(w, refusalOf(err))
		return
	}
	out := rendered{RequestID: "chatcmpl-" + newProcessID(), TokenIDs: q.prompts[0], Sampling: map[string]int{"max_tokens": max(q.maxTokens, 1)}, Model: q.model, Stream: q.stream}
	if q.seen != nil {
		out.Features = &features{Hashes: map[string][]string{}, Placeholders: map[string][]placeholder{}}
		payload := map[string][]string{}
		for _, p := range *q.seen {
			out.Features.Hashes["image"] = append(out.Features.Hashes["image"], p.id)
			out.Features.Placeholders["image"] = append(out.Features.Placeholders["image"], placeholder{Offset: p.offset, Length: p.length})
			payload["image"] = append(payload["image"], strings.Repeat("A", 1<<20))
		}
		if q.payload {
			out.Features.Data = payload
		}
	}
	writeJSON(w, http.StatusOK, out)
}
