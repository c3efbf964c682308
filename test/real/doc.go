// Package real runs real engines, vLLM and SGLang, on a CPU with tiny models of
// random weights, so that "works with" is a command. `make real` installs them into
// .tools/real and runs the tests of this package, which carry the tag real.
//
// The engines are those of the package registries: HTTP, tokenizer, scheduler, prefix
// cache, KV events and the transfer of KV over TCP are theirs. vLLM is as published;
// SGLang is changed in three places to run on a CPU (python/sglang_cpu.py), and
// whatever depends on one of them says so. What the weights compute means nothing,
// so no test looks at what is answered, only at how.
//
// # Contract
//
// [Home] names where the install is; each step of it is whole or not there.
// [StartVLLM] and [StartSGLang] run one engine in a process group of its own and
// return once it serves. It ends with Kill, with the context it was started under, or
// with this process, however that ends. An engine that does not serve in time is an
// error that has the last of what the engine said. [VLLM] says how one is started elsewhere.
//
// # What it does not do
//
// It measures no speed: two cores and a tiny model say nothing of an engine's. It
// starts engines on loopback addresses only, and installs nothing (package install does).
package real
