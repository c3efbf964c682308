package tokens

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/tokens/chat"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TrialState says whether a model's files give the tokens that its engines give.
type TrialState string

// The states of the files of a model, for each kind of engine and each kind of prompt.
const (
	Untried TrialState = "untried" // no engine of the model has been asked yet
	Exact   TrialState = "exact"   // every trial gave the engine's tokens: the files are used
	Differs TrialState = "differs" // out of use until the process starts anew
	Unknown TrialState = "unknown" // out of use: nothing could be compared
)

// Standing is what is known of the files of a model.
type Standing struct {
	Model  string
	Engine worker.Engine
	Chat   bool // of messages, else of prompts of text
	State  TrialState
	Why    string // of Differs and Unknown: where they begin to differ, or what is not known
	Since  time.Time
}

// trialAgain is how long after a trial that no engine answered the next one begins.
const trialAgain = 10 * time.Second

// trialTime bounds all questions of one trial together.
const trialTime = time.Minute

// CallerOf returns the rules by which an engine renders chat templates. nil: none are known, and
// no tokens are made here for such an engine.
func CallerOf(e worker.Engine) *chat.Caller { return engines.Of(e).ChatCaller }

// form is what one standing is about.
type form struct {
	caller *chat.Caller
	chat   bool
}

// files are the files of one model with their standings. Safe for concurrent use.
type files struct {
	model *local.Model
	name  string
	tell  func(Standing) // may be nil

	mu       sync.RWMutex
	by       map[form]*Standing // guarded by mu, as all below
	samplers map[form]*sampler  // of each form in by
	tried    map[*chat.Caller]time.Time
}

func (f *files) sampler(of form) *sampler {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.samplers[of]
}

// aroundMidnight is how far clocks and the moments of rendering may be apart, of a prompt
// with a date.
const aroundMidnight = 2 * time.Minute

// unsure reports whether the tokens depend on the date, and whether an engine may just now
// have another one.
func (f *files) unsure(of form, now time.Time) bool {
	into := now.Sub(now.Truncate(24 * time.Hour)) // the zero time is a midnight of UTC
	return of.chat && f.model.Dated() && (into < aroundMidnight || into > 24*time.Hour-aroundMidnight)
}

func newFiles(name string, m *local.Model, tell func(Standing)) *files {
	return &files{
		model: m, name: name, tell: tell,
		by: make(map[form]*Standing), samplers: make(map[form]*sampler), tried: make(map[*chat.Caller]time.Time),
	}
}

// formOf returns what of the files a request needs, and whether it can be made here at all.
func formOf(q *Query) (form, bool) {
	c := CallerOf(q.Engine)
	switch q.Request.PromptKind {
	case openai.PromptMessages:
		return form{c, true}, c != nil
	case openai.PromptString, openai.PromptStrings:
		return form{c, false}, c != nil
	default:
		return form{}, false
	}
}

func (f *files) state(of form) TrialState {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if s := f.by[of]; s != nil {
		return s.State
	}
	return Untried
}

// set notes a state, and tells of it if it is new. What differs stays so.
func (f *files) set(of form, engine worker.Engine, state TrialState, why string) {
	f.mu.Lock()
	old, held := f.by[of]
	if held && (old.State == state || old.State == Differs) {
		f.mu.Unlock()
		return
	}
	s := Standing{Model: f.name, Engine: engine, Chat: of.chat, State: state, Why: why, Since: time.Now()}
	f.by[of] = &s
	if !held {
		f.samplers[of] = new(sampler)
	}
	f.mu.Unlock()
	if f.tell != nil {
		f.tell(s)
	}
}

// begin reports whether a trial for this caller is to begin now, and notes that it has.
func (f *files) begin(c *chat.Caller, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, chats := range [...]bool{false, true} {
		if s := f.by[form{c, chats}]; s != nil && s.State != Untried {
			return false
		}
	}
	if at, ok := f.tried[c]; ok && now.Sub(at) < trialAgain {
		return false
	}
	f.tried[c] = now
	return true
}

