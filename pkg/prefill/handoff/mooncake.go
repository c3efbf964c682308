package handoff

import (
	"net"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// vLLM with MooncakeConnector (mooncake_connector.py, examples/disaggregated
// /mooncake_connector/mooncake_connector_proxy.py; tried with 0.32): both legs at once, and
// both name the transfer. Decode asks prefill's bootstrap server where the engine is that
// it was told of, and waits until prefill has computed. Prefill answers at once.

// transferID names an attempt's transfer: the room is drawn anew for each.
func transferID(dst []byte, room prefill.Room) []byte {
	return strconv.AppendUint(append(dst, "baton-"...), uint64(room), 10)
}

// AppendMooncake appends the raw JSON member that decode's leg carries. The bootstrap is
// prefill's, of a rank that [worker.Bootstrap.EngineIDs] names.
func AppendMooncake(dst []byte, b worker.Bootstrap, rank worker.DPRank, room prefill.Room) []byte {
	dst = append(dst, `"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":`...)
	dst = openai.AppendString(dst, "http://"+net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	dst = append(dst, `,"remote_engine_id":`...)
	dst = openai.AppendString(dst, b.EngineIDs[rank])
	dst = append(dst, `,"transfer_id":"`...)
	return append(transferID(dst, room), `"}`...)
}

// MooncakePrefill appends the edits that make r's body, which carries decode's member,
// prefill's: one token, no stream, and its own part of the transfer. At least one token is
// asked for as well: a prefill whose token ends the answer gives its KV up, and decode
// waits for it for minutes.
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

// AppendMooncakeCollect appends the body of a decode that fetches what prefill holds for
// one that has not come, so that it is freed. Prefill gives the last blocks to one
// that asks for fewer, and one token is too short for a block of the cache: what is fetched
// is never found there.
func AppendMooncakeCollect(dst []byte, model string, b worker.Bootstrap, rank worker.DPRank, room prefill.Room) []byte {
	dst = append(dst, `{"model":`...)
	dst = openai.AppendString(dst, model)
	dst = append(dst, `,"prompt":[1],"max_tokens":1,`...)
	return append(AppendMooncake(dst, b, rank, room), '}')
}
