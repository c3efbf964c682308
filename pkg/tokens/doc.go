// Package tokens turns a request into what the index is asked with: the hashes
// of its prompt's blocks, and how many tokens it has.
//
// There is one chain of sources, and each [Prompt] says which one it came from
// and why:
//
//   - the request itself, where it carries token ids;
//   - an engine's own /tokenize, asked over HTTP and remembered; of a prompt with
//     pictures what vLLM's /render tells, or what stands before the first picture;
//   - the byte estimate: runs of bytes of the prompt's text in place of blocks
//     of tokens.
//
// Contract. The caller first asks [Resolver.Fast], which never waits. Only when
// that says no does it ask [Resolver.Engine], which waits for at most
// [Config].Wait, and on an error of that it takes [Resolver.Estimate].
// [Resolver.Resolve] is these three in a row.
//
// Invariants:
//
//   - Hashes with Estimated false match KV events; hashes with Estimated true
//     match only other estimates. One Prompt never mixes the two.
//   - Hashes are made as the pool's workers make theirs: of tokens, or with
//     EAGLE of pairs of them ([Query].Eagle), and of pictures by what an engine
//     calls them. Where none tells, the hashes end before the first picture
//     ([Prompt].Partial), or the prompt is estimated.
//   - A prompt that its engine cuts to so many tokens is hashed as it is cut, by an
//     engine that tells so, or it is estimated; of ids there are no hashes then.
//   - No request waits for a tokenizer longer than Wait, and a tokenizer that
//     is dead or hangs is not asked again for a while, so that it does not cost
//     every request that wait. What is the prompt's fault, or may be that of who
//     has the pictures in it, is held against no tokenizer.
//   - What is remembered of a prompt depends on that prompt alone: one with a
//     picture that an engine loads from elsewhere is asked about each time.
//   - The estimate of a conversation that goes on begins with the hashes of
//     the conversation so far.
//   - In a steady state Fast and Estimate allocate nothing.
//
// What this package does not do: it holds no tokenizer and no chat template,
// recomputes no hash of an engine, and never logs. Prompt text leaves it only
// towards a tokenizer; it is in no error and no reason.
package tokens