// fromFiles makes the tokens of q from the files of its model. False means that there are
// none, that they are not known to be exact, or that they do not tell of this request.
func (r *Resolver) fromFiles(q *Query, s *Scratch) (Prompt, bool) {
	f := r.filesOf(q.Key.Model)
	of, ok := formOf(q)
	if f == nil || !ok || q.odd || f.state(of) != Exact {
		return Prompt{}, false
	}
	began := time.Now()
	ids, n, err := f.model.Append(s.tokens[:0], of.caller, q.Request, q.Body)
	if err != nil || n > q.keeps() {
		return Prompt{}, false // an engine may know
	}
	s.tokens = ids
	s.est.hashes = r.hash(s.est.hashes[:0], ids, q.hashing())
	if r.cfg.OnLocal != nil {
		r.cfg.OnLocal(time.Since(began))
	}
	p := q.counted(Prompt{Tokens: ids, Hashes: s.est.hashes, ISLTokens: n, Source: FromLocal, Reason: ReasonLocal})
	if p.Exact { // an engine may cut one that is not
		p.Claim = Claim{by: r, files: f, of: of, engine: q.Engine, tokens: n}
		if r.cfg.Told != nil {
			p.Claim.sample = f.sampler(of).pick(q, s.est.hashes, began)
		}
	}
	return p, true
}

// Claim says what was made from a model's files for one prompt, so that it can be compared
// with what the engine tells of the prompt. The zero Claim claims nothing. It is a value, and
// may be copied.
type Claim struct {
	by     *Resolver
	files  *files
	of     form
	engine worker.Engine
	tokens int
	sample uint64     // its number; 0: it is none
	made   conversion // that the tokens depend on, in place of the files
}

// Counted tells how many tokens the engine has counted. If they are not as many, the files
// are out of use for such prompts.
func (c Claim) Counted(n int) {
	if c.made.path != 0 {
		c.by.conversions.counted(c.made, n == c.tokens)
		return
	}
	if c.files == nil || n == c.tokens || c.by.filesOf(c.files.name) != c.files || c.files.unsure(c.of, time.Now()) {
		return
	}
	c.files.set(c.of, c.engine, Differs, fmt.Sprintf("an engine has counted %d tokens in a prompt of %d", n, c.tokens))
}

// tryFiles begins a trial of q's model with one of the engines, if one is due.
func (r *Resolver) tryFiles(q *Query, from []worker.Endpoint) {
	f := r.filesOf(q.Key.Model)
	c := CallerOf(q.Engine)
	if now := time.Now(); f == nil || c == nil || len(from) == 0 || f.unsure(form{c, true}, now) || !f.begin(c, now) {
		return
	}
	to, ok := choose([]*asides{r.asides}, from, 2*r.cfg.Wait)
	if !ok {
		return
	}
	key, engine := q.Key, q.Engine
	r.begin(func() { r.trial(f, c, key, engine, to) })
}

// trial asks one engine for the tokens of each trial, and decides about both forms.
func (r *Resolver) trial(f *files, c *chat.Caller, key worker.Key, engine worker.Engine, to asked) {
	ctx, cancel := context.WithTimeout(r.life, trialTime)
	defer cancel()
	why := map[bool]string{}
	compared := map[bool]int{}
	for _, t := range local.Trials() {
		if why[t.Chat()] != "" {
			continue
		}
		ours, theirs, err := r.both(ctx, f, c, key, engine, to.ep, &t)
		switch {
		case errors.Is(err, errNotTried):
			continue
		case err != nil:
			to.heard(err, false)
			return // another engine, or this one later
		}
		if differ := f.model.Compare(&t, c, ours, theirs); differ != "" {
			why[t.Chat()] = differ
		}
		compared[t.Chat()]++
	}
	to.heard(nil, false)
	for _, chats := range [...]bool{false, true} {
		of := form{c, chats}
		switch {
		case why[chats] != "":
			f.set(of, engine, Differs, why[chats])
		case compared[chats] > 0:
			f.set(of, engine, Exact, "")
		case chats && f.model.Chat() != nil:
			f.set(of, engine, Unknown, f.model.Chat().Error())
		default:
			f.set(of, engine, Unknown, "neither the files nor the engine tell of any trial")
		}
	}
}

// errNotTried means that a trial could not be compared: the files do not tell, or the
// engine refuses it.
var errNotTried = errors.New("tokens: not compared")

// both returns the tokens of a trial by the files and by an engine.
func (r *Resolver) both(ctx context.Context, f *files, c *chat.Caller, key worker.Key, engine worker.Engine, ep worker.Endpoint, t *local.Trial) (ours, theirs []uint32, err error) {
	q := Query{Key: key, Request: new(openai.Request), Body: t.Body, Engine: engine}
	err = openai.Scan(t.Path, t.Body, q.Request)
	if err != nil {
		return nil, nil, err
	}
	ours, err = f.model.Tokens(t, c)
	if err != nil {
		return nil, nil, errNotTried
	}
	e, err := r.askAll(ctx, ep, questions(&q, media{}).texts)
	switch {
	case err != nil && ReasonOf(err) == ReasonRefused:
		return nil, nil, errNotTried
	case err != nil:
		return nil, nil, err
	}
	return ours, e.tokens, nil
}
