package enginesim

import "fmt"

// shape is what an engine's answers have in addition to the members that all engines
// have, as captures of real engines show (testdata/captures). Its strings are JSON
// members, each with a comma before it. Of a pair, the first is for chats and the second
// for completions.
type shape struct {
	message string    // in a chat's message
	delta   string    // in each delta of a chat, with the comma behind it
	choice  [2]string // in each choice of a whole answer
	body    [2]string // in a whole answer
	usage   [2]string // in the usage of a whole answer
	details [2]string // in the usage's prompt_tokens_details
	chatIDs bool      // ids begin with "chatcmpl-" or "cmpl-"

	chunkChoice [2]string // in a chunk's choice
	lastChoice  [2]string // the same of a chunk with a finish reason
	chunk       [2]string // in a chunk
	roleChunk   string    // the same of a chunk with a role
	lastChunk   [2]string // the same of a chunk with a finish reason
	usageChunk  string    // the same of a chunk with the usage
	streamUsage [2]string // in the usage of a stream
	ends        [2]bool   // the finish reason has a chunk of its own
	rolesFirst  bool      // the roles of all choices come before the first token of any choice

	begins    bool // a stream begins before anything of the answer is known; else only that of a response
	breaksOff bool // the stream of a response breaks off at an error, which is no event that the API has
	completes bool // the last event of a response says "completed", whatever its status is
	created   bool // the usage of a chat and of a message tells the tokens that were added to the cache
}

// of returns the member of a pair that answers of this kind have.
func (a api) of(pair [2]string) string {
	if a == apiChat {
		return pair[0]
	}
	return pair[1]
}

// appendUsage appends the usage of the whole answer.
func (a *answer) appendUsage(b []byte, stream bool) []byte {
	s, kind := a.shape, a.c.q.api
	more, details := kind.of(s.usage), kind.of(s.details)
	if stream {
		more, details = kind.of(s.streamUsage), ""
	}
	if s.created && kind == apiChat {
		details = fmt.Sprintf(`,"created_cache_tokens":%d`, a.createdTokens()) + details
	}
	prompt, out := a.promptTokens(), a.out*len(a.c.items)
	return fmt.Appendf(b, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d%s}%s}`,
		prompt, prompt+out, out, a.c.cachedTokens(), details, more)
}

// createdTokens counts the tokens of whole blocks that this worker has computed for the
// prompt and added to its cache.
func (a *answer) createdTokens() int {
	c := a.c
	if c.leg == legDecode {
		return 0
	}
	page, n := c.s.page(), 0
	for i := 0; i < len(c.items); i += c.q.n {
		n += max(0, len(c.items[i].prompt)/page*page-c.items[i].cached)
	}
	return n
}

// promptTokens counts each prompt once, however many choices it has.
func (a *answer) promptTokens() int {
	n := 0
	for i := 0; i < len(a.c.items); i += a.c.q.n {
		n += a.c.told(len(a.c.items[i].prompt))
	}
	return n
}
