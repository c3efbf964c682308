package handoff

// The member that carries vLLM's hand-off, in the bodies of prefill and decode and in
// prefill's answer (tests/v1/kv_connector/nixl_integration/toy_proxy_server.py;
// pull_scheduler.py request_finished).
const vllmMember = "kv_transfer_params"

// vllmHold makes the prefill worker hold its KV. Only do_remote_decode has an effect
// there; the other members are as the engine's own proxy sends them.
const vllmHold = `,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
	`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// readVLLM reads the hand-off, a member of the answer itself. Null, which the engine
// writes when it holds nothing, and an empty object are no hand-off.
func readVLLM(answer []byte, top *members, res *Result) error {
	var err error
	res.HandOff, err = checkHandOff(answer, top.vllm)
	return err
}

// appendVLLM appends the hand-off to decode's body.
func appendVLLM(dst, answer []byte, res Result) []byte {
	if !res.Held() {
		return dst
	}
	dst = append(dst, `,"kv_transfer_params":`...)
	return append(dst, res.HandOff.Of(answer)...)
}
