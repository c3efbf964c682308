package vllmmooncake

import (
	"net"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// HandOff is that of vLLM with MooncakeConnector (mooncake_connector.py,
// examples/disaggregated/mooncake_connector/mooncake_connector_proxy.py; tried with 0.32): both
// legs begin at once, and both name the transfer. Decode asks prefill's bootstrap server for
// the address of the engine whose id it was given, and waits until prefill has computed the
// KV. Prefill answers without waiting for decode, and holds its KV.
var HandOff = &handoff.Protocol{
	Name:     "mooncake",
	Together: &handoff.Together{Members: members, Prefill: oneToken, NamesRank: true, Collect: collect},
	Lease:    lease,
	Takes:    vllm.Takes.Only(openai.ChatCompletions, openai.Completions, openai.Responses),
}

// lease is VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT where it is not set
// (docs/engines.md#mooncake-holds; 0.32, envs.py).
const lease = 480 * time.Second

// transferID appends the name of an attempt's transfer. It is made of the room, which
// is drawn anew for each attempt.
func transferID(dst []byte, room prefill.Room) []byte {
	return strconv.AppendUint(append(dst, "baton-"...), uint64(room), 10)
}

// members appends the member of decode's body. [worker.Bootstrap.EngineIDs] must have an id for
// the rank.
func members(dst []byte, m *handoff.Meeting) []byte {
	b := &m.Bootstrap
	dst = append(dst, `"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":`...)
	dst = openai.AppendString(dst, "http://"+net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	dst = append(dst, `,"remote_engine_id":`...)
	dst = openai.AppendString(dst, b.EngineIDs[m.Rank])
	dst = append(dst, `,"transfer_id":"`...)
	return append(transferID(dst, m.Room), `"}`...)
}

// oneToken makes prefill's body, with prefill's part of the transfer. If prefill's token ended the
// answer, prefill would free its KV, and decode would wait for the KV for minutes. So a minimum of
// one token is asked for as well, or, of a response, which has none, that nothing ends it. A message
// has neither, and is not handed over.
func oneToken(_ []byte, r *openai.Request, room prefill.Room) []openai.Edit {
	params := append([]byte(nil), `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`...)
	edits := []openai.Edit{{Field: openai.MaxTokens, Value: handoff.One}, {Field: openai.MinTokens, Value: handoff.One}}
	if r.Path == openai.Responses {
		edits = []openai.Edit{
			{Field: openai.MaxOutputTokens, Value: handoff.One}, {Field: openai.Store, Value: handoff.No},
			{Field: openai.IgnoreEOS, Value: []byte("true")}, {Field: openai.Stop}, {Field: openai.StopTokenIDs},
		}
	}
	edits = append(edits, openai.Edit{Field: openai.StreamOptions}, openai.Edit{Field: openai.Stream, Value: handoff.No},
		openai.Edit{Field: openai.KVTransferParams, Value: append(transferID(params, room), `"}`...)})
	if r.Has(openai.MaxCompletionTokens) {
		edits = append(edits, openai.Edit{Field: openai.MaxCompletionTokens, Value: handoff.One})
	}
	return edits
}

// collect asks for one token of prompt: prefill gives the last blocks to a request for fewer blocks. One
// token fills no block of the cache, so a later prompt never finds what was fetched.
func collect(dst []byte, model string, m *handoff.Meeting) []byte {
	dst = append(dst, `{"model":`...)
	dst = openai.AppendString(dst, model)
	dst = append(dst, `,"prompt":[1],"max_tokens":1,`...)
	return append(members(dst, m), '}')
}
