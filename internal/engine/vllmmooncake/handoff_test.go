package vllmmooncake_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/vllmmooncake"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestMooncakesHalves tests the member of decode's body, and prefill's body made from
// it. vLLM 0.32 has accepted both.
func TestMooncakesHalves(t *testing.T) {
	const room = prefill.MaxRoom
	b := worker.Bootstrap{Host: "10.0.0.5", Port: 8998, EngineIDs: []string{"e0", "e1"}}
	for name, c := range map[string]struct {
		path                openai.Path
		in, decode, prefill string
	}{
		"a streamed chat": {
			openai.ChatCompletions,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[],"max_tokens":64}`,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[],"max_tokens":64,` +
				`"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":"http://10.0.0.5:8998","remote_engine_id":"e1","transfer_id":"baton-9223372036854775807"}}`,
			`{"model":"m","stream":false,"messages":[],"max_tokens":1,` +
				`"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"baton-9223372036854775807"},"min_tokens":1}`,
		},
		"a completion with the newer limit": {
			openai.Completions,
			`{"model":"m","prompt":"a","max_completion_tokens":32,"min_tokens":8}`,
			`{"model":"m","prompt":"a","max_completion_tokens":32,"min_tokens":8,` +
				`"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":"http://10.0.0.5:8998","remote_engine_id":"e1","transfer_id":"baton-9223372036854775807"}}`,
			`{"model":"m","prompt":"a","max_completion_tokens":1,"min_tokens":1,` +
				`"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"baton-9223372036854775807"},"max_tokens":1,"stream":false}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r openai.Request
			require.NoError(t, openai.Scan(c.path, []byte(c.in), &r))
			decode := openai.InjectInPlace([]byte(c.in), &r, vllmmooncake.HandOff.Together.Members(nil, &handoff.Meeting{Bootstrap: b, Rank: 1, Room: room}))
			require.Equal(t, c.decode, string(decode))
			require.NoError(t, openai.ScanInjected(c.path, decode, &r))
			require.Equal(t, c.prefill, string(openai.AppendEdited(nil, decode, &r, vllmmooncake.HandOff.Together.Prefill(decode, &r, room)...)))
		})
	}
}

func TestMooncakeHandsOverOneGeneration(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","prompt":"a"}`: "", `{"model":"m","prompt":"a","n":2}`: "n", `{"model":"m","prompt":["a","b"]}`: "prompt",
	} {
		var r openai.Request
		require.NoError(t, openai.Scan(openai.Completions, []byte(body), &r))
		require.Equal(t, want, handoff.Hindrance(vllmmooncake.HandOff, []byte(body), &r, nil).Member, body)
	}
}

func TestMooncakesKVIsCollectedWithOneToken(t *testing.T) {
	b := worker.Bootstrap{Host: "10.0.0.1", Port: 8998, EngineIDs: []string{"e0", "e1"}}
	require.Equal(t, `{"model":"a \"b\"","prompt":[1],"max_tokens":1,"kv_transfer_params":{"do_remote_decode":false,`+
		`"do_remote_prefill":true,"remote_bootstrap_addr":"http://10.0.0.1:8998","remote_engine_id":"e1","transfer_id":"baton-7"}}`,
		string(vllmmooncake.HandOff.Together.Collect(nil, `a "b"`, &handoff.Meeting{Bootstrap: b, Rank: 1, Room: 7})))
}
