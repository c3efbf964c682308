package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// trtOwner is by whom trtllm-serve says that its model is owned.
const trtOwner = "tensorrt_llm"

// trtUncounted says why requests in flight are not counted. Both pages tell of
// iterations that are over: /metrics to whoever asks first, and nothing while
// the engine is idle; the gauges of /prometheus/metrics are written when a
// request ends, and may say zero for as long as one runs.
const trtUncounted = "TensorRT-LLM tells only of iterations that are over"

// trtServerInfo is the part of trtllm-serve's /server_info that tells of
// routing; tokens_per_block is of newer versions.
type trtServerInfo struct {
	Disagg         json.RawMessage `json:"disaggregated_params"` // nil where it is absent
	TokensPerBlock *uint32         `json:"tokens_per_block"`
}

// parseTRTServerInfo reads an answer of /server_info and returns the tokens in
// a KV block, or 0 where they are not told. What is JSON but not of
// TensorRT-LLM is refused: SGLang and vLLM have a page of this name, too.
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

// ownedByTRT reports whether a model of an answer of /v1/models is trtllm-serve's.
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

// trtFacts asks trtllm-serve. Its /server_info alone tells it from vLLM, which
// answers the other pages alike: where it is missing, as in older versions,
// only an operator who has named the engine is believed.
//
// /metrics is not asked: it hands each iteration's numbers to one reader only.
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

// version reads the page that vLLM and TensorRT-LLM have alike.
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
