package record

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// FuzzParse: no input panics, hangs or is taken in part. Accepted workers can be
// written, and read back as the same workers.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"workers: []\n", "", "---", "workers:\n", "{\"workers\":[]}", "\t", "- - -", "a: &a [*a]", "? [a]: b", "workers: |\n  x",
		"workers:\n- {id: 7, role: decode, engine: sglang, models: [m], endpoint: \"10.0.0.7:1\", block_size: 16}\n",
		"workers:\n- {id: \"18446744073709551615\", role: prefill, engine: sglang, models: [\"a\\u00e9\\n\"], endpoint: \"[::1]:1\", block_size: 16, dp_size: 3, bootstrap: {port: 1}, kv_events: {port: 2, topic: \"0x1\"}}\n",
		"workers:\n- {id: 7, role: decode, engine: vllm, models: [m], endpoint: \"10.0.0.7:65533\", dp_size: 3, port_per_rank: true, block_size: 16}\n",
		"workers:\n- id: 7\n  role: >-\n    decode\n  models:\n  - 'it''s'\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ws, err := ParseList("fuzz", data)
		if err != nil {
			require.Nil(t, ws)
			return
		}
		_, err = worker.NewSnapshot(1, append([]*worker.Worker(nil), ws...))
		require.NoError(t, err, "what the file accepts a snapshot accepts")
		out, err := MarshalList(ws)
		if err != nil {
			require.ErrorContains(t, err, "would not read back the same") // a text that is not UTF-8
			return
		}
		back, err := ParseList("fuzz", out)
		require.NoError(t, err)
		require.Len(t, back, len(ws))
		for i := range ws {
			require.Equal(t, ws[i], back[i])
		}
	})
}
