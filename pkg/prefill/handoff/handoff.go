// Package handoff writes the two requests of a client's request whose prefill and decode run on
// separate workers, so that the two find each other. It is for routers in other modules: it has
// no type of Baton's own rooms, and the plugin itself does not need it.
//
// # Contract
//
// [Read] reads a client's body for the workers of one engine. If [Request.Obstacle] is not empty,
// one worker has to serve the request. Else one of two ways is the engine's:
//
//   - Both legs begin at once: [Request.Together] writes both bodies.
//   - [Request.PrefillFirst]: [Request.Prefill] writes prefill's body; send it, read the whole
//     answer, and if it is a 2xx pass it to [Request.Next], which says what follows.
//
// # What holds
//
// The bodies are the client's own, byte for byte, apart from what is injected. Prefill is asked
// for one token and no stream. A hand-off is copied as prefill wrote it, or refused.
//
// # What it does not do
//
// It sends nothing and sets no headers. Both legs must carry the same x-request-id, and a rank
// of a worker with several is named by the header x-data-parallel-rank. It reads no clock: an
// engine holds KV for a decode only so long.
package handoff

import (
	"bytes"
	"fmt"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Request is a client's request for an engine. It may be used by several goroutines.
type Request struct {
	kind handoff.Kind
	body []byte
	scan openai.Request
}

// Read reads the body of a POST to a path, such as /v1/chat/completions, for the workers of an
// engine. The body must not be changed while the Request is used. An error says why the body
// cannot be read, or that no hand-off of the engine is known.
func Read(e worker.Engine, path string, body []byte) (*Request, error) {
	r := &Request{kind: engines.HandOff(e), body: body}
	p, ok := openai.ParsePath(path)
	switch {
	case r.kind == nil:
		return nil, fmt.Errorf("handoff: engine %q: no hand-off of it is known", e)
	case !ok:
		return nil, fmt.Errorf("handoff: path %q: expected one of chat, completions or generate", path)
	}
	if err := openai.Scan(p, body, &r.scan); err != nil {
		return nil, fmt.Errorf("handoff: %w", err)
	}
	return r, nil
}

// Obstacle returns why the request cannot be handed over: "path", or the name of the member that
// prevents it, such as one of which it is not known what the engine makes of it. "" means that it
// can.
func (r *Request) Obstacle() string {
	if handoff.Alone(r.kind, &r.scan) {
		return "" // prefill's answer is the response
	}
	return handoff.Hindrance(r.kind, r.body, &r.scan, nil).Member
}

// PrefillFirst reports whether decode needs prefill's answer. Else both legs begin at once.
func (r *Request) PrefillFirst() bool { return r.kind.PrefillFirst() }

// Together returns the bodies of two legs that begin at once, or nil if the engine's do not. The
// bootstrap address is the prefill worker's; it has an engine id for each rank if the engine's
// prefill workers have such ids. The room must be drawn anew for each attempt.
func (r *Request) Together(b worker.Bootstrap, rank worker.DPRank, room prefill.Room) (prefillBody, decodeBody []byte) {
	t := r.kind.Begun()
	if t == nil {
		return nil, nil
	}
	var in openai.Request // of decode's body, in which the members move
	if openai.Scan(r.scan.Path, r.body, &in) != nil {
		return nil, nil // never: it was read before
	}
	members := t.Members(nil, &handoff.Meeting{Bootstrap: b, Rank: rank, Room: room})
	decodeBody = openai.InjectInPlace(bytes.Clone(r.body), &in, members)
	from, scan := r.body, &r.scan
	if t.Shared {
		from, scan = decodeBody, &in
	}
	prefillBody = openai.AppendEdited(nil, from, scan, t.Prefill(from, scan, room)...)
	return prefillBody, decodeBody
}

// Prefill returns prefill's body, if PrefillFirst is true. The id is the attempt's: no other
// request of any router may have it at the same time. Engines that hold KV under the id take one
// from 1<<42 to 1<<63-1.
func (r *Request) Prefill(id uint64) []byte {
	return handoff.AppendPrefill(nil, r.body, &r.scan, r.kind, id, handoff.Alone(r.kind, &r.scan))
}

// Next is what follows prefill's answer. If neither Decode nor Response is set, prefill has
// failed, or held nothing: try another prefill worker, or answer with an error.
type Next struct {
	Decode      []byte // decode's body; decode's answer is the response
	Response    []byte // the client's response: the generation is over
	ContentType string // of Response
	// Collect is a body for decode whose answer is to be dropped, if Decode is not sent: it
	// takes the KV that prefill holds, and frees it. Nil: prefill holds none.
	Collect []byte
}

// Next reads prefill's whole answer. An error says why the answer must not be used for anything.
func (r *Request) Next(answer []byte) (Next, error) {
	res, err := handoff.ReadAnswer(r.kind, answer, handoff.Alone(r.kind, &r.scan))
	if err != nil {
		return Next{}, err
	}
	var n Next
	if res.Held() {
		n.Collect = handoff.AppendCollect(nil, r.body, &r.scan, r.kind, answer, res)
	}
	switch res.Verdict {
	case handoff.HandOff:
		n.Decode = handoff.AppendDecode(nil, r.body, &r.scan, r.kind, answer, res)
	case handoff.Finished:
		n.Response, n.ContentType, err = handoff.AppendFinal(nil, answer, &r.scan, r.body, r.kind)
	}
	return n, err
}
