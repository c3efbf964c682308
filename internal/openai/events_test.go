package openai_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/seed-60ae5743/baton/internal/openai"
)

// Events as the engines write them (vLLM 0.32, SGLang 0.5.23).
const (
	roleEvent      = `data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}` + "\n\n"
	sglangRole     = `data: {"id":"1","choices":[{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},"finish_reason":null,"matched_stop":null}]}` + "\n\n"
	tokenEvent     = `data: {"id":"1","choices":[{"index":0,"delta":{"content":"\n"},"finish_reason":null}]}` + "\n\n"
	usageEvent     = `data: {"id":"1","choices":[],"usage":{"prompt_tokens":142}}` + "\n\n"
	errorEvent     = `data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n"
	doneEvent      = "data: [DONE]\n\n"
	generateAborts = `data: {"text":"","output_ids":[],"meta_info":{"id":"1","finish_reason":{"type":"abort","message":"x","status_code":503}}}` + "\n\n"
)

func TestTheFirstEventsOfAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		stream string
		ended  bool
		want   Finding
		status int
	}{
		"nothing has come":               {"", false, FoundNothing, 0},
		"a role":                         {roleEvent + sglangRole, false, FoundNothing, 0},
		"a token":                        {roleEvent + tokenEvent, false, FoundToken, 0},
		"a token whose event is not yet": {roleEvent + strings.TrimSuffix(tokenEvent, "\n"), false, FoundNothing, 0},
		"an error after the role":        {roleEvent + errorEvent + doneEvent, false, FoundError, 500},
		"an error of SGLang":             {`data: {"object":"error","message":"x","code":400}` + "\n\n", false, FoundError, 400},
		"an error without a code":        {`data: {"error":"it failed"}` + "\n\n", false, FoundError, 0},
		"an error that is null":          {`data: {"error":null,"choices":[{"text":"a"}]}` + "\n\n", false, FoundToken, 0},
		"an error after a token":         {tokenEvent + errorEvent, false, FoundToken, 0},
		"done before a token":            {roleEvent + usageEvent + doneEvent, false, FoundEnd, 0},
		"an end before a token":          {roleEvent, true, FoundEnd, 0},
		"no event at all":                {"", true, FoundEnd, 0},
		"an end without an empty line":   {strings.TrimRight(tokenEvent, "\n"), true, FoundToken, 0},
		"a tool is called":               {`data: {"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0}]}}]}` + "\n\n", false, FoundToken, 0},
		"it thinks":                      {`data: {"choices":[{"delta":{"reasoning_content":"I"}}]}` + "\n\n", false, FoundToken, 0},
		"nothing was to be said":         {`data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n", false, FoundToken, 0},
		"aborted":                        {`data: {"choices":[{"delta":{},"finish_reason":"abort"}]}` + "\n\n", false, FoundError, 0},
		"one of two choices":             {`data: {"choices":[{"text":""},{"text":"b"}]}` + "\n\n", false, FoundToken, 0},
		"generate, a token":              {`data: {"text":"","output_ids":[7],"meta_info":{"finish_reason":null}}` + "\n\n", false, FoundToken, 0},
		"generate, none yet":             {`data: {"text":"","output_ids":[],"meta_info":{"finish_reason":null}}` + "\n\n", false, FoundNothing, 0},
		"generate, aborted":              {generateAborts, false, FoundError, 503},
		"comments and other fields":      {": ping\r\n\r\nevent: message\r\nid: 4\r\n" + strings.ReplaceAll(tokenEvent, "\n", "\r\n"), false, FoundToken, 0},
		"data of several lines":          {"data: {\"choices\":\ndata: [{\"text\":\"a\"}]}\n\n", false, FoundToken, 0},
		"no JSON":                        {"data: hello\n\n", false, FoundOther, 0},
		"no stream of events":            {strings.Repeat("x", MaxFirstEvents+1), false, FoundOther, 0},
		"a role that never ends":         {strings.Repeat(roleEvent, MaxFirstEvents/len(roleEvent)+1), false, FoundOther, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var whole FirstEvents
			require.Equal(t, c.want.String(), whole.Read([]byte(c.stream), c.ended).String())
			require.Equal(t, c.status, whole.Status())
			for _, step := range []int{1, 7, 1024} { // pieces end anywhere
				var f FirstEvents
				got := FoundNothing
				for rest := c.stream; got == FoundNothing && (rest != "" || c.ended); {
					n := min(step, len(rest))
					got = f.Read([]byte(rest[:n]), c.ended && n == len(rest))
					rest = rest[n:]
				}
				require.Equal(t, c.want.String(), got.String(), "in pieces of %d", step)
				require.Equal(t, c.status, f.Status())
			}
			if c.want != FoundNothing {
				require.Equal(t, c.want, whole.Read([]byte(errorEvent), true), "once found, it stays")
			}
		})
	}
}

// FuzzFirstEvents: what is found does not depend on where pieces end.
func FuzzFirstEvents(f *testing.F) {
	f.Add([]byte(roleEvent+errorEvent+doneEvent), 3)
	f.Add([]byte(generateAborts), 60)
	f.Fuzz(func(t *testing.T, stream []byte, at int) {
		at = min(max(at, 0), len(stream))
		var whole, parts FirstEvents
		want := whole.Read(stream, true)
		got := parts.Read(stream[:at:at], false)
		if got == FoundNothing {
			got = parts.Read(stream[at:], true)
		}
		if want != FoundOther || len(stream) <= MaxFirstEvents { // over the limit a token may have come before it
			require.Equal(t, want.String(), got.String())
		}
		var later LaterEvents
		for piece := range slices.Chunk(stream, 1+at) {
			later.Failed(piece, true)
		}
	})
}

// TestAnAnswerThatFailsBehindItsFirstToken: by a finish reason or an error event, wherever pieces end.
func TestAnAnswerThatFailsBehindItsFirstToken(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 40)
	failed := func(l *LaterEvents, piece string) bool { return l.Failed([]byte(piece), true) }
	for answer, want := range map[string]bool{
		`data: {"error": {"message":"` + long + `","code":500}}`:                           true,
		`data:{"error":"x"}` + "\r\n":                                                      true,
		`data: { "error" : null, "id":1}`:                                                  false,
		`data: {"typ":"error","message":"x"}`:                                              false,
		`data: {"type": "error","error":{}}`:                                               true,
		`data: {"type":"response.failed","response":{}}`:                                   true,
		`data: {"type":"response.completed"}`:                                              false,
		"event: error\ndata: {":                                                            true,
		"event:response.failed\r\ndata: {":                                                 true,
		"event: response.created\ndata: {}\n\nevent: errors\n":                             false,
		`data: {"choices":[{"delta":{"content":"\ndata: {\"error\":1}"}}]}`:                false,
		`data: {"id":"` + long + `data: {\"error\":1}` + long + `data: {"error":1}`:        false,
		`: data: {"error":1}`:                                                              false,
		`data: ["error"]`:                                                                  false,
		`data: {"choices":[{"delta":{"content":"` + long + `"},"finish_reason":"abort"}]}`: true,
		`data: {"text":"` + long + `","meta_info":{"finish_reason":{"type":"abort"}}}`:     true,
		`data: {"choices":[{"delta":{"content":"` + long + `"},"finish_reason":"stop"}]}`:  false,
	} {
		for _, whole := range []string{answer, "data: {\"id\":1}\n\n" + answer + "\n\ndata: [DONE]\n\n"} {
			for at := range len(whole) {
				var l LaterEvents
				first := failed(&l, whole[:at])
				require.Equal(t, want, failed(&l, whole[at:]) || first, "%s at %d", whole, at)
			}
			var l LaterEvents
			got := false
			for i := range len(whole) {
				got = failed(&l, whole[i:i+1]) || got
			}
			require.Equal(t, want, got, "byte by byte: %s", whole)
		}
	}
	require.False(t, new(LaterEvents).Failed([]byte(`data: {"error":1}`), false), "before the first token others see to it")
	require.False(t, new(LaterEvents).Failed([]byte(`data: {"error":{"message":"`+long+`","code":400}}`+"\n\n"), true), "the request's own fault")
}
