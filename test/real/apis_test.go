//go:build real

package real

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// otherClients are those of /v1/responses and /v1/messages, with what runs them.
func otherClients(t *testing.T) map[string][]string {
	t.Helper()
	root, err := stack.Root()
	require.NoError(t, err)
	return map[string][]string{
		"Python":     {filepath.Join(home, "clients", "bin", "python"), filepath.Join(root, "test", "real", "clients", "clients.py")},
		"JavaScript": {"node", filepath.Join(home, "clients", "node", "clients.mjs")}, // beside what it imports
	}
}

const ofOthers = "apart: OpenAI's and Anthropic's clients and the Agents SDK, on /v1/responses and /v1/messages"

// TestClientsOfOtherAPIsOnVLLM: OpenAI's and Anthropic's clients, and OpenAI's Agents SDK, on
// prefill and decode apart. What they make of it is what they make of decode, asked alone.
func TestClientsOfOtherAPIsOnVLLM(t *testing.T) {
	s := newScene(t, "", "vllm-tools-p", "vllm-tools-d")
	calls, failed, got := 0, 0, 0.0
	for name, command := range otherClients(t) {
		before := s.sources(worker.Decode)
		through := clientLines(t, command, s.envoy.URL, "qwen3")
		got += s.sources(worker.Decode).less(before).transferred
		direct := clientLines(t, command, s.engines[1].URL, "qwen3")
		require.Len(t, through, len(direct))
		for i, line := range through {
			t.Log(name, line)
			calls++
			if strings.Contains(line, ": FAILS ") || strings.Contains(line, ": refused ") {
				failed++
			}
			require.Equal(t, direct[i], line, "what the client prints without Baton, and through it")
			requireCalls(t, line)
		}
	}
	require.Positive(t, got, "served apart")
	s.idle()
	require.Zero(t, failed)
	tellf(t, vllm, ofOthers, "%d of %d calls fail; each comes out as of the engine alone; decode got %g prompt tokens by transfer", failed, calls, got)
}

// requireCalls checks that a case with a tool has called it.
func requireCalls(t *testing.T, line string) {
	t.Helper()
	for begins, has := range map[string]string{
		"response, a tool is called": `"function_call"`, "agent with a tool": `"ToolCallOutputItem"`, "message, a tool is used": `"tool_use"`,
	} {
		if strings.HasPrefix(line, begins) && !strings.Contains(line, ": refused ") {
			require.Contains(t, line, has)
		}
	}
}

// TestClientsOfOtherAPIsOnSGLang: the same. It does not serve messages apart, and says so.
// Responses that are made to call a tool are not judged: held to the tool's schema, this model writes white
// space up to its limit.
func TestClientsOfOtherAPIsOnSGLang(t *testing.T) {
	s := newScene(t, "", "sglang-tools-p", "sglang-tools-d")
	calls, failed, refused := 0, 0, 0
	for name, command := range otherClients(t) {
		for _, line := range clientLines(t, command, s.envoy.URL, "qwen3") {
			t.Log(name, line)
			if strings.Contains(line, "a tool is called") || strings.HasPrefix(line, "agent") {
				continue // the noise of the model there has no end, and so no call
			}
			calls++
			says := func(what string) bool { return strings.Contains(line, ": "+what+" ") }
			message := strings.HasPrefix(line, "message") && !strings.HasPrefix(line, "message's tokens") && !strings.Contains(line, "no such model")
			switch {
			case says("FAILS"), says("refused") && !message:
				failed++
			case message:
				if strings.Contains(line, "501") {
					refused++
				} else {
					failed++
				}
			}
		}
	}
	require.Zero(t, failed)
	require.Positive(t, refused)
	tellf(t, sglang, ofOthers, "%d of %d calls fail; the %d that ask for a message get 501 in Anthropic's form", failed, calls, refused)
}
