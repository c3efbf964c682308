package handoff

import (
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The body fields of SGLang's disaggregation are in openai/protocol.py PDRoutingFields.
// These headers replace them if the engine was started with
// SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1 (entrypoints/request_headers.py; chat since
// 0.5.18, /generate since 0.5.15).
const (
	SGLangOverrideHost = "x-override-bootstrap-host"
	SGLangOverridePort = "x-override-bootstrap-port"
	SGLangOverrideRoom = "x-override-bootstrap-room"
	SGLangDPRankHeader = "x-data-parallel-rank"
)

// SGLangHost returns the bootstrap host in the form that SGLang needs. The engine makes
// "host:port" from it, so an IPv6 address must be in brackets.
func SGLangHost(b worker.Bootstrap) string {
	if strings.Contains(b.Host, ":") && !strings.HasPrefix(b.Host, "[") {
		return "[" + b.Host + "]"
	}
	return b.Host
}

// AppendSGLang appends the raw JSON members that both bodies carry. The room is written
// as an integer: it may exceed 2^53 and must never pass through a float.
func AppendSGLang(dst []byte, host string, port uint16, room prefill.Room) []byte {
	dst = append(dst, `"bootstrap_host":`...)
	dst = openai.AppendString(dst, host)
	dst = append(dst, `,"bootstrap_port":`...)
	dst = strconv.AppendUint(dst, uint64(port), 10)
	dst = append(dst, `,"bootstrap_room":`...)
	return strconv.AppendUint(dst, uint64(room), 10)
}

// SGLangPrefill returns the edits that make prefill's body from r's: one token, no
// stream. The engine generates one token in any case (prefill.py _process_req), but
// answers with a stream if it is asked to. Prefill's token is the first of the answer,
// so a minimum of tokens forbids that it is also the last. body is the body that r was
// read from. The returned slice is shared and must not be written to.
func SGLangPrefill(body []byte, r *openai.Request) []openai.Edit {
	edits := sglangPrefill[:]
	switch {
	case r.Path == openai.Generate && forbidsAnEnd(body, r, openai.MinNewTokens):
		return sglangFloor[3:] // the engine refuses a minimum above the limit
	case r.Path == openai.Generate:
		return edits[3:]
	case forbidsAnEnd(body, r, openai.MinTokens):
		edits = sglangFloor[:]
	}
	if edits = edits[:len(sglangPrefill)-1]; !r.Has(openai.MaxCompletionTokens) {
		edits = edits[1:]
	}
	return edits
}

// sglangPrefill and sglangFloor have the edits of all paths, in such an order that each
// path needs a part of the array: max_completion_tokens only if it is given, the members
// of sampling_params only for /generate.
var (
	sglangPrefill = [...]openai.Edit{
		{Field: openai.MaxCompletionTokens, Value: one},
		{Field: openai.MaxTokens, Value: one},
		{Field: openai.MinTokens},
		{Field: openai.StreamOptions},
		{Field: openai.Stream, Value: no},
		{Field: openai.MaxNewTokens, Value: one},
	}
	sglangFloor = [...]openai.Edit{
		sglangPrefill[0], sglangPrefill[1], {Field: openai.MinTokens, Value: one}, sglangPrefill[3], sglangPrefill[4], sglangPrefill[5],
		{Field: openai.MinNewTokens, Value: one},
	}
)
