package chat_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/jinja"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// tools is where make puts what it installs.
const tools = "../../../.tools"

// families are the published templates that the tests run. gpt4o and gptoss are published
// without one.
var families = []string{"qwen3", "llama3", "llama3_1", "deepseek_v3", "gemma3", "mistral_nemo"}

var (
	vllm    = tokens.CallerOf(worker.VLLM)
	sglang  = tokens.CallerOf(worker.SGLang)
	callers = []*chat.Caller{chat.Transformers, vllm, sglang}
)

// configOf is a family's tokenizer_config.json, as make tokenizers fetches it.
func configOf(t testing.TB, family string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(tools, "tokenizers", family, "tokenizer_config.json"))
	if os.IsNotExist(err) {
		t.Skipf("%s: not installed: make tokenizers", family)
	}
	require.NoError(t, err)
	return b
}

func loadFamily(t testing.TB, family string) *chat.Template {
	t.Helper()
	tpl, err := chat.FromConfig(configOf(t, family), "", jinja.Limits{})
	require.NoError(t, err)
	return tpl
}

// caseOf is the request of a seed, for a caller.
func caseOf(seed uint64, c *chat.Caller) *chat.Request {
	g := newGenerator(seed)
	g.odd = seed%3 == 0
	g.parts = seed%4 == 1
	g.media = seed%8 == 1
	g.objects = c == chat.Transformers
	q := g.request()
	if c != chat.Transformers && g.chance(10) {
		q.ReasoningEffort = g.one("none", "low", "high")
	}
	if c == sglang {
		q.AddGenerationPrompt, q.ContinueFinalMessage = nil, false
	}
	return q
}

// digest is what stands for a rendering in the golden files.
func digest(t *testing.T, text string, err error) string {
	switch jinja.KindOf(err) {
	case 0:
		require.NoError(t, err)
		h := sha256.Sum256([]byte(text))
		return hex.EncodeToString(h[:6])
	case jinja.Raised:
		return "raises"
	}
	return err.Error()
}

func rendered(t *testing.T, tpl *chat.Template, c *chat.Caller, q *chat.Request, s *chat.Store) string {
	p, err := tpl.Render(c, q, s)
	if err != nil {
		return digest(t, "", err)
	}
	return digest(t, p.Text(), nil)
}

// TestFamiliesRenderAsInPython renders some hundred requests with each published template, as
// transformers and as vLLM do. testdata/families has digests of what Python makes of them
// (TestFamiliesArePythons writes them).
func TestFamiliesRenderAsInPython(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			tpl := loadFamily(t, family)
			f, err := os.Open(filepath.Join("testdata", "families", family))
			require.NoError(t, err)
			defer func() { _ = f.Close() }()
			store := chat.NewStore(1 << 20)
			refused := 0
			lines := bufio.NewScanner(f)
			for seed := uint64(0); lines.Scan(); seed++ {
				for i, want := range strings.Fields(lines.Text()) {
					q := caseOf(seed, callers[i])
					what := fmt.Sprintf("%s, seed %d", callers[i].Name, seed)
					got := rendered(t, tpl, callers[i], q, nil)
					if strings.Contains(got, "refused") {
						refused++
						continue
					}
					require.Equal(t, want, got, what)
					require.Equal(t, want, rendered(t, tpl, callers[i], q, store), "%s, with a store", what)
					require.Equal(t, want, rendered(t, tpl, callers[i], q, store), "%s, remembered", what)
				}
			}
			t.Logf("%d refused", refused)
		})
	}
}

// member is one of a request for the oracle.
func memberOf(raw []byte) any {
	if raw == nil {
		return nil
	}
	return json.RawMessage(raw)
}
