package sglang

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAlgorithmsOfSGLangWhoseBlocksAreOfTokenPairs(t *testing.T) {
	for algorithm, want := range map[string]bool{
		`"EAGLE"`: true, `"EAGLE3"`: true, `"FROZEN_KV_MTP"`: true, `"NEXTN"`: true, `"eagle"`: true,
		`"NGRAM"`: false, `"STANDALONE"`: false, `"DFLASH"`: false, `""`: false, `null`: false,
	} {
		f, err := parseServerInfo([]byte(`{"model_path":"m","speculative_algorithm":` + algorithm + `}`))
		require.NoError(t, err)
		require.Equal(t, want, f.Eagle, algorithm)
	}
}

// FuzzAnswers: no answer of an engine is more than an error.
func FuzzAnswers(f *testing.F) {
	for _, s := range []string{`{"loads":[{"num_running_reqs":1}]}`, `{"model_path":"m","page_size":0,"max_total_num_tokens":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if facts, err := parseServerInfo(body); err == nil {
			require.NotEqual(t, "invalid", facts.Role.String())
		}
		_, _ = parseLoads(body)
		_, _ = running(body, 16)
	})
}
