package extproc

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// answer posts the answer to a request that only asks who would serve it.
func (a *asking) answer(d *route.Decision, refused *route.Refusal) {
	srv := a.srv
	b := &booked{note: srv.cfg.Journal.Keep(d.Record)}
	if refused != nil {
		a.post(&notice{Event: leg.Event{Kind: leg.EventRefused, Failure: srv.failureOf(refused)}, booked: b})
		return
	}
	im := &wire.Immediate{Status: 200, Detail: "baton_query", Body: appendQueryAnswer(nil, a.m.Request().Path, d, time.Now())}
	im.Headers = append(im.Headers, wire.Header{Name: "content-type", Value: "application/json"})
	if srv.cfg.DebugHeader && a.m.Request().Headers.Debug != "" {
		im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderDecision, Value: d.Record.Line()})
	}
	a.post(&notice{Event: leg.Event{Kind: leg.EventAnswered, Imm: im}, booked: b})
}

// appendQueryAnswer appends the answer to a request that only asks who would serve it. The
// answer has the form of other answers on the same path, so that clients' libraries can
// read it, but no choices. The names in nvext.worker_id are those of NVIDIA Dynamo's
// response extensions. Ids are JSON numbers up to 2^64-1. If one worker would serve the
// request alone, the members for prefill are absent.
func appendQueryAnswer(dst []byte, p openai.Path, d *route.Decision, now time.Time) []byte {
	object, made := `"object":"chat.completion","created":`, `"choices":[],`
	switch p {
	case openai.Completions:
		object = `"object":"text_completion","created":`
	case openai.Responses:
		object, made = `"object":"response","status":"completed","created_at":`, `"output":[],`
	case openai.AnthropicMessages:
		object, made = `"type":"message","role":"assistant","created":`, `"content":[],`
	}
	dst = append(dst, '{')
	if p == openai.Generate {
		dst = append(dst, `"text":"",`...)
	} else {
		dst = append(dst, `"id":"query",`+object...)
		dst = strconv.AppendInt(dst, now.Unix(), 10)
		dst = append(dst, `,"model":`...)
		dst = openai.AppendString(dst, d.Key.Model)
		dst = append(append(dst, ','), made...)
	}
	dst = append(dst, `"nvext":{"worker_id":{`...)
	if d.Apart {
		dst = appendPlace(dst, "prefill", d.Prefill.Rank)
		dst = append(dst, ',')
	}
	dst = appendPlace(dst, "decode", d.Decode.Rank)
	return append(dst, `}}}`...)
}

func appendPlace(dst []byte, leg string, r worker.Rank) []byte {
	dst = append(dst, `"`+leg+`_worker_id":`...)
	dst = strconv.AppendUint(dst, uint64(r.ID), 10)
	dst = append(dst, `,"`+leg+`_dp_rank":`...)
	return strconv.AppendUint(dst, uint64(r.DPRank), 10)
}
