package handoff_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/pkg/openai"
)

// A request for vLLM: what is sent to prefill, what prefill's answer means, and what is
// sent to decode.
func Example() {
	kind := vllm.HandOff
	body := []byte(`{"model":"m","prompt":"Once","max_tokens":64,"stream":true}`)
	var r openai.Request
	if err := openai.Scan(openai.Completions, body, &r); err != nil {
		fmt.Println(err)
		return
	}
	if handoff.Alone(kind, &r) || handoff.Hindrance(kind, body, &r, nil) != (handoff.Obstacle{}) {
		return
	}
	fmt.Printf("%s\n", handoff.AppendPrefill(nil, body, &r, kind, 0, false))

	answer := []byte(`{"id":"cmpl-1","choices":[{"index":0,"text":" upon","finish_reason":"length"}],` +
		`"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[12,13]],"remote_host":"10.0.0.5"}}`)
	res, err := handoff.ReadAnswer(kind, answer, false)
	fmt.Println(res.Verdict, err)
	if res.Verdict == handoff.HandOff {
		fmt.Printf("%s\n", handoff.AppendDecode(nil, body, &r, kind, answer, res))
	}
	// Output:
	// {"model":"m","prompt":"Once","max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}
	// hand_off <nil>
	// {"model":"m","prompt":"Once","max_tokens":64,"stream":true,"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[12,13]],"remote_host":"10.0.0.5"}}
}

// If the generation ends with prefill's token, prefill's answer is the response. If KV
// is held all the same, a request whose answer is dropped collects it.
func ExampleAppendFinal() {
	kind := vllm.HandOff
	body := []byte(`{"model":"m","prompt":"The end.","max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}`)
	var r openai.Request
	if err := openai.Scan(openai.Completions, body, &r); err != nil {
		fmt.Println(err)
		return
	}
	answer := []byte(`{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":3},"kv_transfer_params":null}`)
	res, err := handoff.ReadAnswer(kind, answer, true)
	fmt.Println(res.Verdict, err)
	out, contentType, err := handoff.AppendFinal(nil, answer, &r, body, kind)
	fmt.Printf("%s %v\n%s", contentType, err, out)
	// Output:
	// finished <nil>
	// text/event-stream <nil>
	// data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":null}],"usage":null}
	//
	// data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"stop"}],"usage":null}
	//
	// data: {"id":"cmpl-1","object":"text_completion","choices":[],"usage":{"prompt_tokens":3}}
	//
	// data: [DONE]
}
