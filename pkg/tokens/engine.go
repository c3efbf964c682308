package tokens

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// flight is one question to a tokenizer, which all that ask the same share.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when entry and err are set

	waiters int // guarded by Resolver.mu

	entry *entry // set before done is closed, read-only afterwards
	err   error
}

// Engine asks one of the tokenizers about q's prompt, or joins a question that
// is under way. It waits for at most Wait and no longer than ctx; when the last
// one who waits has gone the question is dropped. It returns an *[Error]. The
// body is not used after Engine has returned.
func (r *Resolver) Engine(ctx context.Context, q Query, from []worker.Endpoint) (Prompt, error) {
	if err := r.tokenizable(q, from); err != nil {
		return Prompt{}, err
	}
	if ctx.Err() != nil {
		return Prompt{}, &Error{Reason: ReasonCancelled}
	}
	h := q.hashing()
	key := q.key(h)
	f, start, err := r.join(key, from)
	if err != nil {
		return Prompt{}, err
	}
	if start != nil {
		start(questions(q), h)
	}
	defer r.leave(key, f)
	select {
	case <-f.done:
		if f.err != nil {
			return Prompt{}, f.err
		}
		return f.entry.prompt(false), nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return Prompt{}, &Error{Reason: ReasonSlow}
		}
		return Prompt{}, &Error{Reason: ReasonCancelled}
	}
}

// tokenizable says why no tokenizer should be asked about q, if none should.
func (r *Resolver) tokenizable(q Query, from []worker.Endpoint) error {
	switch q.Request.PromptKind {
	case openai.PromptString:
	case openai.PromptStrings:
		n := 0
		openai.VisitPrompt(q.Body, q.Request, func(k openai.PieceKind, _ []byte) { n += map[bool]int{true: 1}[k == openai.PieceText] })
		if n > maxPrompts {
			return &Error{Reason: ReasonTooLarge}
		}
	case openai.PromptMessages:
		media := false
		openai.VisitPrompt(q.Body, q.Request, func(k openai.PieceKind, _ []byte) { media = media || k == openai.PieceMedia })
		if media {
			return &Error{Reason: ReasonMedia}
		}
	default:
		return &Error{Reason: ReasonNoText}
	}
	switch {
	case r.cfg.Mode != Auto:
		return &Error{Reason: ReasonMode}
	case r.promptBytes(q) > r.cfg.MaxTokenizeBytes:
		return &Error{Reason: ReasonTooLarge}
	case len(from) == 0:
		return &Error{Reason: ReasonNoTokenizer}
	}
	return nil
}

// startFunc sets a flight going with its questions and what their answers are hashed
// with.
type startFunc func(bodies [][]byte, h hashing)

// join returns the flight for the key, with the caller counted. Who gets a
// startFunc as well is the first, and must call it.
func (r *Resolver) join(key cacheKey, from []worker.Endpoint) (*flight, startFunc, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.flights[key]; f != nil {
		f.waiters++
		return f, nil, nil
	}
	if r.closed {
		return nil, nil, &Error{Reason: ReasonCancelled}
	}
	// A flight puts its entry into the cache before it leaves the table, so
	// what is in neither has not been asked.
	f := &flight{cancel: func() {}, done: make(chan struct{}), waiters: 1}
	if f.entry = r.cache.get(key); f.entry != nil {
		close(f.done)
		return f, nil, nil
	}
	ep, ok := r.asides.pick(from, 2*r.cfg.Wait)
	if !ok {
		return nil, nil, &Error{Reason: ReasonSetAside}
	}
	var ctx context.Context
	ctx, f.cancel = context.WithTimeout(context.Background(), r.cfg.Wait)
	r.flights[key] = f
	r.running.Add(1)
	return f, func(bodies [][]byte, h hashing) {
		go func() {
			defer r.running.Done()
			r.fly(ctx, f, key, ep, bodies, h)
		}()
	}, nil
}

// leave takes one who waits off the flight.
func (r *Resolver) leave(key cacheKey, f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
		if r.flights[key] == f {
			delete(r.flights, key)
		}
	}
}

// fly runs one flight to its end.
func (r *Resolver) fly(ctx context.Context, f *flight, key cacheKey, ep worker.Endpoint, bodies [][]byte, h hashing) {
	defer f.cancel()
	start := time.Now()
	e, err := r.askAll(ctx, ep, bodies)
	outcome := ReasonTokenized
	if err != nil {
		outcome = ReasonOf(err)
	}
	switch outcome {
	case ReasonTokenized:
		r.asides.good(ep)
		e.key, e.hashes = key, r.hash(nil, e.tokens, h)
		r.cache.put(e)
	case ReasonCancelled, ReasonBusy:
		r.asides.undecided(ep)
	default:
		r.asides.bad(ep, outcome == ReasonFailed || outcome == ReasonKey)
	}
	f.entry, f.err = e, err
	r.mu.Lock()
	if r.flights[key] == f {
		delete(r.flights, key)
	}
	r.mu.Unlock()
	close(f.done)
	if r.cfg.OnTokenize != nil {
		r.cfg.OnTokenize(time.Since(start), outcome)
	}
}

