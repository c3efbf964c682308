package trtllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var pages = ask.Reader{
	Title: "TensorRT-LLM", Facts: facts,
	Count: func(context.Context, ask.Pages) (int, error) {
		return 0, fmt.Errorf("%w: %s", ask.ErrNotCounted, uncounted)
	},
}

// uncounted says why requests in flight are not counted. Two pages report iterations,
// and only those that have ended: /metrics gives each to the first reader only, and
// nothing while the engine is idle; the gauges of /prometheus/metrics are written when a
// request ends, and may be zero for as long as one runs.
const uncounted = "TensorRT-LLM tells only of iterations that are over"

// serverInfo is the part of trtllm-serve's /server_info that matters for routing. Only
// newer versions have tokens_per_block.
type serverInfo struct {
	Disagg         json.RawMessage `json:"disaggregated_params"` // nil if it is absent
	TokensPerBlock *uint32         `json:"tokens_per_block"`
}

// parseServerInfo reads an answer of /server_info and returns the tokens in a KV
// block, or 0 if the answer does not have them. JSON that is not TensorRT-LLM's is an
// error: SGLang and vLLM have a page of this name, too.
func parseServerInfo(body []byte) (blockSize uint32, err error) {
	var in serverInfo
	if err := json.Unmarshal(body, &in); err != nil {
		return 0, ask.WrongJSON(err)
	}
	if in.Disagg == nil {
		return 0, errors.New("no disaggregated_params: not of TensorRT-LLM")
	}
	return ask.Or0(in.TokensPerBlock), nil
}

// facts asks trtllm-serve. Only its /server_info tells it from vLLM, which has the
// same other pages. If that page is missing, as in older versions, the operator must have
// named the engine.
//
// It does not ask for /metrics, which gives the numbers of each iteration to one reader
// only.
func facts(ctx context.Context, p ask.Pages) (ask.Facts, error) {
	f := ask.Facts{Engine: worker.TensorRTLLM}
	body, err := p.Get(ctx, "/server_info")
	switch {
	case ask.Missing(err) && p.Named() == worker.TensorRTLLM:
	case err != nil:
		return ask.Facts{}, err
	default:
		f.BlockSize, err = parseServerInfo(body)
		if err != nil {
			return ask.Facts{}, fmt.Errorf("/server_info: %w", err)
		}
	}
	f.Version, err = ask.Version(ctx, p)
	if err != nil {
		return ask.Facts{}, err
	}
	f.Pair[worker.EngineVersion] = f.Version
	body, err = p.Get(ctx, "/v1/models")
	if err != nil {
		return ask.Facts{}, err
	}
	list, err := ask.Models(body)
	if err != nil {
		return ask.Facts{}, fmt.Errorf("/v1/models: %w", err)
	}
	f.Models, f.MaxModelLen = list.Names, list.Length
	return f, nil
}
