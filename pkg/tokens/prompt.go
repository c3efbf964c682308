package tokens

import (
	"errors"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Source says where a prompt's blocks come from.
type Source uint8

// The sources, in the order of preference.
const (
	None        Source = iota // no hashes, for the Reason
	FromRequest               // token ids in the request
	FromLocal                 // the model's files, in this process
	FromEngine                // an engine's /tokenize or /render
	Estimate                  // hashes of runs of bytes
)

var sourceNames = [...]string{
	None: "none", FromRequest: "request ids", FromLocal: "local tokenizer", FromEngine: "engine tokenize", Estimate: "byte estimate",
}

// String returns the name used on pages, in labels and in logs.
func (s Source) String() string {
	if int(s) >= len(sourceNames) {
		return "invalid"
	}
	return sourceNames[s]
}

// Reason says why a prompt came from its source, or has none. The set is closed, since it
// is a metric label.
type Reason string

// The reasons; each says why a prompt came from its source, or has none.
const (
	ReasonIDs         Reason = "ids in the request"
	ReasonLocal       Reason = "tokenized here"
	ReasonTokenized   Reason = "tokenized"
	ReasonCached      Reason = "tokenized before"
	ReasonOff         Reason = "tokens are off"
	ReasonMode        Reason = "estimate mode"
	ReasonNoText      Reason = "no text in the request"
	ReasonUnconverted Reason = "not known as a chat"
	ReasonMedia       Reason = "the prompt has pictures"
	ReasonRendered    Reason = "tokenized with its pictures"
	ReasonBefore      Reason = "tokenized up to its first picture"
	ReasonUntold      Reason = "no engine tells of pictures"
	ReasonNotAll      Reason = "not every picture was told of"
	ReasonTruncated   Reason = "the prompt is truncated"
	ReasonBadIDs      Reason = "token ids out of range"
	ReasonTooLarge    Reason = "prompt too large to tokenize"
	ReasonNoTokenizer Reason = "no tokenizer"
	ReasonSetAside    Reason = "tokenizer set aside"
	ReasonBusy        Reason = "too many tokenize requests"
	ReasonSlow        Reason = "tokenizer too slow"
	ReasonFailed      Reason = "tokenizer failed"
	ReasonRefused     Reason = "tokenizer refused the prompt"
	ReasonKey         Reason = "tokenizer refused the API key"
	ReasonCancelled   Reason = "cancelled"
)

// Prompt is what is known of a request's prompt. Tokens and Hashes belong to the Scratch
// or the cache they came from: they must not be written to, and are valid until the
// Scratch is used again.
type Prompt struct {
	// Tokens are the token ids of the prompt, or of the first of several prompts; nil for
	// an estimate.
	Tokens []uint32
	// ISLTokens is the input length of the whole request in tokens, the sum over all its
	// prompts. For an estimate it is a guess.
	ISLTokens int
	// Exact says that the engine which computes the prompt counts as many tokens.
	Exact bool
	// Hashes are the local hashes of the whole blocks of the prompt, or of the first of
	// several prompts: a request goes to one worker, and one chain is enough to find it.
	Hashes []kvindex.LocalHash

	// Partial says that Hashes end before the prompt's first picture. Of the rest only
	// the length is known, as part of ISLTokens, and may be a guess.
	Partial bool

	// BlocksPerHash is how many KV blocks each of Hashes stands for; 0 means 1.
	BlocksPerHash int

	Source    Source
	Estimated bool // Hashes are over bytes, not over tokens
	Cached    bool // FromEngine, from an earlier answer
	Reason    Reason
	Claim     Claim // of FromLocal
}

// Query describes one request to be resolved. It is not kept.
type Query struct {
	Key       worker.Key // the model and namespace that the request asks for
	Request   *openai.Request
	Body      []byte // the bytes that Request was scanned from
	BlockSize int    // tokens per KV block of the pool; below 1: no hashes
	Eagle     bool   // the pool's KV blocks are over pairs of tokens
	// Renders says three things about the pool's engines: they may tell which pictures
	// are in a prompt and where; their tokenizers count the tokens of pictures
	// (docs/engines.md#render); and they cut prompts if a request asks for that.
	Renders bool
	// Engine is the kind of the pool's engines; zero: unknown.
	Engine worker.Engine
	// MaxModelLen is the most tokens that a prompt and its answer may have together; 0:
	// unknown.
	MaxModelLen int
	// Salt separates the request's blocks from other blocks with equal tokens, in the
	// same way as the engine does.
	Salt kvindex.Salt

	// Set by [Resolver.Read].
	made conversion // of which Request is what the engine makes; zero: it is the client's
	page string     // the path at which the engine tells its tokens; "": at none of its own
	odd  bool       // the engine's prompt has other tokens than can be told (retold)
}

// hashing is what the hashes of a prompt depend on besides its tokens.
type hashing struct {
	blockSize int
	eagle     bool
	seed      uint64
}

func (q *Query) hashing() hashing {
	return hashing{blockSize: q.BlockSize, eagle: q.Eagle, seed: q.Salt.Seed()}
}

// Scratch is memory for one Prompt at a time. The zero value is ready. Reusing it saves
// allocations. Not safe for concurrent use.
type Scratch struct {
	tokens []uint32
	est    estimator
}

// Error says why a tokenizer gave no answer. Its text may hold an address, but no part of
// a prompt.
type Error struct {
	Reason Reason
	Err    error // may be nil
}

// Error returns the reason and its cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return "tokens: " + string(e.Reason)
	}
	return "tokens: " + string(e.Reason) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the reason of an error of [Resolver.Engine].
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ReasonFailed
}
