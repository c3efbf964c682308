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
}

var vllmShape = shape{
	message: `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null`,
	choice: [2]string{
		`,"stop_reason":null,"token_ids":null,"routed_experts":null`,
		`,"stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null`,
	},
	body: [2]string{
		`,"service_tier":null,"system_fingerprint":"sim","prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"ec_transfer_params":null,"metrics":null`,
		`,"service_tier":null,"system_fingerprint":"sim","ec_transfer_params":null,"metrics":null`,
	},
	usage:   [2]string{`,"completion_tokens_details":null`, `,"completion_tokens_details":null`},
	details: [2]string{`,"multimodal_tokens":null`, `,"created_cache_tokens":null,"multimodal_tokens":null`},
	chatIDs: true,

	chunkChoice: [2]string{`,"token_ids":null`, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null`},
	lastChoice:  [2]string{`,"stop_reason":null,"token_ids":null`, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null`},
	roleChunk:   `,"prompt_token_ids":null,"prompt_text":null`,
	lastChunk:   [2]string{`,"system_fingerprint":"sim"`, `,"system_fingerprint":"sim"`},
	usageChunk:  `,"system_fingerprint":"sim"`,
	rolesFirst:  true,
}

// weights is the member in which SGLang says which weights gave the answer.
const weights = `,"metadata":{"weight_version":"default","weight_versions":[{"version":"default","start":0,"end":0}]}`

var sglangShape = shape{
	message: `,"reasoning_content":null`,
	delta:   `"reasoning_content":null,`,
	choice:  [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	body:    [2]string{weights, weights},
	usage:   [2]string{`,"reasoning_tokens":0,"completion_tokens_details":null`, `,"reasoning_tokens":0,"completion_tokens_details":null`},

	chunkChoice: [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	lastChoice:  [2]string{`,"matched_stop":null`, `,"matched_stop":null`},
	chunk:       [2]string{"", `,"usage":null`},
	lastChunk:   [2]string{"", `,"usage":null`},
	streamUsage: [2]string{`,"reasoning_tokens":0,"completion_tokens_details":null`, `,"reasoning_tokens":0`},
	ends:        [2]bool{true, false},
}

// trtllmShape is taken from the engine's source, not from a capture.
var trtllmShape = shape{
	chunk:      [2]string{`,"usage":null`, `,"usage":null`},
	lastChunk:  [2]string{`,"usage":null`, `,"usage":null`},
	ends:       [2]bool{true, true},
	chatIDs:    true,
	rolesFirst: true,
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
	if s == &vllmShape && kind == apiChat {
		details = fmt.Sprintf(`,"created_cache_tokens":%d`, a.c.createdTokens()) + details
	}
	prompt, out := a.c.promptTokens(), a.out*len(a.c.items)
	return fmt.Appendf(b, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d%s}%s}`,
		prompt, prompt+out, out, a.c.cachedTokens(), details, more)
}

// createdTokens counts the tokens of whole blocks that this worker has computed for the
// prompt and added to its cache.
func (c *call) createdTokens() int {
	if c.leg == legDecode {
		return 0
	}
	page, n := c.s.page(), 0
	for i := 0; i < len(c.items); i += c.q.n {
		n += max(0, len(c.items[i].prompt)/page*page-c.items[i].cached)
	}
	return n
}
