package core

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// flushBytes is how much of a stream without latency is written at a time.
const flushBytes = 32 << 10

// answer generates out tokens for each item and sends them. The client gets the last
// bytes only after everything has been released.
func (c *Call) answer(out int, reason string) error {
	a := c.newAnswer(out, reason)
	c.job.HandOver(reason)
	if c.Q.Stream {
		return a.stream()
	}
	return a.whole()
}

func (c *Call) newAnswer(out int, reason string) *answer {
	a := &answer{c: c, shape: c.s.engine.Shape, out: out, reason: reason, created: time.Now().Unix()}
	a.id, _ = json.Marshal(a.newID())
	a.model, _ = json.Marshal(c.Q.Model)
	if c.Q.Model == "" {
		a.model, _ = json.Marshal(c.s.cfg.Models[0])
	}
	return a
}

func (a *answer) newID() string {
	if a.c.Q.Rid != "" {
		return a.c.Q.Rid
	}
	id := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
	switch {
	case !a.shape.ChatIDs:
		return id
	case a.c.Q.API == APIChat:
		return "chatcmpl-" + id
	default:
		return "cmpl-" + id
	}
}

// answer writes the answer of one call. It builds JSON by hand, since this code runs for
// every token.
type answer struct {
	c         *Call
	shape     *Shape
	out       int
	reason    string
	created   int64
	id, model []byte // JSON strings
	buf       []byte
	text      [][]byte // text of each item so far
	first     bool     // the first byte has been sent
}

// whole sends one JSON body.
func (a *answer) whole() error {
	c := a.c
	perToken := c.scale(c.s.cfg.DecodePerToken)
	if d := time.Duration(max(a.out-1, 0)) * perToken; c.Leg != LegPrefill {
		answers(c.Items, time.Now(), perToken)
		if c.Fault.When == Mid && c.Fault.Mode != FaultTruncate {
			if err := Pause(c.ctx, d/2); err != nil {
				return err
			}
			if err := c.strike(Mid); err != nil {
				return err
			}
			d -= d / 2
		}
		if err := Pause(c.ctx, d); err != nil {
			return err
		}
	}
	a.text = make([][]byte, len(c.Items))
	for i, it := range c.Items {
		for t := range a.out {
			if c.Q.endsAtOnce {
				break
			}
			a.text[i] = appendAnswerPiece(a.text[i], it.Digest, t)
		}
	}
	a.buf = a.appendWhole(a.buf)
	if c.Fault.Mode == FaultTruncate && c.Fault.When == Mid {
		if err := Pause(c.ctx, time.Duration(c.Fault.DelayMS)*time.Millisecond); err != nil {
			return err
		}
		c.w.Header().Set("Content-Length", strconv.Itoa(len(a.buf)))
		a.buf = a.buf[:len(a.buf)/2]
		_ = a.send(true)
		return errTruncate
	}
	c.s.log.firstByte(c.rec)
	c.complete(a.out, a.reason)
	if !c.headers {
		c.w.Header().Set("Content-Length", strconv.Itoa(len(a.buf)))
	}
	return a.send(false)
}

// stream sends chunks as server-sent events, all items at the same pace.
func (a *answer) stream() error {
	c := a.c
	perToken := c.scale(c.s.cfg.DecodePerToken)
	if c.Leg == LegPrefill {
		perToken = 0
	}
	a.text = make([][]byte, len(c.Items))
	if a.shape.RolesFirst {
		a.appendRoles()
	}
	start, struck := time.Now(), false
	answers(c.Items, start, perToken)
	for sent := 0; sent < a.out; {
		upto := min(sent+c.s.cfg.StreamInterval, a.out)
		if c.Fault.When == Mid && !struck && 2*upto > a.out && c.Leg != LegPrefill {
			struck = true
			if err := a.strikeMid(); err != nil {
				return err
			}
		}
		if err := Pause(c.ctx, time.Until(start.Add(time.Duration(upto-1)*perToken))); err != nil {
			return err
		}
		a.appendRound(sent, upto)
		sent = upto
		if perToken > 0 && sent < a.out {
			c.grows(sent)
		}
		if sent < a.out && (perToken > 0 || len(a.buf) > flushBytes) {
			if err := a.send(true); err != nil {
				return err
			}
		}
	}
	if c.Fault.Mode == FaultTruncate && c.Fault.When == Mid && !struck {
		return a.strikeMid()
	}
	a.appendEnd()
	if !a.first {
		c.s.log.firstByte(c.rec)
	}
	c.complete(a.out, a.reason)
	return a.send(true)
}

