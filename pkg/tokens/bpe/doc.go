// Package bpe turns text into a model's token ids, as Hugging Face's tokenizers does it
// from the same tokenizer.json.
//
// A [Tokenizer] is what one tokenizer.json says. An [Encoder] encodes by it, and
// [Segments] remembers what was encoded, so that a conversation's next turn costs what is
// new in it. Two kinds are known: byte-level byte-pair encoding (Qwen, Llama 3, DeepSeek,
// GPT-4o) and that of characters with byte fallback, as SentencePiece makes it (Gemma,
// Llama 2, Mistral).
//
// Contract:
//
//   - Exact or refused. [Load] refuses a file with anything that this package does not do
//     as tokenizers does it: another model, normalizer, pre-tokenizer, post-processor,
//     option or regular expression. The error names the member and what was expected.
//   - The judge is tokenizers itself: oracle_test.go compares ids of random texts in
//     many scripts, and the tables of character classes and compositions are written from
//     its answers about every code point (testdata/oracle.py). The Unicode version is
//     therefore that of tokenizers and not that of Go.
//   - A text that is not UTF-8 is refused, since engines refuse such a request.
//   - Work and memory are bounded ([Limits]). Merging a word of n symbols takes n log n
//     steps.
//   - In the steady state encoding allocates nothing.
//
// How a text is encoded. Added tokens are cut out first, the longest at each place. What
// lies between them is normalized; the few added tokens that match normalized text are
// cut out; patterns cut the rest into words; and within each word the pair of the lowest
// rank merges, the leftmost first, until no pair merges.
//
// Borders. No token reaches over an added token that is cut out first, and what stands on
// one side changes nothing on the other, with two exceptions: a token with lstrip or rstrip
// takes the spaces beside it, so tokens are sought in the whole text before anything is
// looked up, and no segment ends where the next token may begin among such spaces; and a tokenizer with prepend_scheme first
// encodes the beginning of the text otherwise, which is part of a segment's name. Short texts between tokens
// are one segment with these tokens. A long
// segment is also cut between a line break and an ASCII letter or digit, where the
// tokenizer's patterns surely end a piece (cutsLines says why and when).
//
// What this package does not do: it knows no chat template, decodes no ids, truncates and
// pads nothing, and does no I/O. Added tokens that only tokenizer_config.json names are
// unknown to it. It does not know what an engine does before or after the tokenizer:
// whoever uses it compares its counts with the engine's.
package bpe
