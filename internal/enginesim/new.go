package enginesim

import "github.com/seed-60ae5743/baton/pkg/worker"

// New binds every address of cfg. Only Run closes them.
func New(cfg Config) (*Sim, error) {
	orDefault(&cfg.Engine, worker.SGLang)
	return newSim(cfg, kindOf(cfg.Engine))
}

// kindOf returns the engine of a name.
func kindOf(name worker.Engine) kind {
	switch name {
	case worker.SGLang:
		return sglangKind()
	case worker.VLLM:
		return vllmKind()
	case worker.VLLMMooncake:
		return mooncakeKind()
	case worker.TensorRTLLM:
		return trtllmKind()
	}
	return kind{check: func(c Config, bad func(format string, a ...any)) {
		bad("engine %q: expected sglang, vllm, vllm-mooncake or trtllm", string(c.Engine))
	}}
}