// appendRound appends the tokens from one to another of each item.
func (a *answer) appendRound(from, upto int) {
	if from == 0 {
		a.c.s.log.firstToken(a.c.rec)
	}
	for i := range a.c.Items {
		a.appendTokens(i, from, upto)
	}
}

// appendRoles appends the beginning of a chat's answer, before any token.
func (a *answer) appendRoles() {
	switch {
	case a.c.begun:
		return
	case a.c.kind >= APIResponse:
		a.open()
		return
	case a.c.Q.API != APIChat:
		return
	}
	for i := range a.c.Items {
		a.appendRole(i)
	}
}

func (a *answer) appendRole(i int) {
	a.appendChunk(i, `{`+a.shape.Delta+`"role":"assistant","content":""}`, nil, "")
}

func (a *answer) strikeMid() error {
	if len(a.buf) > 0 && a.c.Fault.Mode != FaultNone {
		if err := a.send(true); err != nil {
			return err
		}
	}
	return a.c.strike(Mid)
}

// send writes the bytes in buf.
func (a *answer) send(flush bool) error {
	c := a.c
	if !c.headers {
		if err := c.writeHead(); err != nil {
			return err
		}
	}
	if !a.first {
		a.first = true
		c.s.log.firstByte(c.rec)
	}
	_, err := c.w.Write(a.buf)
	a.buf = a.buf[:0]
	if err == nil && flush {
		err = http.NewResponseController(c.w).Flush()
	}
	if err != nil {
		return fmt.Errorf("client is gone: %w", err)
	}
	return nil
}

// writeHead writes the status line and headers of a successful answer.
func (c *Call) writeHead() error {
	c.headers = true
	ct := "application/json"
	if c.Q.Stream {
		ct = "text/event-stream; charset=utf-8"
	}
	c.w.Header().Set("Content-Type", ct)
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// sendRoles sends the head and the roles before any token is known (moment begun).
func (c *Call) sendRoles() error {
	a := c.newAnswer(0, "")
	a.appendRoles()
	c.begun = true
	return a.send(true)
}

// sendHeaders sends the headers before any token is known (fault early200).
func (c *Call) sendHeaders() error {
	if err := c.writeHead(); err != nil {
		return err
	}
	if err := http.NewResponseController(c.w).Flush(); err != nil {
		return fmt.Errorf("client is gone: %w", err)
	}
	return nil
}

// appendTokens appends the chunk with the tokens from..upto of item i.
func (a *answer) appendTokens(i, from, upto int) {
	before := len(a.text[i])
	for t := from; t < upto && !a.c.Q.endsAtOnce; t++ {
		a.text[i] = appendAnswerPiece(a.text[i], a.c.Items[i].Digest, t)
	}
	if a.c.kind >= APIResponse {
		a.deltas(i, from, upto, a.text[i][before:])
		return
	}
	reason := ""
	if upto == a.out && (a.c.Q.API == APIGenerate || !a.ownEnd()) {
		reason = a.reason
	}
	switch a.c.Q.API {
	case APIChat:
		if from == 0 && !a.shape.RolesFirst && !a.c.begun {
			a.appendRole(i)
		}
		a.appendChunk(i, `{`+a.shape.Delta+`"content":"`, a.text[i][before:], reason)
	case APICompletion:
		a.appendChunk(i, "", a.text[i][before:], reason)
	case APIGenerate:
		a.buf = append(a.buf, "data: "...)
		a.buf = a.appendNative(a.buf, i, upto, reason)
		a.buf = append(a.buf, "\n\n"...)
	}
}

// ownEnd reports whether each finish reason has a chunk of its own.
func (a *answer) ownEnd() bool {
	if a.c.Q.API == APIChat {
		return a.out == 0 || a.shape.Ends[0]
	}
	return a.out == 0 || a.shape.Ends[1]
}

// appendChunk appends one OpenAI chunk of item i. delta is a whole chat delta, or, if
// there is text, the part before the text. A reason ends the item.
func (a *answer) appendChunk(i int, delta string, text []byte, reason string) {
	b := a.appendHead(append(a.buf, "data: "...), true)
	b = append(b, `"choices":[{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	if a.c.Q.API == APIChat {
		b = append(append(b, `,"delta":`...), delta...)
		if text != nil {
			b = append(append(b, text...), `"}`...)
		}
	} else {
		b = append(append(append(b, `,"text":"`...), text...), '"')
	}
	kind, role := a.c.Q.API, a.c.Q.API == APIChat && text == nil && reason == ""
	choice, chunk := kind.of(a.shape.ChunkChoice), kind.of(a.shape.Chunk)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	switch {
	case reason != "":
		b = append(append(append(b, '"'), reason...), '"')
		choice = kind.of(a.shape.LastChoice)
		if !a.c.Q.includeUsage || a.shape.UsageChunk == "" { // else the chunk with the usage is the last
			chunk = kind.of(a.shape.LastChunk)
		}
	case role && a.shape.RoleChunk != "":
		b = append(b, "null"...)
		choice, chunk = "", a.shape.RoleChunk
	default:
		b = append(b, "null"...)
	}
	b = append(append(append(b, choice...), `}]`...), chunk...)
	a.buf = append(b, "}\n\n"...)
}

