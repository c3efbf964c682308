package handoff

// The member of prefill's and decode's body, and of prefill's answer, that
// carries vLLM's hand-off (tests/v1/kv_connector/nixl_integration
// /toy_proxy_server.py; pull_scheduler.py request_finished).
const vllmMember = "kv_transfer_params"

// vllmHold makes the prefill worker hold its KV. Only do_remote_decode means
// something there; the rest is as the engine's own proxy sends it.
const vllmHold = `,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
	`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// readVLLM reads the hand-off at the top of the answer. Null, which the engine
// writes when nothing is held, and an empty object are none.
func readVLLM(answer []byte, top *members, res *Result) error {
	var err error
	res.HandOff, err = checkHandOff(answer, top.vllm)
	return err
}

// appendVLLM appends the member that decode's body gets.
func appendVLLM(dst, answer []byte, res Result) []byte {
	if !res.Held() {
		return dst
	}
	dst = append(dst, `,"kv_transfer_params":`...)
	return append(dst, res.HandOff.Of(answer)...)
}
