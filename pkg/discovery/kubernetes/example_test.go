package kubernetes_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/discovery/kubernetes"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The labels by which llm-d says which pods prefill.
func ExamplePreset() {
	rules, err := kubernetes.Preset(kubernetes.PresetLLMD)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range rules {
		if r.Role == worker.Prefill {
			fmt.Println(r.Label, r.Value)
		}
	}
	// Output:
	// llm-d.ai/role prefill
	// llm-d.ai/role encode-prefill
}

func ExampleParseSelector() {
	labels, err := kubernetes.ParseSelector("app=vllm,tier=prod")
	fmt.Println(kubernetes.SelectorText(labels), err)
	_, err = kubernetes.ParseSelector("app in (vllm)")
	fmt.Println(err)
	// Output:
	// app=vllm,tier=prod <nil>
	// selector "app in (vllm)": expected name=value, separated by commas
}
