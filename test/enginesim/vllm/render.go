package vllm

import (
	"net/http"
	"strings"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// Rendered is the answer of vLLM's /render: the request as vLLM's engine would get it.
// Only some of its members are simulated.
type Rendered struct {
	RequestID    string         `json:"request_id"`
	TokenIDs     []uint32       `json:"token_ids"`
	TokenOffsets any            `json:"token_offsets"`
	Features     *Features      `json:"features"`
	ContentParts any            `json:"content_parts"`
	Sampling     map[string]int `json:"sampling_params"`
	Model        string         `json:"model"`
	Stream       bool           `json:"stream"`
}

// Features are the pictures of a rendered request.
type Features struct {
	Hashes       map[string][]string      `json:"mm_hashes"`
	Placeholders map[string][]Placeholder `json:"mm_placeholders"`
	Data         map[string][]string      `json:"kwargs_data"` // null if the request did not ask for it
	Metadata     any                      `json:"mm_metadata"`
}

// Placeholder is where a picture is in the prompt.
type Placeholder struct {
	Offset int `json:"offset"`
	Length int `json:"length"`
}

// render answers POST /v1/chat/completions/render (docs/engines.md#render), or that of another API.
func (v *engine) render(kind core.API, w http.ResponseWriter, r *http.Request) {
	if !v.cfg.ScaleOut {
		v.s.Pages.Refuse(w, &core.APIError{Status: http.StatusForbidden, Msg: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."})
		return
	}
	body, err := core.ReadBody(r)
	if v.s.Pages.Foreign(r.Header, false) {
		err = core.ErrForeign
	}
	if err != nil {
		v.s.Pages.Refuse(w, core.RefusalOf(err))
		return
	}
	q, err := v.s.Pages.Responses.Parse(kind, body)
	if err == nil {
		err = v.known(q)
	}
	if err == nil {
		err = v.fit(q)
	}
	if err != nil {
		v.s.Pages.Refuse(w, core.RefusalOf(err))
		return
	}
	out := Rendered{RequestID: "chatcmpl-" + core.NewProcessID(), TokenIDs: q.Prompts[0], Sampling: map[string]int{"max_tokens": max(q.MaxTokens, 1)}, Model: q.Model, Stream: q.Stream}
	if q.Seen != nil {
		out.Features = &Features{Hashes: map[string][]string{}, Placeholders: map[string][]Placeholder{}}
		payload := map[string][]string{}
		for _, p := range *q.Seen {
			out.Features.Hashes["image"] = append(out.Features.Hashes["image"], p.ID)
			out.Features.Placeholders["image"] = append(out.Features.Placeholders["image"], Placeholder{Offset: p.Offset, Length: p.Length})
			payload["image"] = append(payload["image"], strings.Repeat("A", 1<<20))
		}
		if string(q.Own("mm_payload")) != `"none"` {
			out.Features.Data = payload
		}
	}
	core.WriteJSON(w, http.StatusOK, out)
}
