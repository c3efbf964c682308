package bpe_test

import (
	"fmt"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens/bpe"
)

// A tokenizer.json of three letters: "a" and "b" merge, and "c" does not.
const small = `{
  "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
  "added_tokens": [{"id": 260, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
  "pre_tokenizer": null, "post_processor": null, "decoder": null,
  "model": {"type": "BPE", "byte_fallback": true, "vocab": {%s, "a": 256, "b": 257, "c": 258, "ab": 259}, "merges": ["a b"]}
}`

func file() []byte {
	var bytes []string
	for b := range 256 {
		bytes = append(bytes, fmt.Sprintf(`"<0x%02X>": %d`, b, b))
	}
	return fmt.Appendf(nil, small, strings.Join(bytes, ", "))
}

func ExampleEncoder_Append() {
	t, err := bpe.Load(file(), bpe.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := t.NewEncoder().Append(nil, []byte("abc!<end>"), false)
	fmt.Println(ids, err)
	// Output: [259 258 33 260] <nil>
}

func ExampleSegments() {
	t, err := bpe.Load(file(), bpe.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	s := bpe.NewSegments(t, 1<<20)
	e := t.NewEncoder()
	chat := ""
	for _, message := range []string{"a long text that all turns share<end>", "abab<end>", "c<end>"} {
		chat += message
		ids, err := s.Append(e, nil, []byte(chat), false)
		fmt.Println(len(ids), err)
	}
	// Output:
	// 33 <nil>
	// 36 <nil>
	// 38 <nil>
}
