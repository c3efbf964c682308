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
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// flight is one question to a tokenizer, which all that ask the same share.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when entry and err are set

	waiters int // guarded by Resolver.mu
	copied  int // bytes of the prompt that its questions have

	entry *entry // set before done is closed, read-only afterwards
	err   error
}

// Engine asks one of the tokenizers about q's prompt, or joins a question that
// is under way. It waits for at most Wait and no longer than ctx; when the last
// one who waits has gone the question is dropped. It returns an *[Error]. The
// body is not used after Engine has returned.
func (r *Resolver) Engine(ctx context.Context, q Query, from []worker.Endpoint) (Prompt, error) {
	m := r.mediaOf(&q)
	if err := r.tokenizable(q, m.parts, from); err != nil {
		return Prompt{}, err
	}
	if ctx.Err() != nil {
		return Prompt{}, &Error{Reason: ReasonCancelled}
	}
	h := q.hashing()
	key := q.key(h)
	first := []*asides{r.asides}
	if m.parts > 0 {
		first = r.forPictures(&q, m)
	}
	f, start, err := r.join(key, q.copied(m), first, from)
	if err != nil {
		return Prompt{}, err
	}
	if start != nil {
		start(questions(&q, m), h)
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

// tokenizable says why no tokenizer should be asked about q, of which so many parts are not
// text, if none should.
func (r *Resolver) tokenizable(q Query, media int, from []worker.Endpoint) error {
	switch q.Request.PromptKind {
	case openai.PromptString:
	case openai.PromptStrings:
		n := 0
		openai.VisitPrompt(q.Body, q.Request, func(k openai.PieceKind, _ []byte) { n += map[bool]int{true: 1}[k == openai.PieceText] })
		if n > maxPrompts {
			return &Error{Reason: ReasonTooLarge}
		}
	case openai.PromptMessages:
		if media > maxPictures || media > 0 && r.cfg.Pictures != AskPictures {
			return &Error{Reason: ReasonMedia}
		}
	default:
		return &Error{Reason: ReasonNoText}
	}
	switch {
	case r.cfg.Mode != Auto:
		return &Error{Reason: ReasonMode}
	case q.promptBytes() > r.cfg.MaxTokenizeBytes:
		return &Error{Reason: ReasonTooLarge}
	case len(from) == 0:
		return &Error{Reason: ReasonNoTokenizer}
	}
	return nil
}

// startFunc sets a flight going with its questions and what their answers are hashed
// with.
type startFunc func(a asking, h hashing)

// join returns the flight for the key, with the caller counted. Who gets a
// startFunc as well is the first, and must call it. Its questions have so many bytes of the
// prompt copied. first are the records by which to choose whom to ask, in order.
func (r *Resolver) join(key cacheKey, copied int, first []*asides, from []worker.Endpoint) (*flight, startFunc, error) {
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
	f := &flight{cancel: func() {}, done: make(chan struct{}), waiters: 1, copied: copied}
	if f.entry = r.cache.get(key); f.entry != nil {
		close(f.done)
		return f, nil, nil
	}
	if r.copied > 0 && r.copied+copied > r.cfg.MaxInFlight*r.cfg.MaxTokenizeBytes {
		return nil, nil, &Error{Reason: ReasonBusy}
	}
	to, ok := choose(first, from, 2*r.cfg.Wait)
	if !ok {
		return nil, nil, &Error{Reason: ReasonSetAside}
	}
	r.copied += copied
	var ctx context.Context
	ctx, f.cancel = context.WithTimeout(context.Background(), r.cfg.Wait)
	r.flights[key] = f
	r.running.Add(1)
	return f, func(a asking, h hashing) {
		go func() {
			defer r.running.Done()
			r.fly(ctx, f, key, to, a, h)
		}()
	}, nil
}

// asked is who is asked first.
type asked struct {
	ep  worker.Endpoint
	of  *asides           // who keeps its record
	all []worker.Endpoint // from whom it was chosen
}

// choose picks whom to ask; who is picked must be told of in heard.
func choose(by []*asides, from []worker.Endpoint, probe time.Duration) (asked, bool) {
	for _, of := range by {
		if ep, ok := of.pick(from, probe); ok {
			return asked{ep: ep, of: of, all: from}, true
		}
	}
	return asked{}, false
}

// heard notes what an answer says of who gave it: nothing where it says something of the
// prompt or of who asks. shared: nor does its time, or that it failed, since others had a
// part in it.
func (to *asked) heard(err error, shared bool) {
	if err == nil {
		to.of.good(to.ep)
		return
	}
	switch reason := ReasonOf(err); {
	case reason == ReasonKey || reason == ReasonUntold || reason == ReasonFailed && !shared:
		to.of.bad(to.ep, true)
	case reason == ReasonSlow && !shared:
		to.of.bad(to.ep, false)
	default:
		to.of.undecided(to.ep)
	}
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
func (r *Resolver) fly(ctx context.Context, f *flight, key cacheKey, to asked, a asking, h hashing) {
	defer f.cancel()
	start := time.Now()
	var e *entry
	var err error
	if a.media.parts > 0 {
		e, err = r.askPictures(ctx, to, a)
	} else {
		e, err = r.askAll(ctx, to.ep, a.texts)
		to.heard(err, false)
	}
	if err == nil && e.longest > a.keeps {
		e, err = nil, &Error{Reason: ReasonTruncated} // it is the prompt's, and whoever answered did well
	}
	outcome := ReasonOf(err)
	if err == nil {
		outcome = e.reason
		e.key = key
		r.hashEntry(e, h)
		r.keep(e, &a)
	}
	f.entry, f.err = e, err
	r.mu.Lock()
	if r.flights[key] == f {
		delete(r.flights, key)
	}
	r.copied -= f.copied
	r.mu.Unlock()
	close(f.done)
	if r.cfg.OnTokenize != nil {
		r.cfg.OnTokenize(time.Since(start), outcome)
	}
}

// keep puts what was answered into the cache, for as long as it is so.
func (r *Resolver) keep(e *entry, a *asking) {
	switch {
	case e.partial && a.renders:
		e.until = time.Now().Add(maxSetAside) // by then more may be told
	case a.loads():
		return // at the same address there may be another picture at once
	}
	r.cache.put(e)
}

func (r *Resolver) hashEntry(e *entry, h hashing) {
	if len(e.pictures) == 0 {
		e.hashes = r.hash(nil, e.tokens, h)
		return
	}
	e.hashes = kvindex.AppendPictureHashes(nil, r.hashed(e.tokens, h), e.pictures, h.blockSize, h.eagle, h.seed)
	e.pictures = nil
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
			whole.longest = max(whole.longest, e.longest)
		}
	}
	return whole, err
}

// ask has one prompt tokenized. Its errors are *Error.
func (r *Resolver) ask(ctx context.Context, ep worker.Endpoint, body []byte) (*entry, error) {
	release, err := take(ctx, r.slots)
	if err != nil {
		return nil, err
	}
	defer release()
	// No tokenizer makes more tokens than there are bytes, and no id takes
	// more than 12 bytes with its comma.
	text, err := r.post(ctx, ep, r.cfg.TokenizePath, body, 12*int64(len(body))+64<<10)
	if err != nil {
		return nil, err
	}
	return parseTokens(text, ep)
}

// take waits for one of the slots.
func take(ctx context.Context, slots chan struct{}) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, ended(ctx, ReasonBusy)
	}
}