// appendHead appends the members with which every OpenAI object begins.
func (a *answer) appendHead(b []byte, chunk bool) []byte {
	object := "text_completion"
	if a.c.Q.API == APIChat {
		object = "chat.completion"
		if chunk {
			object = "chat.completion.chunk"
		}
	}
	b = append(append(b, `{"id":`...), a.id...)
	b = append(append(append(b, `,"object":"`...), object...), `","created":`...)
	b = strconv.AppendInt(b, a.created, 10)
	return append(append(append(b, `,"model":`...), a.model...), ',')
}

// appendEnd appends the finish reasons, the usage if it was asked for, and the end mark.
func (a *answer) appendEnd() {
	if a.c.kind >= APIResponse {
		a.close()
		return
	}
	if a.c.Q.API != APIGenerate {
		for i := range a.c.Items {
			if a.ownEnd() {
				a.appendChunk(i, "{"+strings.TrimSuffix(a.shape.Delta, ",")+"}", nil, a.reason)
			}
		}
		if a.c.Q.includeUsage {
			b := a.appendHead(append(a.buf, "data: "...), true)
			b = append(b, `"choices":[],"usage":`...)
			a.buf = append(append(a.appendUsage(b, true), a.shape.UsageChunk...), "}\n\n"...)
		}
	} else if a.out == 0 {
		a.buf = append(a.appendNative(append(a.buf, "data: "...), 0, 0, a.reason), "\n\n"...)
	}
	a.buf = append(a.buf, "data: [DONE]\n\n"...)
}

// appendNative appends the object that /generate answers for one item.
func (a *answer) appendNative(b []byte, i, tokens int, reason string) []byte {
	it := a.c.Items[i]
	b = append(append(b, `{"text":"`...), a.text[i]...)
	b = append(b, `","output_ids":[`...)
	for t := range tokens {
		if t > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(t), 10) // only their number matters: no test reads the ids
	}
	b = append(append(b, `],"meta_info":{"id":`...), a.id...)
	if reason == "" {
		b = append(b, `,"finish_reason":null`...)
	} else {
		b = fmt.Appendf(b, `,"finish_reason":{"type":"%s","length":%d}`, reason, tokens)
	}
	b = fmt.Appendf(b, `,"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":%d}`, a.c.told(len(it.Prompt)), tokens, it.Cached)
	if len(a.c.Items) > 1 {
		b = fmt.Appendf(b, `,"index":%d`, i)
	}
	return append(b, '}')
}

// appendWhole appends the body of an answer that is not streamed.
func (a *answer) appendWhole(b []byte) []byte {
	if a.c.kind >= APIResponse {
		return a.appendOwn(b)
	}
	if a.c.Q.API == APIGenerate {
		list := a.c.Q.batch || len(a.c.Items) > 1
		if list {
			b = append(b, '[')
		}
		for i := range a.c.Items {
			if i > 0 {
				b = append(b, ',')
			}
			b = a.appendNative(b, i, a.out, a.reason)
		}
		if list {
			b = append(b, ']')
		}
		return b
	}
	b = append(a.appendHead(b, false), `"choices":[`...)
	for i := range a.c.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"index":`...), int64(i), 10)
		if a.c.Q.API == APIChat {
			b = append(append(append(b, `,"message":{"role":"assistant","content":"`...), a.text[i]...), '"')
			b = append(append(b, a.shape.Message...), '}')
		} else {
			b = append(append(append(b, `,"text":"`...), a.text[i]...), '"')
		}
		b = append(append(append(b, `,"logprobs":null,"finish_reason":"`...), a.reason...), '"')
		b = append(append(append(b, a.c.Q.API.of(a.shape.Choice)...), a.c.ChoiceTail...), '}')
	}
	b = append(b, `],"usage":`...)
	b = append(a.appendUsage(b, false), a.c.Q.API.of(a.shape.Body)...)
	return append(append(b, a.c.BodyTail...), '}')
}
