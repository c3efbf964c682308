package core

import "fmt"

// Shape is what an engine's answers have in addition to the members that all engines
// have, as captures of real engines show (testdata/captures). Its strings are JSON
// members, each with a comma before it. Of a pair, the first is for chats and the second
// for completions.
type Shape struct {
	Message string    // in a chat's message
	Delta   string    // in each delta of a chat, with the comma behind it
	Choice  [2]string // in each choice of a whole answer
	Body    [2]string // in a whole answer
	Usage   [2]string // in the usage of a whole answer
	Details [2]string // in the usage's prompt_tokens_details
	ChatIDs bool      // ids begin with "chatcmpl-" or "cmpl-"

	ChunkChoice [2]string // in a chunk's choice
	LastChoice  [2]string // the same of a chunk with a finish reason
	Chunk       [2]string // in a chunk
	RoleChunk   string    // the same of a chunk with a role
	LastChunk   [2]string // the same of a chunk with a finish reason
	UsageChunk  string    // the same of a chunk with the usage
	StreamUsage [2]string // in the usage of a stream
	Ends        [2]bool   // the finish reason has a chunk of its own
	RolesFirst  bool      // the roles of all choices come before the first token of any choice

	Begins    bool // a stream begins before anything of the answer is known; else only that of a response
	BreaksOff bool // the stream of a response breaks off at an error, which is no event that the API has
	Completes bool // the last event of a response says "completed", whatever its status is
	Created   bool // the usage of a chat and of a message tells the tokens that were added to the cache
}

// of returns the member of a pair that answers of this kind have.
func (a API) of(pair [2]string) string {
	if a == APIChat {
		return pair[0]
	}
	return pair[1]
}

// appendUsage appends the usage of the whole answer.
func (a *answer) appendUsage(b []byte, stream bool) []byte {
	s, kind := a.shape, a.c.Q.API
	more, details := kind.of(s.Usage), kind.of(s.Details)
	if stream {
		more, details = kind.of(s.StreamUsage), ""
	}
	if s.Created && kind == APIChat {
		details = fmt.Sprintf(`,"created_cache_tokens":%d`, a.createdTokens()) + details
	}
	prompt, out := a.promptTokens(), a.out*len(a.c.Items)
	return fmt.Appendf(b, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d%s}%s}`,
		prompt, prompt+out, out, a.c.cachedTokens(), details, more)
}

// createdTokens counts the tokens of whole blocks that this worker has computed for the
// prompt and added to its cache.
func (a *answer) createdTokens() int {
	c := a.c
	if c.Leg == LegDecode {
		return 0
	}
	page, n := c.s.Page(), 0
	for i := 0; i < len(c.Items); i += c.Q.N {
		n += max(0, len(c.Items[i].Prompt)/page*page-c.Items[i].Cached)
	}
	return n
}

// promptTokens counts each prompt once, however many choices it has.
func (a *answer) promptTokens() int {
	n := 0
	for i := 0; i < len(a.c.Items); i += a.c.Q.N {
		n += a.c.told(len(a.c.Items[i].Prompt))
	}
	return n
}
