package tokens

import (
	"errors"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Source says where a prompt's blocks come from.
type Source uint8

// The sources, in the order in which they are preferred.
const (
	None        Source = iota // no hashes: the mode is off, or the request has no text
	FromRequest               // token ids in the request
	FromEngine                // an engine's /tokenize
	Estimate                  // runs of bytes
)

// String returns the name used on pages, in labels and in logs.
func (s Source) String() string {
	switch s {
	case None:
		return "none"
	case FromRequest:
		return "request ids"
	case FromEngine:
		return "engine tokenize"
	case Estimate:
		return "byte estimate"
	default:
		return "invalid"
	}
}

// Reason says why a prompt came from its source. The set is closed, so that it
// can be a metric label.
type Reason string

// The reasons.
const (
	ReasonIDs         Reason = "ids in the request"
	ReasonTokenized   Reason = "tokenized"
	ReasonCached      Reason = "tokenized before"
	ReasonOff         Reason = "tokens are off"
	ReasonMode        Reason = "estimate mode"
	ReasonNoText      Reason = "no text in the request"
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

// Prompt is what a request's prompt comes to. Tokens and Hashes are shared with
// the Scratch or the cache they came from: they must not be written to, and are
// good until the Scratch is used again.
type Prompt struct {
	// Tokens are the token ids of the prompt, of the first of several; nil for
	// an estimate.
	Tokens []uint32
	// ISLTokens is the input length of the whole request in tokens, all of its
	// prompts together. For an estimate it is a guess.
	ISLTokens int
	// Hashes are the local hashes of the whole blocks of the prompt, of the
	// first of several: a request goes to one worker, and one chain is enough
	// to find it.
	Hashes []kvindex.LocalHash

	// Partial says that Hashes end before the prompt's first picture: of what follows
	// nothing is known but what ISLTokens guesses.
	Partial bool

	// BlocksPerHash is how many KV blocks each of Hashes stands for; 0 counts
	// as 1.
	BlocksPerHash int

	Source    Source
	Estimated bool // Hashes are those of bytes, not of tokens
	Cached    bool // FromEngine, without asking it now
	Reason    Reason
}

// Query is one request to be resolved. It is not kept.
type Query struct {
	Key       worker.Key // what the request was found to ask for
	Request   *openai.Request
	Body      []byte // the bytes that Request was scanned from
	BlockSize int    // tokens per KV block of the pool; below 1: no hashes
	Eagle     bool   // the pool's KV blocks are of token pairs
	// Renders says that the pool's engines may tell what pictures are in a prompt, and
	// where, that their tokenizers count pictures' tokens (docs/engines.md#render), and that
	// they cut prompts where a request asks for it.
	Renders bool
	// MaxModelLen is the most tokens that a prompt and its answer may have; 0: not known.
	MaxModelLen int
	// Salt is what separates the request's blocks from those of equal tokens, as the
	// engine that serves it tells them apart.
	Salt kvindex.Salt
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

// Scratch is memory for one Prompt at a time. The zero value is ready; reuse it
// to allocate nothing. Not safe for concurrent use.
type Scratch struct {
	tokens []uint32
	est    estimator
}

// Error is why an engine's tokenizer gave no answer. Its text holds an address
// at most, never a part of a prompt.
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
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ReasonFailed
}
