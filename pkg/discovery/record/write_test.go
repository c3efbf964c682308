package record

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func mustEndpoint(t *testing.T, s string) worker.Endpoint {
	t.Helper()
	e, err := worker.ParseEndpoint(s)
	require.NoError(t, err)
	return e
}

// fleet returns a prefill worker with every field set, a decode worker with as few as
// possible, and a worker whose ranks have ports of their own.
func fleet(t *testing.T) []*worker.Worker {
	return []*worker.Worker{
		{
			ID: 18446744073709551615, Role: worker.Prefill, Engine: worker.SGLang, Endpoint: mustEndpoint(t, "[fd00::7]:30000"),
			Models: []string{"qwen", "123", "true", "a: b # c", "<é\"'>"}, Namespace: "0x10", Deployment: "blue",
			DPSize: 4, BlockSize: 64, CapacityBlocks: 1 << 63,
			Bootstrap:  worker.Bootstrap{Host: "boot.example", Port: 8998},
			KVEvents:   worker.KVEvents{Host: "fd00::8", Port: 5557, ReplayPort: 5657, Topic: "~"},
			ModelFiles: worker.ModelFiles{Digest: "sha256:" + strings.Repeat("0a", 32), Port: 9904},
			Taints:     []string{"gpu=h200", "0x10"}, TopologyDomains: map[string]string{"zone": "a", "rack": "", "0": "b=c"},
			KVTransfer: worker.KVTransfer{Domain: "zone", Enforcement: worker.Preferred, Weight: 0.1},
			Eagle:      true, AcceptsAggregated: true, HeaderOverrides: true, Draining: true, Fronted: true,
		},
		{
			ID: 9007199254740993, Role: worker.Decode, Engine: worker.SGLang, Endpoint: mustEndpoint(t, "10.0.0.8:30000"),
			Models: []string{"qwen"}, DPSize: 1, BlockSize: 1, KVTransfer: worker.KVTransfer{Domain: "zone", Enforcement: worker.Required},
		},
		{
			ID: 9, Role: worker.Decode, Engine: worker.VLLM, Endpoint: mustEndpoint(t, "10.0.0.9:30000"),
			Models: []string{"qwen"}, DPSize: 3, PortPerRank: true, BlockSize: 1, EngineRank: 6,
			KVEvents: worker.KVEvents{Host: "10.0.0.9", Port: 41233, ReplayPort: 41234, Topic: "kv", Ranks: []worker.EventsPlace{
				{Host: "10.0.0.9", Port: 41233, ReplayPort: 41234}, {Host: "10.0.0.9"}, {Host: "fd00::9", Port: 39871},
			}},
		},
	}
}

func TestWhatIsWrittenReadsBackTheSame(t *testing.T) {
	for name, ws := range map[string][]*worker.Worker{"three workers": fleet(t), "none": {}} {
		t.Run(name, func(t *testing.T) {
			out, err := MarshalList(ws)
			require.NoError(t, err)
			back, err := ParseList("w.yaml", out)
			require.NoError(t, err, "%s", out)
			require.Equal(t, ws, back)
		})
	}
}

func TestOneWorkerIsWrittenAsALineThatReadsBackTheSame(t *testing.T) {
	for _, w := range fleet(t) {
		line, err := Marshal(w)
		require.NoError(t, err)
		require.NotContains(t, string(line), "\n")
		back, err := Parse("ready", line)
		require.NoError(t, err)
		require.Equal(t, w, back)
	}
}

// A worker of a snapshot has its ranks' endpoints at hand. They are not written to the
// file.
func TestAWorkerOfASnapshotIsWrittenAsTheOneThatWasRead(t *testing.T) {
	ws := fleet(t)[2:]
	snap, err := worker.NewSnapshot(1, fleet(t)[2:])
	require.NoError(t, err)
	want, err := MarshalList(ws)
	require.NoError(t, err)
	got, err := MarshalList(snap.Workers())
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func TestWhatWouldNotReadBackIsNotWritten(t *testing.T) {
	tests := map[string]struct {
		change func(ws []*worker.Worker)
		want   string
	}{
		"an invalid worker":        {func(ws []*worker.Worker) { ws[0].BlockSize = 0 }, "block_size: expected at least 1"},
		"an id used twice":         {func(ws []*worker.Worker) { ws[0].ID = ws[1].ID }, "id is already used"},
		"a rank's port used twice": {func(ws []*worker.Worker) { ws[1].Endpoint = mustEndpoint(t, "10.0.0.9:30002") }, "endpoint 10.0.0.9:30002 is already used"},
		"text that is not text":    {func(ws []*worker.Worker) { ws[0].Models[0] = "\xff" }, "would not read back the same"},
		"a host without a port":    {func(ws []*worker.Worker) { ws[0].Bootstrap.Port = 0 }, "would not read back the same"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ws := fleet(t)
			tt.change(ws)
			_, err := MarshalList(ws)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// A plugin that starts while its store is away serves also workers that have not told
// their facts.
func TestAWorkerWithoutFactsIsWrittenAndReadBack(t *testing.T) {
	w := &worker.Worker{ID: 7, Role: worker.Aggregated, Endpoint: mustEndpoint(t, "10.0.0.7:8001"), DPSize: 1, FactsUnknown: true, EngineRank: 1}
	data, err := MarshalList([]*worker.Worker{w})
	require.NoError(t, err)
	require.NotContains(t, string(data), "models")
	back, err := ParseList("w.yaml", data)
	require.NoError(t, err)
	require.Equal(t, []*worker.Worker{w}, back)
}

// A store's last set is kept also while some of its records have expired.
func TestAWorkerWhoseRecordHasExpiredIsWrittenAsItsRecord(t *testing.T) {
	w := fleet(t)[1]
	want, err := Marshal(w)
	require.NoError(t, err)
	w.Expired = true
	got, err := Marshal(w)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}
