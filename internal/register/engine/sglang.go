package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// serverInfo is the part of SGLang's /server_info that matters for routing. A pointer is
// nil if the field is absent or null.
type serverInfo struct {
	Mode          *string      `json:"disaggregation_mode"`
	ModelPath     string       `json:"model_path"`
	ServedModel   string       `json:"served_model_name"`
	Host          string       `json:"host"`
	BootstrapPort *uint16      `json:"disaggregation_bootstrap_port"`
	DPSize        *uint32      `json:"dp_size"`
	PageSize      *uint32      `json:"page_size"`
	MaxTokens     *uint64      `json:"max_total_num_tokens"`
	Seed          *json.Number `json:"random_seed"`
	Speculative   string       `json:"speculative_algorithm"`
	Version       string       `json:"version"`
	KV            *sglangKV    `json:"kv_events"`
	// KVConfig is --kv-events-config: null without it. Versions before 0.5.15 have no
	// kv_events beside it.
	KVConfig *json.RawMessage `json:"kv_events_config"`
}

type sglangKV struct {
	Publisher  string  `json:"publisher"`
	Host       string  `json:"endpoint_host"`
	Port       *uint16 `json:"endpoint_port_base"`
	ReplayPort *uint16 `json:"replay_endpoint_port_base"`
	Topic      string  `json:"topic"`
	BlockSize  *uint32 `json:"block_size"`
}

// parseServerInfo reads an answer of /server_info. JSON that is not SGLang's is an error:
// vLLM has a page of this name, too.
func parseServerInfo(body []byte) (Facts, error) {
	var in serverInfo
	if err := json.Unmarshal(body, &in); err != nil {
		return Facts{}, wrongJSON(err)
	}
	if in.Mode == nil && in.ModelPath == "" {
		return Facts{}, errors.New("neither model_path nor disaggregation_mode: not of SGLang")
	}
	f := Facts{
		Engine: worker.SGLang, Version: in.Version, Role: worker.Aggregated,
		DPSize: or0(in.DPSize), BlockSize: or0(in.PageSize), BootstrapPort: or0(in.BootstrapPort), Host: telling(in.Host),
	}
	if in.Mode != nil && *in.Mode != "null" {
		var err error
		if f.Role, err = worker.ParseRole(*in.Mode); err != nil || f.Role == worker.Aggregated {
			return Facts{}, fmt.Errorf("disaggregation_mode %q: expected null, prefill or decode", *in.Mode)
		}
	}
	if in.ServedModel != "" {
		f.Models = []string{in.ServedModel}
	} else if in.ModelPath != "" {
		f.Models = []string{in.ModelPath}
	}
	if f.BlockSize > 0 {
		f.CapacityBlocks = or0(in.MaxTokens) / uint64(f.BlockSize)
	}
	if in.Seed != nil {
		f.Mark.Seed = in.Seed.String()
	}
	f.Eagle = eagle(in.Speculative)
	f.KV = in.KV.facts()
	f.KV.Untold = in.KV == nil && in.KVConfig != nil
	return f, nil
}

// wrongJSON names the field that has the wrong type, if that is the error.
func wrongJSON(err error) error {
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) && te.Field != "" {
		return fmt.Errorf("%s is a %s: expected a %s", te.Field, te.Value, te.Type)
	}
	return fmt.Errorf("expected a JSON object: %w", err)
}

// eagle reports whether a speculative algorithm makes the radix cache work by pairs of
// tokens. It follows SGLang's own predicate SpeculativeAlgorithm.is_eagle(). Older
// versions call EAGLE NEXTN on some models.
// https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/speculative/spec_info.py
func eagle(algorithm string) bool {
	switch strings.ToUpper(algorithm) {
	case "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN":
		return true
	}
	return false
}

func (k *sglangKV) facts() KVEvents {
	if k == nil || or0(k.Port) == 0 || k.Publisher != "" && k.Publisher != "zmq" {
		return KVEvents{}
	}
	return KVEvents{
		KVEvents:  worker.KVEvents{Host: bound(k.Host), Port: *k.Port, ReplayPort: or0(k.ReplayPort), Topic: k.Topic},
		BlockSize: or0(k.BlockSize),
	}
}

