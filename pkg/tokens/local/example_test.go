package local_test

import (
	"fmt"
	"strings"
	"testing/fstest"

	"github.com/seed-60ae5743/baton/pkg/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The files of a model whose tokens are bytes, but for "ab".
func published() fstest.MapFS {
	var bytes []string
	for b := range 256 {
		bytes = append(bytes, fmt.Sprintf(`"<0x%02X>": %d`, b, b))
	}
	return fstest.MapFS{"tokenizer.json": {Data: fmt.Appendf(nil, `{
		"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
		"pre_tokenizer": null, "post_processor": null, "decoder": null,
		"model": {"type": "BPE", "byte_fallback": true, "vocab": {%s, "a": 256, "b": 257, "ab": 258}, "merges": ["a b"]}
	}`, strings.Join(bytes, ", "))}}
}

func ExampleNew() {
	files, err := local.Read(published())
	if err != nil {
		fmt.Println(err)
		return
	}
	model, err := local.New(files, local.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	body := []byte(`{"model":"m","prompt":"abba!"}`)
	var r openai.Request
	if err := openai.Scan(openai.Completions, body, &r); err != nil {
		fmt.Println(err)
		return
	}
	ids, n, err := model.Append(nil, tokens.CallerOf(worker.VLLM), &r, body)
	fmt.Println(ids, n, err)
	fmt.Println("conversations:", model.Chat())
	// Output:
	// [258 257 256 33] 4 <nil>
	// conversations: tokenizer_config.json is not there
}
