// Package openai reads the body of a completion request into the value that pkg/tokens takes. It
// gives other modules the part of internal/openai that is in that package's signatures.
//
// # Contract
//
// [Scan] makes one pass over a body and fills a [Request], which describes these bytes: pass
// the two together, and no others.
//
// # What it does not do
//
// It sends nothing, and knows no model and no tokenizer.
package openai

import "github.com/seed-60ae5743/baton/internal/openai"

type (
	// Path is a path whose bodies are read.
	Path = openai.Path
	// Request is what a body says, and where.
	Request = openai.Request
	// Span is where something stands in a body: body[Start:End].
	Span = openai.Span
	// Field is a member of a body.
	Field = openai.Field
	// PromptKind is in which form a request has its prompt.
	PromptKind = openai.PromptKind
	// Error is why a body is refused.
	Error = openai.Error
	// Kind is what is wrong with a body.
	Kind = openai.Kind
)

// The paths whose bodies are read.
const (
	ChatCompletions = openai.ChatCompletions
	Completions     = openai.Completions
	Generate        = openai.Generate
)

// The forms of a prompt.
const (
	PromptNone     = openai.PromptNone     // none that is read, as embeddings
	PromptString   = openai.PromptString   // one text
	PromptStrings  = openai.PromptStrings  // a list of texts
	PromptIDs      = openai.PromptIDs      // one list of token ids
	PromptIDLists  = openai.PromptIDLists  // a list of lists of token ids
	PromptMessages = openai.PromptMessages // chat messages
)

// What is wrong with a body.
const (
	NotJSON        = openai.NotJSON
	MissingField   = openai.MissingField
	WrongType      = openai.WrongType
	DuplicateField = openai.DuplicateField
	ForbiddenField = openai.ForbiddenField
)

// ParsePath reads a path, without its query. False means that it is none of the above.
func ParsePath(path string) (Path, bool) { return openai.ParsePath(path) }

// Scan reads a client's body for the path into r, and overwrites what r held. It returns an
// *[Error]; r must not be used then.
func Scan(p Path, body []byte, r *Request) error { return openai.Scan(p, body, r) }
