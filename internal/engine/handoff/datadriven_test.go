package handoff_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/trtllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// testID is the disagg_request_id of the scenarios; a float cannot represent it.
const testID = handoff.MaxRequestID - 2

// TestSync runs the scenarios of hand-offs in which prefill goes first.
//
// Arguments of all verbs: kind (nixl_pull, context_first), path (chat, completion;
// default chat). The input is the client's body. For verbs that need prefill's answer,
// a line "answer:" and the answer follow.
//
//	obstacle    why the body cannot be handed over, and whether Alone is true
//	prefill     prefill's body; alone: as the whole request
//	answer      the input is only an answer; prints what ReadAnswer returns
//	decode      decode's body, after the verdict
//	collect     the body that collects the held KV
//	final       the client's response
//
// Rewrite the output with "make golden".
func TestSync(t *testing.T) {
	datadriven.Walk(t, "testdata/sync", func(t *testing.T, file string) {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			s := newScene(t, d)
			switch d.Cmd {
			case "obstacle":
				return fmt.Sprintf("obstacle: %q alone: %v\n", handoff.Hindrance(s.kind, s.body, &s.r, nil).Member, handoff.Alone(s.kind, &s.r))
			case "prefill":
				return string(handoff.AppendPrefill(nil, s.body, &s.r, s.kind, testID, s.alone)) + "\n"
			case "answer":
				return s.verdict()
			case "decode":
				return s.verdict() + string(handoff.AppendDecode(nil, s.body, &s.r, s.kind, s.answer, s.res)) + "\n"
			case "collect":
				return string(handoff.AppendCollect(nil, s.body, &s.r, s.kind, s.answer, s.res)) + "\n"
			case "final":
				return s.final()
			default:
				d.Fatalf(t, "unknown verb %q", d.Cmd)
				return ""
			}
		})
	})
}

// scene is what the verbs of one scenario work on.
type scene struct {
	t            *testing.T
	kind         handoff.Kind
	alone        bool
	body, answer []byte
	r            openai.Request
	res          handoff.Result
	err          error
}

func newScene(t *testing.T, d *datadriven.TestData) *scene {
	t.Helper()
	s := &scene{t: t, kind: vllm.HandOff, alone: d.HasArg("alone")}
	var kind string
	d.ScanArgs(t, "kind", &kind)
	switch kind {
	case vllm.HandOff.String():
	case trtllm.HandOff.String():
		s.kind = trtllm.HandOff
	default:
		d.Fatalf(t, "unknown kind %q", kind)
	}
	body, answer, both := strings.Cut(d.Input, "\nanswer:\n")
	if d.Cmd == "answer" {
		body, answer = "", d.Input
	}
	s.body, s.answer = []byte(body), []byte(answer)
	if d.Cmd != "answer" {
		path := openai.ChatCompletions
		if d.HasArg("path") {
			var name string
			d.ScanArgs(t, "path", &name)
			path = map[string]openai.Path{"completion": openai.Completions, "generate": openai.Generate}[name]
		}
		require.NoError(t, openai.Scan(path, s.body, &s.r), d.Pos)
	}
	if both || d.Cmd == "answer" {
		s.res, s.err = handoff.ReadAnswer(s.kind, s.answer, s.alone)
	}
	return s
}

func (s *scene) verdict() string {
	if s.err != nil {
		require.Equal(s.t, handoff.Result{}, s.res, "nothing of a malformed answer may be used")
		return s.err.Error() + "\n"
	}
	out := fmt.Sprintf("%v, finish %v", s.res.Verdict, s.res.Finish)
	if s.res.Held() {
		out += ", held"
	}
	return out + "\n"
}

func (s *scene) final() string {
	out, contentType, err := handoff.AppendFinal([]byte("x"), s.answer, &s.r, s.body, s.kind)
	require.Equal(s.t, byte('x'), out[0])
	if err != nil {
		require.Equal(s.t, "x", string(out), "on an error dst is as it came")
		return err.Error() + "\n"
	}
	// A blank line would end the expected output, so a dot stands for it.
	text := strings.ReplaceAll(string(out[1:]), "\n\n", "\n.\n")
	return contentType + "\n" + strings.TrimSuffix(text, "\n") + "\n"
}
