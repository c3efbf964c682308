package engine

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
)

func TestWhatAnEngineRunsIsReadFromItsPage(t *testing.T) {
	loads := `{"loads":[
		{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":9,"num_used_tokens":161,"disaggregation":{"decode_transfer_queue_reqs":2,"decode_prealloc_queue_reqs":7}},
		{"dp_rank":1,"num_running_reqs":0,"num_used_tokens":0},
		{"dp_rank":2,"num_running_reqs":1},{"dp_rank":3,"num_used_tokens":5},{"dp_rank":4,"num_running_reqs":1,"num_used_tokens":-5}]}`
	got, err := engines.Of(SGLang).Pages.Running.Read([]byte(loads), 16, 0)
	require.NoError(t, err)
	require.Equal(t, []Running{{Rank: 0, Blocks: 11, Requests: 5, Waiting: 9}, {Rank: 1, Blocks: 0, Requests: 0, Asleep: false}}, got)

	page := `
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} NaN
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="400"} 1.0
vllm:num_requests_running{engine="2",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="2",model_name="m"} 0.5
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0.0
vllm:engine_sleep_state{engine="2",model_name="m",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="2",model_name="m",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="2",model_name="m",sleep_state="discard_all"} 1.0
`
	got, err = engines.Of(VLLM).Pages.Running.Read([]byte(page), 16, 1000)
	require.NoError(t, err)
	slices.SortFunc(got, func(a, b Running) int { return cmp.Compare(a.Rank, b.Rank) })
	require.Equal(t, []Running{{Rank: 0, Blocks: 100, Requests: 2, Waiting: 5}, {Rank: 2, Blocks: 500, Requests: 0, Asleep: true}}, got, "the page's own count of blocks before ours")

	got, err = engines.Of(VLLMMooncake).Pages.Running.Read([]byte("vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.1\n"), 16, 50)
	require.NoError(t, err)
	require.Equal(t, []Running{{Rank: 0, Blocks: 5, Requests: 1, Asleep: false}}, got, "older names, without a rank")
}

func TestAPageThatDoesNotTellIsAnError(t *testing.T) {
	for _, page := range []string{``, `{`, `{"loads":[]}`, `{"loads":[{"dp_rank":0}]}`, `[]`} {
		_, err := engines.Of(SGLang).Pages.Running.Read([]byte(page), 16, 100)
		require.Error(t, err, page)
	}
	for _, page := range []string{
		``, "vllm:num_requests_running 1\n", "vllm:kv_cache_usage_perc 0.1\n",
		"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 7\n", "vllm:num_requests_running -1\nvllm:kv_cache_usage_perc 0.1\n",
	} {
		_, err := engines.Of(VLLM).Pages.Running.Read([]byte(page), 16, 100)
		require.ErrorIs(t, err, ErrNotTold, page)
	}
	_, err := engines.Of(VLLM).Pages.Running.Read([]byte("vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.1\n"), 16, 0)
	require.ErrorIs(t, err, ErrNotTold, "a share of what nobody knows")
	require.Nil(t, engines.Of(TensorRTLLM).Pages.Running)
}