// post sends one question and returns what is answered, up to so many bytes. Its errors
// are *Error.
func (r *Resolver) post(ctx context.Context, ep worker.Endpoint, path string, body []byte, most int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+ep.String()+path, bytes.NewReader(body))
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
		return nil, &Error{Reason: r.refusal(path, res.StatusCode), Err: fmt.Errorf("%s answered %d", ep, res.StatusCode)}
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, most+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ended(ctx, ReasonSlow)
	case err != nil:
		return nil, &Error{Reason: ReasonFailed, Err: err}
	case int64(len(text)) > most: // what is short may stand for a long prompt
		return nil, &Error{Reason: ReasonTooLarge, Err: fmt.Errorf("%s answered more than %d bytes", ep, most)}
	}
	return text, nil
}

// refusal is what the status of an answer that is none says.
func (r *Resolver) refusal(path string, status int) Reason {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return ReasonRefused
	case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		if path == r.cfg.RenderPath {
			return ReasonUntold // docs/engines.md#render
		}
	}
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		return ReasonKey
	}
	return ReasonFailed
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
	return &entry{tokens: tokens, isl: n, longest: n, reason: ReasonTokenized}, nil
}

// maxPrompts bounds how many questions a list of prompts becomes.
const maxPrompts = 32

// asking is what is asked about a prompt.
type asking struct {
	texts [][]byte // of a prompt of text
	keeps int      // see Query.keeps

	// Of one with pictures:
	media   media
	renders bool   // see Query.Renders
	whole   []byte // with them
	before  []byte // what stands before the first; nil: nothing
}

