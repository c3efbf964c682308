package bpe

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// tools is where make puts what it installs.
const tools = "../../../.tools"

// families are the tokenizers that make tokenizers fetches.
var families = []string{"qwen3", "llama2", "llama3_1", "deepseek_v3", "gemma3", "gpt4o", "gptoss", "mistral_nemo"}

// loaded keeps what loadFamily has loaded, by family.
var loaded sync.Map

// loadFamily loads a tokenizer as it was published.
func loadFamily(t testing.TB, family string) *Tokenizer {
	t.Helper()
	k, ok := loaded.Load(family)
	if ok {
		return k.(*Tokenizer)
	}
	text, err := os.ReadFile(filepath.Join(tools, "tokenizers", family, "tokenizer.json"))
	if os.IsNotExist(err) {
		t.Skipf("%s: not installed: make tokenizers", family)
	}
	require.NoError(t, err)
	k, err = Load(text, Limits{})
	require.NoError(t, err)
	loaded.Store(family, k)
	return k.(*Tokenizer)
}
