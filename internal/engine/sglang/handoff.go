package sglang

import (
	"regexp"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// HandOff is SGLang's rendezvous: the halves meet at a bootstrap server, and both bodies carry
// the same members (openai/protocol.py PDRoutingFields).
var HandOff = &handoff.Protocol{
	Name: "rendezvous",
	Together: &handoff.Together{
		Members: members, Shared: true, Prefill: oneToken,
		// If the engine was started with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1
		// (entrypoints/request_headers.py; chat since 0.5.18, /generate since 0.5.15).
		Overrides:   []string{"x-override-bootstrap-host", "x-override-bootstrap-port", "x-override-bootstrap-room"},
		OverridesOn: []openai.Path{openai.ChatCompletions, openai.Generate},
		Quoted:      quoted,
	},
	Takes:       Takes,
	ManyPrompts: true, // a room for each
}

// quoted is the members as Python's repr and JSON write them, the latter also within a text.
var quoted = regexp.MustCompile(`(?:,\s*)?\\*["']bootstrap_(?:host|port|room)\\*["']\s*:\s*(?:\\*["'][^"'\\]*\\*["']|\d+)`)

// members appends what both bodies carry. The room is written as an integer: it may exceed
// 2^53 and must never pass through a float. The engine makes "host:port" of the host.
func members(dst []byte, m *handoff.Meeting) []byte {
	dst = append(dst, `"bootstrap_host":`...)
	dst = openai.AppendString(dst, handoff.Host(m.Bootstrap))
	dst = append(dst, `,"bootstrap_port":`...)
	dst = strconv.AppendUint(dst, uint64(m.Bootstrap.Port), 10)
	dst = append(dst, `,"bootstrap_room":`...)
	return strconv.AppendUint(dst, uint64(m.Room), 10)
}

// oneToken makes prefill's body. The engine generates one token in any case (prefill.py
// _process_req), but answers with a stream if it is asked to. Prefill's token is the first of
// the answer, so a minimum of tokens forbids that it is also the last.
func oneToken(body []byte, r *openai.Request, _ prefill.Room) []openai.Edit {
	edits := plain[:]
	switch {
	case r.Path == openai.Responses:
		return response[:]
	case r.Path == openai.Generate && handoff.ForbidsAnEnd(body, r, openai.MinNewTokens):
		return floored[3:] // the engine refuses a minimum above the limit
	case r.Path == openai.Generate:
		return edits[3:]
	case handoff.ForbidsAnEnd(body, r, openai.MinTokens):
		edits = floored[:]
	}
	edits = edits[:len(plain)-1]
	if !r.Has(openai.MaxCompletionTokens) {
		edits = edits[1:]
	}
	return edits
}

// plain and floored have the edits of all paths, in such an order that each
// path needs a part of the array: max_completion_tokens only if it is given, the members
// of sampling_params only for /generate.
var (
	plain = [...]openai.Edit{
		{Field: openai.MaxCompletionTokens, Value: handoff.One},
		{Field: openai.MaxTokens, Value: handoff.One},
		{Field: openai.MinTokens},
		{Field: openai.StreamOptions},
		{Field: openai.Stream, Value: handoff.No},
		{Field: openai.MaxNewTokens, Value: handoff.One},
	}
	floored = [...]openai.Edit{
		plain[0], plain[1], {Field: openai.MinTokens, Value: handoff.One}, plain[3], plain[4], plain[5],
		{Field: openai.MinNewTokens, Value: handoff.One},
	}
	// Of a limit of one the engine takes two for the end of a response (ResponsesRequest
	// to_sampling_params), and refuses what is left.
	response = [...]openai.Edit{plain[4]}
)
