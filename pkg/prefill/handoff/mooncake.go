package handoff

import (
	"net"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// vLLM with MooncakeConnector (mooncake_connector.py, examples/disaggregated
// /mooncake_connector/mooncake_connector_proxy.py; tried with 0.32): both legs begin at
// once, and both name the transfer. Decode asks prefill's bootstrap server for the
// address of the engine whose id it was given, and waits until prefill has computed the
// KV. Prefill answers without waiting for decode.

// transferID appends the name of an attempt's transfer. It is made of the room, which
// is drawn anew for each attempt.
func transferID(dst []byte, room prefill.Room) []byte {
	return strconv.AppendUint(append(dst, "baton-"...), uint64(room), 10)
}

// AppendMooncake appends the raw JSON member that decode's body carries. b is the
// prefill worker's; [worker.Bootstrap.EngineIDs] must have an id for the rank.
func AppendMooncake(dst []byte, b worker.Bootstrap, rank worker.DPRank, room prefill.Room) []byte {
	dst = append(dst, `"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":`...)
	dst = openai.AppendString(dst, "http://"+net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	dst = append(dst, `,"remote_engine_id":`...)
	dst = openai.AppendString(dst, b.EngineIDs[rank])
	dst = append(dst, `,"transfer_id":"`...)
	return append(transferID(dst, room), `"}`...)
}

// MooncakePrefill appends the edits that make prefill's body from r's body, which
// carries decode's member: one token, no stream, and prefill's part of the transfer. A
// minimum of one token is asked for as well: if prefill's token ended the answer,
// prefill would free its KV, and decode would wait for the KV for minutes.
func MooncakePrefill(edits []openai.Edit, r *openai.Request, room prefill.Room) []openai.Edit {
	params := append([]byte(nil), `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`...)
	edits = append(edits,
		openai.Edit{Field: openai.MaxTokens, Value: one},
		openai.Edit{Field: openai.MinTokens, Value: one},
		openai.Edit{Field: openai.StreamOptions},
		openai.Edit{Field: openai.Stream, Value: no},
		openai.Edit{Field: openai.KVTransferParams, Value: append(transferID(params, room), `"}`...)})
	if r.Has(openai.MaxCompletionTokens) {
		edits = append(edits, openai.Edit{Field: openai.MaxCompletionTokens, Value: one})
	}
	return edits
}

// AppendMooncakeCollect appends the body of a decode request that fetches the KV which
// prefill holds for a decode that has not come, so that the KV is freed. It asks for
// one token of prompt: prefill gives the last blocks to a request for fewer blocks. One
// token fills no block of the cache, so a later prompt never finds what was fetched.
func AppendMooncakeCollect(dst []byte, model string, b worker.Bootstrap, rank worker.DPRank, room prefill.Room) []byte {
	dst = append(dst, `{"model":`...)
	dst = openai.AppendString(dst, model)
	dst = append(dst, `,"prompt":[1],"max_tokens":1,`...)
	return append(AppendMooncake(dst, b, rank, room), '}')
}