func or0[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// bound returns the host of a socket to which others connect: "" if the socket is bound
// to every address of the machine.
func bound(host string) string {
	host = strings.Trim(host, "[]")
	if a, err := netip.ParseAddr(host); host == "*" || err == nil && a.IsUnspecified() {
		return ""
	}
	return host
}

// telling returns the host on which an engine listens if it says where the engine is: ""
// for a loopback address, which means nothing on another machine.
func telling(host string) string {
	host = bound(host)
	if a, err := netip.ParseAddr(host); host == "localhost" || err == nil && a.IsLoopback() {
		return ""
	}
	return host
}

// parseModels reads the ids in an answer of /v1/models. adapters are those with a parent:
// LoRA adapters, in vLLM and SGLang alike. length is the greatest max_model_len, 0 if
// there is none.
func parseModels(body []byte) (models, adapters []string, length uint32, err error) {
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
			Length *uint32 `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, nil, 0, fmt.Errorf("expected a JSON list of models: %w", err)
	}
	for _, m := range list.Data {
		if m.ID == "" || slices.Contains(models, m.ID) {
			continue
		}
		models, length = append(models, m.ID), max(length, or0(m.Length))
		if or0(m.Parent) != "" {
			adapters = append(adapters, m.ID)
		}
	}
	return models, adapters, length, nil
}

func (c *Client) sglangFacts(ctx context.Context) (Facts, error) {
	path := "/server_info"
	body, err := c.get(ctx, path)
	if missing(err) {
		path = "/get_server_info"
		body, err = c.get(ctx, path)
	}
	if err != nil {
		return Facts{}, err
	}
	f, err := parseServerInfo(body)
	if err != nil {
		return Facts{}, fmt.Errorf("%s: %w", path, err)
	}
	body, err = c.getIfThere(ctx, "/v1/models")
	if err == nil && body != nil {
		var more []string
		if more, f.Adapters, f.MaxModelLen, err = parseModels(body); err != nil {
			err = fmt.Errorf("/v1/models: %w", err)
		}
		for _, m := range more {
			if !slices.Contains(f.Models, m) {
				f.Models = append(f.Models, m)
			}
		}
	}
	f.Unread.Models = err
	page, err := c.getIfThere(ctx, "/metrics")
	f.Mark.Start, f.Unread.Metrics = startTime(page), err
	return f, nil
}

// startTime returns process_start_time_seconds as it is written, or "".
func startTime(page []byte) string {
	out := ""
	samples(page, func(name string) bool { return name == "process_start_time_seconds" }, func(s sample) { out = s.text })
	return out
}

// sglangLoad is one rank's part of an answer of /v1/loads.
type sglangLoad struct {
	Running *int `json:"num_running_reqs"`
	Waiting int  `json:"num_waiting_reqs"`
	Disagg  *struct {
		PrefillPrealloc int `json:"prefill_prealloc_queue_reqs"`
		PrefillAlone    int `json:"prefill_bootstrap_queue_reqs"` // the name in 0.5.23
		PrefillInflight int `json:"prefill_inflight_queue_reqs"`
		DecodePrealloc  int `json:"decode_prealloc_queue_reqs"`
		DecodeTransfer  int `json:"decode_transfer_queue_reqs"`
		DecodeRetracted int `json:"decode_retracted_queue_reqs"`
	} `json:"disaggregation"`
}

// parseLoads counts the requests in an answer of /v1/loads. A request in several queues
// is counted more than once: what matters is whether there are any.
func parseLoads(body []byte) (int, error) {
	var in struct {
		Loads []sglangLoad `json:"loads"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return 0, fmt.Errorf("expected a JSON list of loads: %w", err)
	}
	n, counted := 0, false
	for _, l := range in.Loads {
		if l.Running == nil {
			continue
		}
		counted = true
		n += *l.Running + l.Waiting
		if d := l.Disagg; d != nil {
			n += d.PrefillPrealloc + d.PrefillAlone + d.PrefillInflight + d.DecodePrealloc + d.DecodeTransfer + d.DecodeRetracted
		}
	}
	if !counted {
		return 0, errors.New("expected num_running_reqs of at least one rank")
	}
	return n, nil
}

// sglangGauges count a worker's requests: running, waiting, and in the queues of the
// hand-off.
var sglangGauges = []string{
	"sglang:num_running_reqs", "sglang:num_queue_reqs",
	"sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_inflight_queue_reqs",
	"sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs",
}

// sglangInFlight prefers /v1/loads, which asks the scheduler, and is there when metrics
// are off. The gauges are used if that page is missing, but not if it fails: they are
// written at intervals, and may still be zero.
func (c *Client) sglangInFlight(ctx context.Context) (int, error) {
	body, err := c.getIfThere(ctx, "/v1/loads?include=core,disagg")
	if err != nil {
		return 0, err
	}
	if n, err := parseLoads(body); err == nil {
		return n, nil
	}
	return c.sumGauges(ctx, sglangGauges)
}
