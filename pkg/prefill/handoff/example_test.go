package handoff_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A request for SGLang: both legs begin at once, and meet at prefill's bootstrap server.
func ExampleRequest_Together() {
	r, err := handoff.Read(worker.SGLang, "/v1/completions", []byte(`{"model":"m","prompt":"Once","max_tokens":64}`))
	if err != nil || r.Obstacle() != "" {
		fmt.Println(err)
		return
	}
	toPrefill, toDecode := r.Together(worker.Bootstrap{Host: "10.0.0.5", Port: 8998}, 0, 7)
	fmt.Printf("%s\n%s\n", toPrefill, toDecode)
	// Output:
	// {"model":"m","prompt":"Once","max_tokens":1,"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":7,"stream":false}
	// {"model":"m","prompt":"Once","max_tokens":64,"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":7}
}

// A request for vLLM: prefill goes first, and decode's body has what prefill answered.
func ExampleRequest_Next() {
	r, err := handoff.Read(worker.VLLM, "/v1/completions", []byte(`{"model":"m","prompt":"Once","max_tokens":64}`))
	if err != nil || r.Obstacle() != "" {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", r.Prefill(0))
	answer := `{"choices":[{"text":" upon","finish_reason":"length"}],"kv_transfer_params":{"remote_host":"10.0.0.5"}}`
	next, err := r.Next([]byte(answer))
	fmt.Printf("%s %v\n%s\n", next.Decode, err, next.Collect)

	over := `{"choices":[{"text":".","finish_reason":"stop"}],"kv_transfer_params":null}`
	next, err = r.Next([]byte(over))
	fmt.Printf("%s %s %v\n", next.ContentType, next.Response, err)
	// Output:
	// {"model":"m","prompt":"Once","max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}
	// {"model":"m","prompt":"Once","max_tokens":64,"kv_transfer_params":{"remote_host":"10.0.0.5"}} <nil>
	// {"model":"m","prompt":"Once","max_tokens":1,"stream":false,"kv_transfer_params":{"remote_host":"10.0.0.5"}}
	// application/json {"choices":[{"text":".","finish_reason":"stop"}]} <nil>
}
