package tokens

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// flight is one question to a tokenizer. All callers with the same prompt share it.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when entry and err are set

	waiters int // callers that wait; guarded by Resolver.mu
	copied  int // bytes of the prompt copied into its questions

	entry *entry // set before done is closed, read-only afterwards
	err   error
}

// Engine asks one of the tokenizers about q's prompt, or waits for a question about the
// same prompt that is running. It waits for at most Wait and no longer than ctx. When the
// last waiting caller has gone, the question is dropped. Its error is an *[Error]. The
// body is not used after Engine has returned.
func (r *Resolver) Engine(ctx context.Context, q Query, from []worker.Endpoint) (Prompt, error) {
	r.tryFiles(&q, from)
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
	switch {
	case q.page != "":
		first = []*asides{r.renderers}
	case m.parts > 0:
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
		return r.converted(&q, q.counted(f.entry.prompt(false))), nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return Prompt{}, &Error{Reason: ReasonSlow}
		}
		return Prompt{}, &Error{Reason: ReasonCancelled}
	}
}

// tokenizable returns nil if a tokenizer may be asked about q, else an error with the
// reason. media is how many parts of q are not text.
func (r *Resolver) tokenizable(q Query, media int, from []worker.Endpoint) error {
	switch q.Request.PromptKind {
	case openai.PromptString:
		if q.unread() && q.page == "" {
			return &Error{Reason: ReasonUnconverted}
		}
	case openai.PromptStrings:
		n := 0
		openai.VisitPrompt(q.Body, q.Request, func(k openai.PieceKind, _ []byte) { n += map[bool]int{true: 1}[k == openai.PieceText] })
		if n > maxPrompts {
			return &Error{Reason: ReasonTooLarge}
		}
	case openai.PromptMessages:
		switch {
		case media > maxPictures || media > 0 && r.cfg.Pictures != AskPictures:
			return &Error{Reason: ReasonMedia}
		case q.unread() && q.page == "":
			return &Error{Reason: ReasonUnconverted}
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

// startFunc starts a flight with its questions. h is how the answers are hashed.
type startFunc func(a asking, h hashing)

// join returns the flight for the key and counts the caller as waiting. If it also
// returns a startFunc, the flight is new and the caller must call the function. copied is
// the bytes of the prompt that the flight's questions copy. first has the asides by which
// a tokenizer is chosen, in order of preference.
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
	// A flight puts its entry into the cache before it is removed from flights. So a
	// prompt that is in neither is not being asked about.
	f := &flight{cancel: func() {}, done: make(chan struct{}), waiters: 1, copied: copied}
	f.entry = r.cache.get(key)
	if f.entry != nil {
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

// asked is a tokenizer that was chosen for a question.
type asked struct {
	ep  worker.Endpoint
	of  *asides           // which of the resolver's asides counts its faults
	all []worker.Endpoint // the tokenizers it was chosen from
}

// choose picks a tokenizer by the first of the asides that has one. False means that all
// tokenizers are set aside in each. The caller must then report what came of the
// question, with asked.heard or asides.undecided.
func choose(by []*asides, from []worker.Endpoint, probe time.Duration) (asked, bool) {
	for _, of := range by {
		if ep, ok := of.pick(from, probe); ok {
			return asked{ep: ep, of: of, all: from}, true
		}
	}
	return asked{}, false
}

// heard notes what an answer shows about the tokenizer. It shows nothing if the prompt or
// the caller caused the error. shared says that others had a part in the time and in a
// failure, for example hosts of pictures: then neither counts.
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

// leave notes that a caller no longer waits. The last one cancels the flight.
func (r *Resolver) leave(key cacheKey, f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.waiters--
	if f.waiters == 0 {
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
	switch {
	case a.page != "":
		e, err = r.askPage(ctx, to.ep, a)
		to.heard(err, a.loads())
	case a.media.parts > 0:
		e, err = r.askPictures(ctx, to, a)
	default:
		e, err = r.askAll(ctx, to.ep, a.texts)
		to.heard(err, false)
	}
	if err == nil && e.longest > a.keeps {
		e, err = nil, &Error{Reason: ReasonTruncated} // caused by the prompt: the tokenizer's answer was good
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

// keep puts the answer into the cache, unless it may be wrong for the next request.
func (r *Resolver) keep(e *entry, a *asking) {
	switch {
	case e.partial && a.renders:
		e.until = time.Now().Add(maxSetAside) // by then an engine may tell more
	case a.loads():
		return // the address may have another picture at any time
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

// askAll asks about one prompt after the other. The hashes are of the first prompt's
// tokens; the length is the sum over all prompts.
func (r *Resolver) askAll(ctx context.Context, ep worker.Endpoint, bodies [][]byte) (*entry, error) {
	whole, err := r.ask(ctx, ep, bodies[0])
	for _, body := range bodies[1:] {
		if err != nil {
			return nil, err
		}
		var e *entry
		e, err = r.ask(ctx, ep, body)
		if err == nil {
			whole.isl += e.isl
			whole.longest = max(whole.longest, e.longest)
		}
	}
	return whole, err
}

// ask asks for the tokens of one prompt. Its errors are *Error.
func (r *Resolver) ask(ctx context.Context, ep worker.Endpoint, body []byte) (*entry, error) {
	release, err := take(ctx, r.slots)
	if err != nil {
		return nil, err
	}
	defer release()
	// No tokenizer makes more tokens than the prompt has bytes, and no id takes more than
	// 12 bytes with its comma.
	text, err := r.post(ctx, ep, r.cfg.TokenizePath, body, 12*int64(len(body))+64<<10)
	if err != nil {
		return nil, err
	}
	return parseTokens(text, ep)
}

// take waits for a free slot. release frees it.
func take(ctx context.Context, slots chan struct{}) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, ended(ctx, ReasonBusy)
	}
}

// post sends one question and returns the answer, which may have at most so many bytes.
// Its errors are *Error.
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
		// The answer may quote the prompt. It is read, so that the connection can be
		// reused, and dropped.
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
		return nil, &Error{Reason: r.refusal(path, res.StatusCode), Err: fmt.Errorf("%s answered %d", ep, res.StatusCode)}
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, most+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ended(ctx, ReasonSlow)
	case err != nil:
		return nil, &Error{Reason: ReasonFailed, Err: err}
	case int64(len(text)) > most: // a short question may stand for a long prompt
		return nil, &Error{Reason: ReasonTooLarge, Err: fmt.Errorf("%s answered more than %d bytes", ep, most)}
	}
	return text, nil
}

// refusal returns the reason for a status other than 200.
func (r *Resolver) refusal(path string, status int) Reason {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return ReasonRefused
	case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		if path == r.cfg.RenderPath || strings.HasSuffix(path, "/render") {
			return ReasonUntold // docs/engines.md#render
		}
	}
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		return ReasonKey
	}
	return ReasonFailed
}

// ended says why a flight's context ended: late if its time was up, else cancelled, since
// no caller waits any more.
func ended(ctx context.Context, late Reason) *Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &Error{Reason: late}
	}
	return &Error{Reason: ReasonCancelled}
}

// parseTokens reads {"tokens":[…]} or {"tokens":[[…],…]}, the answers of SGLang and vLLM.
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

// maxPrompts bounds the questions about one list of prompts.
const maxPrompts = 32

// asking is the questions about a prompt.
type asking struct {
	texts [][]byte // one question for each prompt of text
	keeps int      // see Query.keeps

	page string // at which the engine tells the tokens of such a request; "": it is asked as usual

	// For a prompt with pictures:
	media   media
	renders bool   // see Query.Renders
	whole   []byte // about the whole prompt
	before  []byte // about the text before the first picture; nil: there is none
}

// loads reports whether an engine must load pictures from elsewhere to answer.
func (a *asking) loads() bool { return a.renders && !a.media.inside }

// questions returns the questions about q's prompt. vLLM tokenizes no list of prompts, so
// each prompt of a list is a question of its own.
func questions(q *Query, m media) asking {
	switch {
	case q.page != "":
		return asking{page: q.page, media: m, renders: true, whole: q.pageBody(), keeps: q.keeps()}
	case m.parts > 0:
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

// beside bounds the bytes of a question besides the copied parts of the request: the
// names of members, and the model's name, of which each byte may be written as six.
func (q *Query) beside() int { return 512 + 6*len(q.Key.Model) }

// copied bounds the bytes of all questions about q's prompt. Parts of the body that are
// not sent do not count.
func (q *Query) copied(m media) int {
	switch n := q.promptBytes(); {
	case m.parts > 0: // the text before the first picture is sent a second time
		return 2 * (n + q.beside())
	case q.Request.PromptKind == openai.PromptStrings:
		return n + maxPrompts*q.beside()
	default:
		return n + q.beside()
	}
}

// begin begins a question that will copy so many bytes of the request.
func (q *Query) begin(copies int) []byte {
	b := append(make([]byte, 0, copies+q.beside()), `{"model":`...)
	return openai.AppendString(b, q.Key.Model)
}

// tokenizeBody writes the question about q's prompt, with the raw values of the request.
// SGLang and vLLM take {"model","prompt"}, or {"model","messages"} with the other members
// that the tokens depend on.
func tokenizeBody(q *Query) []byte {
	r := q.Request
	if r.PromptKind == openai.PromptMessages {
		return messagesBody(q, false, false)
	}
	b := append(q.begin(q.promptBytes()), `,"prompt":`...)
	return append(append(b, r.Value(r.PromptField).Of(q.Body)...), '}')
}

// messagesBody writes the question about messages. before: only about the part before the
// first that is not text; nil means that there is no such part. render: for an engine
// that renders messages.
func messagesBody(q *Query, before, render bool) []byte {
	b := append(q.begin(q.promptBytes()), `,"messages":`...)
	if before {
		var ok bool
		b, ok = openai.AppendBeforeMedia(b, q.Body, q.Request)
		if !ok {
			return nil
		}
	} else {
		b = append(b, q.Request.Value(openai.Messages).Of(q.Body)...)
	}
	for _, f := range besideMessages() {
		b = q.appendMember(b, f)
	}
	if render {
		b = append(q.appendTruncation(b), `,"mm_payload":"none"`...) // without the processed pictures
	}
	return append(b, '}')
}

// appendMember appends a member of the request with its raw value, if the request has it.
func (q *Query) appendMember(b []byte, f openai.Field) []byte {
	if !q.Request.Given(q.Body, f) {
		return b
	}
	b = append(append(append(b, ',', '"'), f.String()...), '"', ':')
	return append(b, q.Request.Value(f).Of(q.Body)...)
}
