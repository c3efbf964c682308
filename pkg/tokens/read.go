package tokens

import (
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A response and a message of Anthropic's API become a chat request in the engine, and their tokens
// are those of that chat. What an engine makes of them depends on its version, and is compared with
// what it counts: until a count has been the same, the tokens are not called exact, and once one
// differs, that engine's conversion is used no more. Then, and for requests that are not converted
// here, the engine's own page is asked, if it has one; else the prompt is estimated.

// conversion is a conversion that is made here.
type conversion struct {
	model  string
	engine worker.Engine
	path   openai.Path
}

// conversions says of each conversion whether a count of the engine's has shown it right. Safe for
// concurrent use.
type conversions struct {
	mu    sync.Mutex          // guards right
	right map[conversion]bool // absent: not compared yet
}

func (c *conversions) state(of conversion) (right, compared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	right, compared = c.right[of]
	return right, compared
}

// counted notes that the engine has counted as many tokens, or not. One that was wrong stays so.
func (c *conversions) counted(of conversion, same bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.right == nil {
		c.right = make(map[conversion]bool)
	}
	before, compared := c.right[of]
	c.right[of] = same && (before || !compared)
}

// converts reports whether requests on the path become a chat in the engine.
func converts(p openai.Path) bool { return p == openai.Responses || p == openai.AnthropicMessages }

// Read returns q as its engine reads it: of a response or a message, the chat request that the engine
// makes of it, in memory of its own. It is called once for a query, before the methods that resolve
// it.
func (r *Resolver) Read(q Query) Query {
	if q.Request == nil || r.cfg.Mode == Off {
		return q
	}
	if converts(q.Request.Path) {
		q = r.convert(q)
	}
	if k := engines.HandOff(q.Engine); k != nil {
		k.Takes.Retokens(q.Body, q.Request, q.retold)
	}
	return q
}

// retold notes the value of a member by which the engine's prompt has other tokens. In a chat it
// changes some of those that the template writes. A picture beside a text may stand anywhere in it
// and be of any length, so all blocks count as the picture's own.
func (q *Query) retold(value []byte) {
	q.odd = true
	if q.Request.Path != openai.ChatCompletions {
		sum := xxh3.Hash128(value).Bytes()
		q.Salt.CacheSalt += string(sum[:])
	}
}

func (r *Resolver) convert(q Query) Query {
	e := engines.Of(q.Engine)
	of := conversion{q.Key.Model, q.Engine, q.Request.Path}
	right, compared := r.conversions.state(of)
	if e.AsChat != nil && (right || !compared) {
		if body, ok := e.AsChat(q.Body, q.Request); ok {
			chat := new(openai.Request)
			if openai.Scan(openai.ChatCompletions, body, chat) == nil {
				chat.MaxTokens = q.Request.MaxTokens
				q.made, q.Request, q.Body = of, chat, body
				return q
			}
		}
	}
	if slices.Contains(e.RendersOn, q.Request.Path) {
		q.page = q.Request.Path.String() + "/render"
	}
	return q
}

// unread reports whether the prompt is in a form of which only the engine's own page can tell the
// tokens.
func (q *Query) unread() bool { return q.made.path == 0 && converts(q.Request.Path) }

// converted returns p, of a query that was converted, with what is to be compared.
func (r *Resolver) converted(q *Query, p Prompt) Prompt {
	if q.made.path == 0 {
		return p
	}
	right, _ := r.conversions.state(q.made)
	p.Claim = Claim{by: r, made: q.made, tokens: p.ISLTokens}
	if !p.Exact {
		p.Claim = Claim{}
	}
	p.Exact = p.Exact && right
	return p
}

// pageBody is the question to the engine's own page: the request, without the processed pictures in
// the answer.
func (q *Query) pageBody() []byte {
	var r openai.Request
	b := append(make([]byte, 0, len(q.Body)+64), q.Body...)
	if openai.ScanInjected(q.Request.Path, b, &r) != nil {
		return b
	}
	return openai.InjectInPlace(b, &r, []byte(`"mm_payload":"none"`))
}
