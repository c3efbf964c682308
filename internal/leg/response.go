package leg

import (
	"bytes"
	"slices"

	"github.com/seed-60ae5743/baton/internal/openai"
)

// nameResponse adds the id of the response to body, so that the client's next request finds the worker
// that keeps it. It returns false if there is none to name, or the client has named it.
func nameResponse(body []byte, p *Plan, q *Request) ([]byte, bool) {
	if !p.NamesResponse || q.Scan == nil || q.Scan.Has(openai.ResponseID) {
		return body, false
	}
	var room [64]byte
	member := append(room[:0], `,"request_id":"`...)
	member = append(openai.AppendResponseID(member, p.Nonce, uint64(p.Decode.ID)), '"')
	return slices.Insert(body, bytes.LastIndexByte(body, '}'), member...), true // it has members: a response has an input
}
