package core

import (
	"fmt"
	"net/http"
	"strconv"
)

// This file is what engines have in common of the halves of a request.

// Meeting is the room and the address at which one prompt of a request meets its other
// half.
type Meeting struct {
	Room int64
	Addr string // "host:port" of the prefill's bootstrap server
}

// Name identifies the request among the requests of all workers.
func (c *Call) Name() string { return c.s.ProcessID + "/" + strconv.FormatUint(c.Seq, 10) }

// Broken records a violation and returns the error that the client gets.
func (c *Call) Broken(kind string, status int, format string, a ...any) *APIError {
	msg := fmt.Sprintf(format, a...)
	c.s.Violate(Violation{Kind: kind, Seq: c.Seq, Detail: msg})
	reason := "handoff"
	if status < 500 {
		reason = "bad_request"
	}
	return &APIError{Status: status, Reason: reason, Msg: msg}
}

// HandedOver notes the id under which a prefill's KV is held.
func (c *Call) HandedOver(id string) { c.s.log.handedOver(c.rec, id) }

// MixedPair is the kind of violation that [OtherGroup] tells of.
const MixedPair = "mixed_pair"

// OtherGroup says why no KV goes between workers of two groups; "": it may.
func OtherGroup(prefill, decode string) string {
	if prefill == decode || prefill == "" || decode == "" {
		return ""
	}
	return fmt.Sprintf("prefill is of group %q, decode of %q", prefill, decode)
}

// ExternalID is the id of the answer, for engines at which X-Request-Id sets it
// (docs/engines.md#vllm-request-id).
func ExternalID(q *GenRequest, h http.Header) string {
	id := h.Get("X-Request-Id")
	if id == "" {
		id = drawnID()
	}
	switch q.API {
	case APIResponse: // its own member alone sets it
		return q.Rid
	case APITokens:
		return "generate-tokens-" + id
	case APIChat, APIMessage:
		return "chatcmpl-" + id
	default:
		return "cmpl-" + id
	}
}
