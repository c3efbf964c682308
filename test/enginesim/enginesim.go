package enginesim

import (
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim/core"
	"github.com/seed-60ae5743/baton/test/enginesim/sglang"
	"github.com/seed-60ae5743/baton/test/enginesim/trtllm"
	"github.com/seed-60ae5743/baton/test/enginesim/vllm"
)

// New binds every address of cfg. Only Run closes them.
func New(cfg Config) (*Sim, error) {
	core.OrDefault(&cfg.Engine, worker.SGLang)
	return core.New(cfg, kindOf(cfg.Engine))
}

// kindOf returns the engine of a name.
func kindOf(name worker.Engine) core.Kind {
	switch name {
	case worker.SGLang:
		return sglang.Kind()
	case worker.VLLM:
		return vllm.NIXL()
	case worker.VLLMMooncake:
		return vllm.Mooncake()
	case worker.TensorRTLLM:
		return trtllm.Kind()
	}
	return core.Kind{Check: func(c Config, bad func(format string, a ...any)) {
		bad("engine %q: expected sglang, vllm, vllm-mooncake or trtllm", string(c.Engine))
	}}
}

// The worker, and what it is told and tells, are the core's.
type (
	// Sim is one simulated worker.
	Sim = core.Sim
	// Config describes one.
	Config = core.Config
	// LoadFailure is vLLM's kv_load_failure_policy.
	LoadFailure = core.LoadFailure
	// Client inspects and breaks a worker of another process.
	Client = core.Client
	// Fault is how a worker is made faulty.
	Fault = core.Fault
	// Mode is the way in which a worker is faulty.
	Mode = core.Mode
	// Form is the way in which a hand-off is spoiled.
	Form = core.Form
	// Moment is the point within a request at which a fault strikes.
	Moment = core.Moment
	// Lie is how an engine comes to hold something else than its KV events say.
	Lie = core.Lie
	// Identity is who a worker is and where it can be reached.
	Identity = core.Identity
	// State is what a worker says of itself.
	State = core.State
	// HandoffState counts hand-offs.
	HandoffState = core.HandoffState
	// CachedBlock is one block of a rank's prefix cache.
	CachedBlock = core.CachedBlock
	// Violation is a request that broke the engine's rules.
	Violation = core.Violation
	// Request is what the log has of one generation request.
	Request = core.Request
	// Message is one turn of a conversation.
	Message = core.Message
)

// ErrDied is returned by Run after the fault "die" of an embedded worker.
var ErrDied = core.ErrDied

// Settings of [Config].
const (
	Off  = core.Off
	None = core.None

	LoadFail      = core.LoadFail
	LoadRecompute = core.LoadRecompute
	LoadUnseen    = core.LoadUnseen
)

// The modes of a [Fault].
const (
	FaultNone        = core.FaultNone
	FaultHang        = core.FaultHang
	FaultHold        = core.FaultHold
	FaultError       = core.FaultError
	FaultSlow        = core.FaultSlow
	FaultDie         = core.FaultDie
	FaultEarly200    = core.FaultEarly200
	FaultFinishAbort = core.FaultFinishAbort
	FaultTruncate    = core.FaultTruncate
	FaultRefuse      = core.FaultRefuse
	FaultFinish      = core.FaultFinish
	FaultNoHandoff   = core.FaultNoHandoff
	FaultEmpty       = core.FaultEmpty
	FaultApart       = core.FaultApart
	FaultAborted     = core.FaultAborted
	FaultMiscount    = core.FaultMiscount
	FaultTemplate    = core.FaultTemplate
	FaultCuts        = core.FaultCuts
	FaultBadHandoff  = core.FaultBadHandoff
)

// The forms of [FaultBadHandoff].
const (
	FormText   = core.FormText
	FormList   = core.FormList
	FormTwice  = core.FormTwice
	FormBroken = core.FormBroken
)

// The moments of a [Fault].
const (
	Before = core.Before
	Begun  = core.Begun
	Mid    = core.Mid
	After  = core.After
)

// The outcomes of a [Request].
const (
	OutcomeRunning   = core.OutcomeRunning
	OutcomeOK        = core.OutcomeOK
	OutcomeAborted   = core.OutcomeAborted
	OutcomeCancelled = core.OutcomeCancelled
	OutcomeFailed    = core.OutcomeFailed
)

// ReadPublished reads a file for Config.Published.
func ReadPublished(file string) (*core.Published, error) { return core.ReadPublished(file) }

// Tokenize returns the token ids of text; see [core.Tokenize].
func Tokenize(text string) []uint32 { return core.Tokenize(text) }

// ChatTokens applies the chat template.
func ChatTokens(messages []Message, addGenerationPrompt bool) []uint32 {
	return core.ChatTokens(messages, addGenerationPrompt)
}

// Digest identifies a prompt.
func Digest(tokens []uint32) string { return core.Digest(tokens) }

// Answer returns the whole text that a worker generates for the prompt.
func Answer(prompt []uint32, tokens int) string { return core.Answer(prompt, tokens) }
