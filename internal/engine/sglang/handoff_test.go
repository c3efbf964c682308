package sglang_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestSGLangMembersAreWrittenWithoutLosingTheRoom(t *testing.T) {
	got := sglang.HandOff.Together.Members([]byte("{"), &handoff.Meeting{
		Bootstrap: worker.Bootstrap{Host: "10.0.0.5", Port: 8998}, Room: prefill.MaxRoom,
	})
	require.Equal(t, `{"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":9223372036854775807`, string(got))
}

func TestAnIPv6BootstrapHostIsBracketedOnce(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.5": "10.0.0.5", "fd00::5": "[fd00::5]", "[fd00::5]": "[fd00::5]", "prefill-0.pool": "prefill-0.pool",
	} {
		require.Equal(t, want, handoff.Host(worker.Bootstrap{Host: in, Port: 1}))
	}
}

// TestThePrefillLegAsksForOneTokenAndNoStream tests docs/behaviour.md#one-token.
func TestThePrefillLegAsksForOneTokenAndNoStream(t *testing.T) {
	for name, c := range map[string]struct {
		path     openai.Path
		in, want string
	}{
		"a streamed chat": {
			openai.ChatCompletions,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[],"max_tokens":64}`,
			`{"model":"m","stream":false,"messages":[],"max_tokens":1}`,
		},
		"a response keeps its limit: the engine refuses one below 2": {
			openai.Responses,
			`{"model":"m","stream":true,"input":"a","max_output_tokens":64}`,
			`{"model":"m","stream":false,"input":"a","max_output_tokens":64}`,
		},
		"both limits given": {
			openai.ChatCompletions,
			`{"model":"m","messages":[],"max_tokens":64,"max_completion_tokens":32,"min_tokens":8}`,
			`{"model":"m","messages":[],"max_tokens":1,"max_completion_tokens":1,"min_tokens":1,"stream":false}`,
		},
		"a completion with no limit": {
			openai.Completions,
			`{"model":"m","prompt":"a max_tokens: 7 in the text"}`,
			`{"model":"m","prompt":"a max_tokens: 7 in the text","max_tokens":1,"stream":false}`,
		},
		"a floor without a newer limit, which forbids its token to be the last one": {
			openai.ChatCompletions,
			`{"model":"m","messages":[],"min_tokens":8}`,
			`{"model":"m","messages":[],"min_tokens":1,"max_tokens":1,"stream":false}`,
		},
		"a floor that forbids nothing": {
			openai.ChatCompletions,
			`{"model":"m","messages":[],"min_tokens":0,"max_tokens":9}`,
			`{"model":"m","messages":[],"max_tokens":1,"stream":false}`,
		},
		"generate has its floor elsewhere, which may not be above the limit": {
			openai.Generate,
			`{"text":"a","sampling_params":{"min_new_tokens":8,"max_new_tokens":9}}`,
			`{"text":"a","sampling_params":{"min_new_tokens":1,"max_new_tokens":1},"stream":false}`,
		},
		"generate keeps its limit elsewhere": {
			openai.Generate,
			`{"text":"a","sampling_params":{"temperature":0,"max_new_tokens":9},"stream":true}`,
			`{"text":"a","sampling_params":{"temperature":0,"max_new_tokens":1},"stream":false}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r openai.Request
			require.NoError(t, openai.Scan(c.path, []byte(c.in), &r))
			require.Equal(t, c.want, string(openai.AppendEdited(nil, []byte(c.in), &r, sglang.HandOff.Together.Prefill([]byte(c.in), &r, 7)...)))
		})
	}
}

// TestARefusalThatQuotesTheBodyDoesNotTellTheRendezvous: as SGLang 0.5.23 and its framework quote it.
func TestARefusalThatQuotesTheBodyDoesNotTellTheRendezvous(t *testing.T) {
	for said, want := range map[string]string{
		`{"message":"1 validation error:\n {'input': {'model': 'tiny', 'bootstrap_host': '127.0.0.1', 'bootstrap_port': 8998, 'bootstrap_room': 9223372036854775807}}"}`: `{"message":"1 validation error:\n {'input': {'model': 'tiny'}}"}`,
		`{"input":{"model":"m","bootstrap_host":"::1","bootstrap_port":1,"bootstrap_room":2}}`:                                                                           `{"input":{"model":"m"}}`,
		`{"message":"b'{\"text\":\"a\",\"bootstrap_host\":\"10.0.0.5\",\"bootstrap_port\":8998,\"bootstrap_room\":7}'"}`:                                                 `{"message":"b'{\"text\":\"a\"}'"}`,
	} {
		got, quoted := sglang.HandOff.Unquoted([]byte(said))
		require.True(t, quoted, said)
		require.Equal(t, want, string(got))
	}
	_, quoted := sglang.HandOff.Unquoted([]byte(`{"message":"bootstrap_room is required"}`))
	require.False(t, quoted)
}
