// Package tokens finds what the index needs to know about a request's prompt: the hashes
// of its blocks, and its length in tokens.
//
// There are four sources, tried in this order. Each [Prompt] names the source it came
// from and the reason:
//
//   - the request itself, if it carries token ids;
//   - the files of its model (package local), if an engine of the model has shown in a
//     trial that they give its tokens, and none has told of others since: answers' counts
//     are compared, and KV events of sampled prompts;
//   - an engine's own /tokenize, asked over HTTP and remembered. For a prompt with
//     pictures it is vLLM's /render, or the tokens before the first picture;
//   - the byte estimate: runs of bytes of the prompt's text stand for blocks of tokens.
//
// Contract. The caller first calls [Resolver.Fast], which never waits. If that returns
// false, it calls [Resolver.Engine], which waits for at most [Config].Wait. If that
// fails, it calls [Resolver.Estimate]. [Resolver.Resolve] does all three in a row.
//
// Invariants:
//
//   - Hashes with Estimated false match KV events; hashes with Estimated true match only
//     other estimates. One Prompt never mixes the two.
//   - Hashes are made as the pool's workers make theirs: over tokens, or with EAGLE over
//     pairs of tokens ([Query].Eagle), and over pictures by the names that an engine
//     gives them. If no engine names them, the hashes end before the first picture
//     ([Prompt].Partial), or the prompt is estimated.
//   - If an engine cuts the prompt to a number of tokens, the hashes are of the cut
//     prompt, as told by an engine that cuts it in the same way. Without such an engine
//     the prompt is estimated, and ids in a request get no hashes. The length is then
//     at most what the cut leaves.
//   - No request waits for a tokenizer longer than Wait. A tokenizer that is dead or
//     hangs is not asked for a while, so that not every request pays this wait. No
//     tokenizer is set aside for a failure that the prompt, or a host of the prompt's
//     pictures, may have caused.
//   - What is remembered of a prompt depends on that prompt alone. A prompt with a
//     picture that an engine loads from an address is therefore asked about each time.
//   - The estimate of a conversation that goes on begins with the hashes of the
//     conversation so far.
//   - In a steady state Fast and Estimate allocate nothing.
//
// This package recomputes no hash of an engine, and never logs. It sends prompt text only to tokenizers; no error and no reason
// contains any.
package tokens
