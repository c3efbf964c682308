// Command tokens measures pkg/tokens/bpe beside Hugging Face's tokenizers (a Python
// package), on published tokenizers and on texts of this repository.
//
// Two figures for each family. The first sight of 220 KB: the CPU that an encoder takes
// which has met no word yet, and that of the Python package, fresh as well and then once
// more, in the same run and in turn. And the next turn of a conversation of 100,000 tokens,
// 300 new bytes: from the body's last byte over the chat template to the block hashes, each
// turn timed singly.
//
// Then both once more for Qwen3 beside /tokenize of a real vLLM on this CPU, as its clients
// meet it: the time to its whole answer, and the CPU time of its front-end.
//
// The tokens must be the same everywhere; otherwise it fails.
package main