// askAll sends one question after the other: the first prompt's tokens count for the
// overlap, those of all for the length.
func (r *Resolver) askAll(ctx context.Context, ep worker.Endpoint, bodies [][]byte) (*entry, error) {
	whole, err := r.ask(ctx, ep, bodies[0])
	for _, body := range bodies[1:] {
		if err != nil {
			return nil, err
		}
		var e *entry
		if e, err = r.ask(ctx, ep, body); err == nil {
			whole.isl += e.isl
		}
	}
	return whole, err
}

// ask sends one question. Its errors are *Error.
func (r *Resolver) ask(ctx context.Context, ep worker.Endpoint, body []byte) (*entry, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, ended(ctx, ReasonBusy)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+ep.String()+r.cfg.TokenizePath, bytes.NewReader(body))
	if err != nil {
		return nil, &Error{Reason: ReasonFailed, Err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ended(ctx, ReasonSlow)
		}
		return nil, &Error{Reason: ReasonFailed, Err: err}
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		// What a tokenizer says may quote the prompt: read to keep the
		// connection, and dropped.
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
		reason := ReasonFailed
		switch res.StatusCode {
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			reason = ReasonRefused
		case http.StatusUnauthorized, http.StatusForbidden:
			reason = ReasonKey
		}
		return nil, &Error{Reason: reason, Err: fmt.Errorf("%s answered %d", ep, res.StatusCode)}
	}
	// No tokenizer makes more tokens than there are bytes, and no id takes
	// more than 12 bytes with its comma.
	text, err := io.ReadAll(io.LimitReader(res.Body, 12*int64(len(body))+64<<10))
	if err != nil {
		if ctx.Err() != nil {
			return nil, ended(ctx, ReasonSlow)
		}
		return nil, &Error{Reason: ReasonFailed, Err: err}
	}
	return parseTokens(text, ep)
}

// ended says why a flight's context is over: late if its time was up, else all
// that waited have gone.
func ended(ctx context.Context, late Reason) *Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &Error{Reason: late}
	}
	return &Error{Reason: ReasonCancelled}
}

// parseTokens reads {"tokens":[…]} or {"tokens":[[…],…]}, the answers of SGLang
// and vLLM.
func parseTokens(text []byte, ep worker.Endpoint) (*entry, error) {
	bad := &Error{Reason: ReasonFailed, Err: fmt.Errorf("%s: expected an object with a list of tokens", ep)}
	s, ok := openai.FindValue(text, "tokens")
	if !ok {
		return nil, bad
	}
	n, ok := openai.CountTokenIDs(text, s)
	if !ok {
		return nil, bad
	}
	tokens, err := openai.AppendTokenIDs(make([]uint32, 0, n), text, s)
	if err != nil {
		return nil, bad
	}
	return &entry{tokens: tokens, isl: n}, nil
}

// maxPrompts bounds how many questions a list of prompts becomes.
const maxPrompts = 32

// questions are what is asked about q's prompt: vLLM tokenizes no list of prompts, so each
// of a list is a question of its own.
func questions(q Query) [][]byte {
	if q.Request.PromptKind != openai.PromptStrings {
		return [][]byte{tokenizeBody(q)}
	}
	var out [][]byte
	openai.VisitPrompt(q.Body, q.Request, func(k openai.PieceKind, text []byte) {
		if k != openai.PieceText {
			return
		}
		b := make([]byte, 0, len(text)+len(q.Key.Model)+64)
		b = append(openai.AppendString(append(b, `{"model":`...), q.Key.Model), `,"prompt":"`...)
		out = append(out, append(append(b, text...), `"}`...))
	})
	return out
}

// tokenizeBody writes the question about q's prompt, with the raw values of the
// request. SGLang and vLLM take {"model","prompt"} or {"model","messages"} with
// what else the chat template is given.
func tokenizeBody(q Query) []byte {
	r := q.Request
	b := make([]byte, 0, len(q.Body)+len(q.Key.Model)+64)
	b = append(b, `{"model":`...)
	b = openai.AppendString(b, q.Key.Model)
	put := func(name string, f openai.Field) {
		b = append(b, ',', '"')
		b = append(b, name...)
		b = append(b, '"', ':')
		b = append(b, r.Value(f).Of(q.Body)...)
	}
	if r.PromptKind != openai.PromptMessages {
		put("prompt", r.PromptField)
		return append(b, '}')
	}
	put("messages", openai.Messages)
	for _, f := range templateFields() {
		if r.Given(q.Body, f) {
			put(f.String(), f)
		}
	}
	return append(b, '}')
}
