package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// trtOwner is the owner that trtllm-serve gives for its model.
const trtOwner = "tensorrt_llm"

// trtUncounted says why requests in flight are not counted. Two pages report iterations,
// and only those that have ended: /metrics gives each to the first reader only, and
// nothing while the engine is idle; the gauges of /prometheus/metrics are written when a
// request ends, and may be zero for as long as one runs.
const trtUncounted = "TensorRT-LLM tells only of iterations that are over"

// trtServerInfo is the part of trtllm-serve's /server_info that matters for routing. Only
// newer versions have tokens_per_block.
type trtServerInfo struct {
	Disagg         json.RawMessage `json:"disaggregated_params"` // nil if it is absent
	TokensPerBlock *uint32         `json:"tokens_per_block"`
}

// parseTRTServerInfo reads an answer of /server_info and returns the tokens in a KV
// block, or 0 if the answer does not have them. JSON that is not TensorRT-LLM's is an
// error: SGLang and vLLM have a page of this name, too.
func parseTRTServerInfo(body []byte) (blockSize uint32, err error) {
	var in trtServerInfo
	if err := json.Unmarshal(body, &in); err != nil {
		return 0, wrongJSON(err)
	}
	if in.Disagg == nil {
		return 0, errors.New("no disaggregated_params: not of TensorRT-LLM")
	}
	return or0(in.TokensPerBlock), nil
}

// ownedByTRT reports whether an answer of /v1/models lists a model of trtllm-serve.
func ownedByTRT(body []byte) bool {
	var list struct {
		Data []struct {
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &list) != nil {
		return false
	}
	for _, m := range list.Data {
		if m.OwnedBy == trtOwner {
			return true
		}
	}
	return false
}

// trtFacts asks trtllm-serve. Only its /server_info tells it from vLLM, which has the
// same other pages. If that page is missing, as in older versions, the operator must have
// named the engine.
//
// It does not ask for /metrics, which gives the numbers of each iteration to one reader
// only.
func (c *Client) trtFacts(ctx context.Context) (Facts, error) {
	f := Facts{Engine: worker.TensorRTLLM}
	body, err := c.get(ctx, "/server_info")
	switch {
	case missing(err) && c.cfg.Kind == TensorRTLLM:
	case err != nil:
		return Facts{}, err
	default:
		if f.BlockSize, err = parseTRTServerInfo(body); err != nil {
			return Facts{}, fmt.Errorf("/server_info: %w", err)
		}
	}
	if f.Version, err = c.version(ctx); err != nil {
		return Facts{}, err
	}
	if body, err = c.get(ctx, "/v1/models"); err != nil {
		return Facts{}, err
	}
	if f.Models, _, f.MaxModelLen, err = parseModels(body); err != nil {
		return Facts{}, fmt.Errorf("/v1/models: %w", err)
	}
	return f, nil
}

// version reads the page /version, which vLLM and TensorRT-LLM have in one form.
func (c *Client) version(ctx context.Context) (string, error) {
	body, err := c.get(ctx, "/version")
	if err != nil {
		return "", err
	}
	var v struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(body, &v); err != nil || v.Version == "" {
		return "", errors.New(`/version: expected a JSON object with "version"`)
	}
	return v.Version, nil
}
