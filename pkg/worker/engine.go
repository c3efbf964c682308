package worker

import (
	"fmt"
	"slices"
	"strings"
)

// Engine names the serving engine, which decides how prefill hands KV over to decode.
type Engine string

// The engines Baton knows.
const (
	SGLang      Engine = "sglang"
	VLLM        Engine = "vllm"
	TensorRTLLM Engine = "trtllm"
	// VLLMMooncake is vLLM with MooncakeConnector; VLLM is vLLM with NixlConnector. The
	// two have no hand-off in common.
	VLLMMooncake Engine = "vllm-mooncake"
)

// names are the engines; a test's build has one more.
var names = []Engine{SGLang, VLLM, VLLMMooncake, TensorRTLLM}

// EngineNames lists the engines, for errors that refuse another name. It leaves out that of tests.
func EngineNames() string { return engineNames }

var engineNames = func() string {
	var list []string
	for _, n := range names {
		list = append(list, string(n))
	}
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " or " + list[last]
}()

// ParseEngine reads an engine name.
func ParseEngine(s string) (Engine, error) {
	if e := Engine(s); slices.Contains(names, e) {
		return e, nil
	}
	return "", fmt.Errorf("worker: engine %q: expected %s", s, EngineNames())
}

// LacksBootstrap reports whether w, as a prefill worker, does not say where decode
// workers meet it although its engine requires that (docs/behaviour.md#eligible). No
// decode worker could find its KV.
func (w *Worker) LacksBootstrap() bool {
	switch w.Engine {
	case SGLang:
		return w.Bootstrap.IsZero()
	case VLLMMooncake:
		return w.Bootstrap.IsZero() || uint64(len(w.Bootstrap.EngineIDs)) != uint64(w.DPSize)
	default:
		return false
	}
}