// loads reports whether an engine has to load what is not in the request, to answer.
func (a *asking) loads() bool { return a.renders && !a.media.inside }

// questions are what is asked about q's prompt: vLLM tokenizes no list of prompts, so each
// of a list is a question of its own.
func questions(q *Query, m media) asking {
	if m.parts > 0 {
		return pictureQuestions(q, m)
	}
	if q.Request.PromptKind != openai.PromptStrings {
		return asking{texts: [][]byte{tokenizeBody(q)}, keeps: q.keeps()}
	}
	var out [][]byte
	openai.VisitPrompt(q.Body, q.Request, func(k openai.PieceKind, text []byte) {
		if k != openai.PieceText {
			return
		}
		b := append(q.begin(len(text)), `,"prompt":"`...)
		out = append(out, append(append(b, text...), `"}`...))
	})
	return asking{texts: out, keeps: q.keeps()}
}

// beside bounds what a question has beside what it copies of the request: the names of
// members, and the model's, each byte of which may be written as six.
func (q *Query) beside() int { return 512 + 6*len(q.Key.Model) }

// copied bounds the bytes of all questions about q's prompt, whatever else its body has.
func (q *Query) copied(m media) int {
	switch n := q.promptBytes(); {
	case m.parts > 0: // what stands before the first as well
		return 2 * (n + q.beside())
	case q.Request.PromptKind == openai.PromptStrings:
		return n + maxPrompts*q.beside()
	default:
		return n + q.beside()
	}
}

// begin begins a question that copies so many bytes of the request.
func (q *Query) begin(copies int) []byte {
	b := append(make([]byte, 0, copies+q.beside()), `{"model":`...)
	return openai.AppendString(b, q.Key.Model)
}

// tokenizeBody writes the question about q's prompt, with the raw values of the
// request. SGLang and vLLM take {"model","prompt"} or {"model","messages"} with
// what else those depend on.
func tokenizeBody(q *Query) []byte {
	r := q.Request
	if r.PromptKind == openai.PromptMessages {
		return messagesBody(q, false, false)
	}
	b := append(q.begin(q.promptBytes()), `,"prompt":`...)
	return append(append(b, r.Value(r.PromptField).Of(q.Body)...), '}')
}

// messagesBody writes the question about messages: about all of them, or about what stands
// before the first part that is not text. nil: nothing does. render: it is one for an engine
// that renders them.
func messagesBody(q *Query, before, render bool) []byte {
	b := append(q.begin(q.promptBytes()), `,"messages":`...)
	if before {
		var ok bool
		if b, ok = openai.AppendBeforeMedia(b, q.Body, q.Request); !ok {
			return nil
		}
	} else {
		b = append(b, q.Request.Value(openai.Messages).Of(q.Body)...)
	}
	for _, f := range besideMessages() {
		b = q.appendMember(b, f)
	}
	if render {
		b = append(q.appendTruncation(b), `,"mm_payload":"none"`...) // not what the pictures were made into
	}
	return append(b, '}')
}

// appendMember appends a member of the request as it stands there, if it is given.
func (q *Query) appendMember(b []byte, f openai.Field) []byte {
	if !q.Request.Given(q.Body, f) {
		return b
	}
	b = append(append(append(b, ',', '"'), f.String()...), '"', ':')
	return append(b, q.Request.Value(f).Of(q.Body)...)
}
