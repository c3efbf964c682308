package vllm

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
)

// HandOff is that of vLLM with NixlConnector in pull mode: prefill first; decode pulls the KV
// from where prefill's answer says (tests/v1/kv_connector/nixl_integration/toy_proxy_server.py;
// pull_scheduler.py request_finished).
var HandOff = &handoff.Protocol{
	Name:  "nixl_pull",
	First: &handoff.First{Hold: hold, Added: []string{member}, Read: read, Append: appendHeld, DrawsAgain: true},
	Lease: lease,
	Takes: Takes,
}

// lease is kv_lease_duration of kv_connector_extra_config where it is not set
// (docs/engines.md#vllm-lease; 0.32, nixl/base_scheduler.py).
const lease = 30 * time.Second

// member carries the hand-off, in the bodies of prefill and decode and in prefill's answer.
const member = "kv_transfer_params"

// hold makes the prefill worker hold its KV. Only do_remote_decode has an effect there; the
// other members are as the engine's own proxy sends them.
func hold(dst []byte, _ uint64) []byte {
	return append(dst, `,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,`+
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`...)
}

// read finds the hand-off, a member of the answer itself. Null, which the engine writes when it
// holds nothing, and an empty object are no hand-off.
func read(answer []byte, top handoff.Members) (handoff.Parts, error) {
	h, err := handoff.Check(answer, top.Added[0])
	return handoff.Parts{HandOff: h}, err
}

func appendHeld(dst, answer []byte, h handoff.Parts) []byte {
	dst = append(dst, `,"kv_transfer_params":`...)
	return append(dst, h.HandOff.Of(answer)...)
}
