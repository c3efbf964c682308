package chat_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
)

// TestScenarios runs the files of testdata/scenarios:
//
//	template                  compiles the input; prints who gives it content as parts
//	config                    the same of a tokenizer_config.json
//	render caller=C [effort=E] [choice=JSON] [add=B] [continue=B]
//	                          renders a request; the input is a member a line, its name
//	                          before a colon: messages, tools, documents, kwargs
//	pieces …                  the same, a piece a line, and how many were remembered
//	forget                    begins with an empty store
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		var tpl *chat.Template
		store := chat.NewStore(1 << 20)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var err error
			switch d.Cmd {
			case "template":
				tpl, err = chat.Compile(d.Input, []chat.Special{{Name: "bos_token", Text: "<s>"}}, jinja.Limits{})
			case "config":
				tpl, err = chat.FromConfig([]byte(d.Input), "", jinja.Limits{})
			case "forget":
				store = chat.NewStore(1 << 20)
				return ""
			default:
				return play(t, d, tpl, store)
			}
			if err != nil {
				return err.Error() + "\n"
			}
			return fmt.Sprintf("parts: vllm %t, sglang %t\n", tpl.Parts(vllm), tpl.Parts(sglang))
		})
	})
}

func play(t *testing.T, d *datadriven.TestData, tpl *chat.Template, store *chat.Store) string {
	q := &chat.Request{}
	var caller, choice string
	d.ScanArgs(t, "caller", &caller)
	d.MaybeScanArgs(t, "effort", &q.ReasoningEffort)
	d.MaybeScanArgs(t, "continue", &q.ContinueFinalMessage)
	var add bool
	if d.MaybeScanArgs(t, "add", &add) {
		q.AddGenerationPrompt = &add
	}
	if d.MaybeScanArgs(t, "choice", &choice) {
		q.ToolChoice = []byte(choice)
	}
	for line := range strings.SplitSeq(d.Input, "\n") {
		name, raw, ok := strings.Cut(line, ":")
		require.True(t, ok, line)
		member := map[string]*[]byte{"messages": &q.Messages, "tools": &q.Tools, "documents": &q.Documents, "kwargs": &q.Kwargs}[name]
		require.NotNil(t, member, name)
		*member = bytes.TrimSpace([]byte(raw))
	}
	c := map[string]*chat.Caller{"transformers": chat.Transformers, "vllm": vllm, "sglang": sglang}[caller]
	p, err := tpl.Render(c, q, store)
	if err != nil {
		return err.Error() + "\n"
	}
	if d.Cmd == "render" {
		return oneLine(p.Text(), p.Media)
	}
	var b strings.Builder
	for _, piece := range p.Pieces {
		b.WriteString(oneLine(piece, false))
	}
	fmt.Fprintf(&b, "kept: %d\n", p.Kept)
	return b.String()
}

func oneLine(s string, media bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	if err != nil {
		return err.Error()
	}
	if media {
		b.WriteString("media\n")
	}
	return b.String()
}
