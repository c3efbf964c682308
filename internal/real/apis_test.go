//go:build real

package real

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/stack"
)

// otherClients are those of /v1/responses and /v1/messages, with what runs them.
func otherClients(t *testing.T) map[string][]string {
	t.Helper()
	root, err := stack.Root()
	require.NoError(t, err)
	return map[string][]string{
		"Python":     {filepath.Join(home, "clients", "bin", "python"), filepath.Join(root, "internal", "real", "clients", "clients.py")},
		"JavaScript": {"node", filepath.Join(home, "clients", "node", "clients.mjs")}, // beside what it imports
	}
}

const ofOthers = "apart: OpenAI's and Anthropic's clients and the Agents SDK, on /v1/responses and /v1/messages"

// TestClientsOfOtherAPIsOnVLLM: OpenAI's and Anthropic's clients, and OpenAI's Agents SDK, on
// prefill and decode apart. What they make of it is what they make of decode, asked alone.
func TestClientsOfOtherAPIsOnVLLM(t *testing.T) {
	s := newScene(t, "", "vllm-tools-p", "vllm-tools-d")
	calls, failed := 0, 0
	for name, command := range otherClients(t) {
		apart := s.apart()
		direct := clientLines(t, command, s.engines[1].URL, "qwen3")
		through := clientLines(t, command, s.envoy.URL, "qwen3")
		for i, line := range through {
			t.Log(name, line)
			calls++
			if strings.Contains(line, ": FAILS ") || strings.Contains(line, ": refused ") {
				failed++
			}
			require.Equal(t, direct[i], line, "what the client prints without Baton, and through it")
		}
		require.Greater(t, s.apart()-apart, float64(len(through)/2), "served apart")
	}
	s.idle()
	require.Zero(t, failed)
	tellf(t, vllm, ofOthers, "%d of %d calls fail; each as the engine alone", failed, calls)
}

// apart counts the requests whose prefill leg has served.
func (s *scene) apart() float64 { return s.metric("baton_prefill_legs_total", `outcome="ok"`) }

// TestClientsOfOtherAPIsOnSGLang: the same. It does not serve messages apart, and says so.
func TestClientsOfOtherAPIsOnSGLang(t *testing.T) {
	s := newScene(t, "", "sglang-tools-p", "sglang-tools-d")
	calls, failed, refused := 0, 0, 0
	for name, command := range otherClients(t) {
		for _, line := range clientLines(t, command, s.envoy.URL, "qwen3") {
			t.Log(name, line)
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
	tellf(t, sglang, ofOthers, "%s", fmt.Sprintf("%d of %d calls fail; the %d that ask for a message get 501 in Anthropic's form", failed, calls, refused))
}
