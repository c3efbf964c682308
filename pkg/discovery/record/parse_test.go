package record

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Verbs of testdata/parse:
//
//	parse     the input is a file; prints its workers, or the error
func TestParseScenarios(t *testing.T) {
	datadriven.RunTest(t, "testdata/parse", func(t *testing.T, d *datadriven.TestData) string {
		require.Equal(t, "parse", d.Cmd)
		ws, err := ParseList("w.yaml", []byte(d.Input))
		if err != nil {
			require.Nil(t, ws)
			return err.Error() + "\n"
		}
		var b strings.Builder
		for _, w := range ws {
			fmt.Fprintf(&b, "%d %s %s %s models=%q ns=%q dp=%d block=%d capacity=%d\n",
				w.ID, w.Role, w.Engine, w.Endpoint, w.Models, w.Namespace, w.DPSize, w.BlockSize, w.CapacityBlocks)
			fmt.Fprintf(&b, "  bootstrap=%+v kv_events=%+v aggregated=%t overrides=%t draining=%t eagle=%t\n",
				w.Bootstrap, w.KVEvents, w.AcceptsAggregated, w.HeaderOverrides, w.Draining, w.Eagle)
			if w.PortPerRank {
				fmt.Fprintf(&b, "  ports up to %s\n", w.EndpointOf(worker.DPRank(w.DPSize-1)))
			}
			if w.Fixed != 0 || w.FactsUnknown || w.FactsPort != 0 {
				fmt.Fprintf(&b, "  unknown=%t fixed=%011b port=%d\n", w.FactsUnknown, w.Fixed, w.FactsPort)
			}
			if w.Pair != (worker.PairFacts{}) {
				fmt.Fprintf(&b, "  %s\n", w.Pair)
			}
			if !w.ModelFiles.IsZero() {
				fmt.Fprintf(&b, "  files=%s at %d\n", w.ModelFiles.Digest, w.ModelFiles.Port)
			}
			if w.Taints != nil || w.TopologyDomains != nil || w.KVTransfer != (worker.KVTransfer{}) {
				fmt.Fprintf(&b, "  taints=%q topology=%q transfer=%+v\n", w.Taints, w.TopologyDomains, w.KVTransfer)
			}
		}
		if len(ws) == 0 {
			b.WriteString("no workers\n")
		}
		return b.String()
	})
}

func TestAFileOverTheSizeLimitIsRefusedUnread(t *testing.T) {
	_, err := ParseList("w.yaml", make([]byte, MaxBytes+1))
	require.ErrorContains(t, err, "w.yaml:1: 8388609 bytes: expected at most 8388608")
}

func TestDeepNestingIsRefusedBeforeItIsParsed(t *testing.T) {
	for _, s := range []string{strings.Repeat("[", 100000), "workers:\n" + strings.Repeat("- ", 100000), strings.Repeat("{a: ", 100000)} {
		_, err := ParseList("w.yaml", []byte(s))
		require.ErrorContains(t, err, "nested more than 64 levels deep")
	}
}

func TestAFileThatIsNoTextIsNotEchoed(t *testing.T) {
	_, err := ParseList("w.yaml", []byte("workers:\n\x7fELF\x02\x01\x00\xff"))
	require.EqualError(t, err, "w.yaml:2: this is no text file (byte 13 is 0x02): expected YAML in UTF-8")
}

func TestOnlyTheFirstFaultsAreNamed(t *testing.T) {
	_, err := ParseList("w.yaml", []byte("workers:\n"+strings.Repeat("  - {id: 0}\n", 54)))
	require.ErrorContains(t, err, "w.yaml:51: ")
	require.NotContains(t, err.Error(), "w.yaml:52: ")
	require.ErrorContains(t, err, "and 4 more")
}

func TestOneWorkerIsReadFromALineOfJSON(t *testing.T) {
	w, err := Parse("ready", []byte(`{"id":18446744073709551615,"role":"prefill","engine":"sglang","models":["m"],`+
		`"endpoint":"127.0.0.1:9","block_size":16,"bootstrap":{"port":8998}}`))
	require.NoError(t, err)
	require.Equal(t, worker.ID(18446744073709551615), w.ID)
	require.Equal(t, worker.Bootstrap{Host: "127.0.0.1", Port: 8998}, w.Bootstrap)

	_, err = Parse("ready", []byte(`{"id":1,"rol":"prefill"}`))
	require.ErrorContains(t, err, `ready:1: worker 1: rol: there is no such key`)
	_, err = Parse("ready", nil)
	require.ErrorContains(t, err, "ready:1: nothing in it")
}

func TestARecordOfANewerWriterIsReadWithoutWhatNobodyKnows(t *testing.T) {
	line := `{"id":7,"role":"prefill","engine":"sglang","models":["m"],"endpoint":"127.0.0.1:9","block_size":16,` +
		`"zone":{"name":["a",null]},"bootstrap":{"port":8998,"fabric":"rdma"}}`
	w, err := ParseKnown("key", []byte(line))
	require.NoError(t, err)
	require.Equal(t, worker.Bootstrap{Host: "127.0.0.1", Port: 8998}, w.Bootstrap)
	_, err = Parse("key", []byte(line))
	require.ErrorContains(t, err, `zone: there is no such key`)

	for text, bad := range map[string]string{
		`role: "prefil"`:                         `{"id":7,"role":"prefil"}`,
		"expected a decimal number from 0":       `{"id":7,"block_size":-1,"zone":1}`,
		"models: expected at least one name":     `{"id":7,"role":"prefill","engine":"sglang","model":["m"],"endpoint":"127.0.0.1:9","block_size":16}`,
		`id: this key stands on line 1 already`:  `{"id":7,"id":8}`,
		"expected a mapping of id, role, engine": `[7]`,
		"nothing in it":                          ``,
	} {
		_, err := ParseKnown("key", []byte(bad))
		require.ErrorContains(t, err, text)
	}
}

func TestAByteOrderMarkIsPassedOver(t *testing.T) {
	ws, err := ParseList("w.yaml", []byte("\ufeffworkers:\n- {id: 7, role: decode, engine: sglang, models: [m], endpoint: \"10.0.0.7:1\", block_size: 16}\n"))
	require.NoError(t, err)
	require.Equal(t, worker.ID(7), ws[0].ID)
}
