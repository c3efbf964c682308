// Command install puts real engines into .tools/real: uv, vLLM for CPUs, SGLang beside
// it, tiny models, and what the tests take from the npm registry.
//
// Everything is pinned with hashes (../pins, ../node). Each step writes a mark once it
// is whole; a step without one, or with that of other pins, is made again from what was
// downloaded. What speaks against an install is said at once, before anything is
// downloaded.
package main
