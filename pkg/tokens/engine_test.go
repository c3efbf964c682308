package tokens

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// tokenizer is a real HTTP server. Its tokens are the bytes of the prompt. handle, if
// set, is called first and reports whether it has answered.
type tokenizer struct {
	*httptest.Server
	ep     worker.Endpoint
	asked  atomic.Int32
	mu     sync.Mutex
	bodies []map[string]json.RawMessage
	handle func(w http.ResponseWriter, r *http.Request) bool
}

func newTokenizer(t *testing.T) *tokenizer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return newTokenizerOn(t, l)
}

func newTokenizerOn(t *testing.T, l net.Listener) *tokenizer {
	t.Helper()
	tk := new(tokenizer)
	tk.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(tk.serve)}}
	tk.Start()
	t.Cleanup(tk.Close)
	var err error
	tk.ep, err = worker.ParseEndpoint(tk.Listener.Addr().String())
	require.NoError(t, err)
	return tk
}

func (tk *tokenizer) serve(w http.ResponseWriter, r *http.Request) {
	tk.asked.Add(1)
	text, _ := io.ReadAll(r.Body)
	var body map[string]json.RawMessage
	if r.URL.Path != "/tokenize" || r.Method != http.MethodPost || json.Unmarshal(text, &body) != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	tk.mu.Lock()
	tk.bodies = append(tk.bodies, body)
	tk.mu.Unlock()
	if tk.handle != nil && tk.handle(w, r) {
		return
	}
	var list []string
	if json.Unmarshal(body["prompt"], &list) == nil && list != nil {
		w.WriteHeader(http.StatusBadRequest) // as vLLM, which tokenizes one prompt at a time
		return
	}
	var s string
	if json.Unmarshal(body["prompt"], &s) != nil {
		s = string(body["messages"])
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"tokens": bytesOf(s), "count": len(s), "max_model_len": 9})
}

// newTokenizerInside returns a tokenizer for a bubble of synctest, and a transport that
// reaches it.
func newTokenizerInside(t *testing.T) (*tokenizer, http.RoundTripper) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	return newTokenizerOn(t, p), &http.Transport{DialContext: p.DialContext}
}

// pipes is a listener within the process. In a bubble of synctest, time stands still
// while bytes go through it.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func bytesOf(s string) []int {
	out := make([]int, len(s))
	for i := range s {
		out[i] = int(s[i])
	}
	return out
}

// patient has a Wait that no test reaches.
var patient = Config{Wait: time.Minute}

func text(t testing.TB, s string) Query {
	return query(t, openai.Completions, fmt.Sprintf(`{"model":"m","prompt":%q}`, s))
}

func requireReason(t *testing.T, want Reason, err error) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, want, e.Reason, err)
}

func TestEngineTokenizesAndRemembers(t *testing.T) {
	tk := newTokenizer(t)
	r := newResolver(t, patient)
	var s Scratch
	q := text(t, "abcdefghi")
	_, ok := r.Fast(q, &s)
	require.False(t, ok)
	p, err := r.Engine(t.Context(), q, []worker.Endpoint{tk.ep})
	require.NoError(t, err)
	require.Equal(t, []uint32{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i'}, p.Tokens)
	require.Equal(t, kvindex.AppendLocalHashes(nil, p.Tokens, 4, kvindex.Salt{}.Seed()), p.Hashes)
	require.Equal(t, 9, p.ISLTokens)
	require.Equal(t, FromEngine, p.Source)
	require.Equal(t, ReasonTokenized, p.Reason)
	require.False(t, p.Cached)

	again, ok := r.Fast(q, &s)
	require.True(t, ok)
	require.True(t, again.Cached)
	require.Equal(t, ReasonCached, again.Reason)
	require.Equal(t, p.Hashes, again.Hashes)
	_, err = r.Engine(t.Context(), q, []worker.Endpoint{tk.ep})
	require.NoError(t, err)
	require.EqualValues(t, 1, tk.asked.Load())
}

func TestEngineSendsTheRawValues(t *testing.T) {
	tk := newTokenizer(t)
	r := newResolver(t, patient)
	messages := `[{"role":"user", "content":"\u00e9\/"}]`
	q := query(t, openai.ChatCompletions, `{"model":"m","messages":`+messages+`,"tools":[ {"a":1} ],"chat_template_kwargs":{"b":2.0},"tool_choice":null,"temperature":1}`)
	q.Key.Model = `served "as"`
	p, err := r.Engine(t.Context(), q, []worker.Endpoint{tk.ep})
	require.NoError(t, err)
	require.Equal(t, len(messages), p.ISLTokens)
	require.Equal(t, []map[string]json.RawMessage{{
		"model": json.RawMessage(`"served \"as\""`), "messages": json.RawMessage(messages),
		"tools": json.RawMessage(`[ {"a":1} ]`), "chat_template_kwargs": json.RawMessage(`{"b":2.0}`),
	}}, tk.bodies)
}

func TestOfSeveralPromptsTheFirstIsHashedAndAllAreCounted(t *testing.T) {
	tk := newTokenizer(t)
	r := newResolver(t, patient)
	p, err := r.Engine(t.Context(), query(t, openai.Generate, `{"text":["abcd","efghij"]}`), []worker.Endpoint{tk.ep})
	require.NoError(t, err)
	require.Equal(t, []uint32{'a', 'b', 'c', 'd'}, p.Tokens)
	require.Equal(t, 10, p.ISLTokens)
	require.Len(t, p.Hashes, 1)
	require.Len(t, tk.bodies, 2, "each is a question of its own")

	many := `{"text":["` + strings.Repeat(`a","`, maxPrompts) + `a"]}`
	_, err = r.Engine(t.Context(), query(t, openai.Generate, many), []worker.Endpoint{tk.ep})
	require.Equal(t, ReasonTooLarge, ReasonOf(err))
	require.Len(t, tk.bodies, 2)
}

func TestEqualPromptsShareOneQuestion(t *testing.T) {
	tk := newTokenizer(t)
	release := make(chan struct{})
	tk.handle = func(http.ResponseWriter, *http.Request) bool { <-release; return false }
	r := newResolver(t, patient)
	q := text(t, "abcdefgh")
	const n = 8
	got := make(chan Prompt, n)
	for range n {
		go func() {
			p, err := r.Engine(t.Context(), q, []worker.Endpoint{tk.ep})
			if err != nil {
				p.Reason = ReasonOf(err)
			}
			got <- p
		}()
	}
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		f := r.flights[q.key(q.hashing())]
		return f != nil && f.waiters == n
	}, 20*time.Second, time.Millisecond)
	close(release)
	for range n {
		p := <-got
		require.Equal(t, ReasonTokenized, p.Reason)
		require.Equal(t, 8, p.ISLTokens)
	}
	require.EqualValues(t, 1, tk.asked.Load())
}

// The bubble makes sure that the question arrives before its time is up, however slow the
// machine is.
func TestASlowTokenizerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tk, way := newTokenizerInside(t)
		release := make(chan struct{})
		defer close(release)
		tk.handle = func(http.ResponseWriter, *http.Request) bool { <-release; return true }
		outcomes := make(chan Reason, 10)
		r := newResolver(t, Config{
			Wait: 10 * time.Millisecond, SetAside: time.Hour, Transport: way,
			OnTokenize: func(_ time.Duration, o Reason) { outcomes <- o },
		})
		var s Scratch
		for i := range strikesOut {
			q := text(t, fmt.Sprint("a prompt of some length, and so that it has a whole block it goes on for a while, number ", i))
			p := r.Resolve(t.Context(), q, []worker.Endpoint{tk.ep}, &s)
			require.Equal(t, ReasonSlow, p.Reason)
			require.Equal(t, Estimate, p.Source)
			require.True(t, p.Estimated)
			require.NotEmpty(t, p.Hashes)
			require.Equal(t, ReasonSlow, <-outcomes)
		}
		// The tokenizer is set aside, so no request waits for it now.
		_, err := r.Engine(t.Context(), text(t, "another"), []worker.Endpoint{tk.ep})
		requireReason(t, ReasonSetAside, err)
		require.EqualValues(t, strikesOut, tk.asked.Load())
	})
}

func TestATokenizerThatBreaksIsSetAsideAtOnce(t *testing.T) {
	status := func(code int) func(w http.ResponseWriter, _ *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }
	}
	answer := func(s string) func(w http.ResponseWriter, _ *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { _, _ = io.WriteString(w, s); return true }
	}
	for name, handle := range map[string]func(w http.ResponseWriter, _ *http.Request) bool{
		"an internal error":   status(500),
		"no such path":        status(404),
		"a redirect":          status(302),
		"not JSON":            answer("hello"),
		"no tokens":           answer(`{"count":3}`),
		"tokens of no number": answer(`{"tokens":["a"]}`),
		"ids out of range":    answer(`{"tokens":[4294967296]}`),
		"a cut connection": func(http.ResponseWriter, *http.Request) bool {
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := newTokenizer(t), newTokenizer(t)
			bad.handle = handle
			r := newResolver(t, Config{Wait: time.Minute, SetAside: time.Hour})
			_, err := r.Engine(t.Context(), text(t, "one"), []worker.Endpoint{bad.ep})
			requireReason(t, ReasonFailed, err)
			_, err = r.Engine(t.Context(), text(t, "two"), []worker.Endpoint{bad.ep})
			requireReason(t, ReasonSetAside, err)
			for i := range 4 { // the other tokenizer takes over
				_, err = r.Engine(t.Context(), text(t, fmt.Sprint("three", i)), []worker.Endpoint{bad.ep, good.ep})
				require.NoError(t, err)
			}
			require.EqualValues(t, 1, bad.asked.Load())
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ep, err := worker.ParseEndpoint(l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, l.Close())
		r := newResolver(t, patient)
		_, err = r.Engine(t.Context(), text(t, "SECRET"), []worker.Endpoint{ep})
		requireReason(t, ReasonFailed, err)
		require.NotContains(t, err.Error(), "SECRET")
	})
}

func TestARefusalIsOfThePrompt(t *testing.T) {
	tk := newTokenizer(t)
	tk.handle = func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "cannot read SECRET", http.StatusBadRequest)
		return true
	}
	r := newResolver(t, Config{Wait: time.Minute, SetAside: time.Hour})
	for i := range strikesOut {
		_, err := r.Engine(t.Context(), text(t, fmt.Sprint(i)), []worker.Endpoint{tk.ep})
		requireReason(t, ReasonRefused, err)
		require.NotContains(t, err.Error(), "SECRET")
	}
	require.Empty(t, r.asides.byEndpoint, "no client can have a tokenizer set aside")
}

// An answer that is too long is charged to the prompt, not to the tokenizer.
func TestAnAnswerThatIsTooLongIsOfThePrompt(t *testing.T) {
	tk := newTokenizer(t)
	tk.handle = func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = io.WriteString(w, `{"tokens":[`+strings.Repeat("1,", 100<<10)+`1]}`)
		return true
	}
	r := newResolver(t, patient)
	_, err := r.Engine(t.Context(), text(t, "x"), []worker.Endpoint{tk.ep})
	requireReason(t, ReasonTooLarge, err)
	require.Empty(t, r.asides.byEndpoint)
}

// A tokenizer that requires a key is not asked again for a while.
func TestAKeyThatIsMissingIsNoFaultOfThePrompt(t *testing.T) {
	tk := newTokenizer(t)
	tk.handle = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "Bearer k" {
			http.Error(w, "no", http.StatusUnauthorized)
			return true
		}
		return false
	}
	r := newResolver(t, Config{Wait: time.Minute, SetAside: time.Hour})
	_, err := r.Engine(t.Context(), text(t, "a"), []worker.Endpoint{tk.ep})
	requireReason(t, ReasonKey, err)
	_, err = r.Engine(t.Context(), text(t, "b"), []worker.Endpoint{tk.ep})
	requireReason(t, ReasonSetAside, err)

	r = newResolver(t, Config{Wait: time.Minute, Around: func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer k")
			return next.RoundTrip(r)
		})
	}})
	_, err = r.Engine(t.Context(), text(t, "a"), []worker.Endpoint{tk.ep})
	require.NoError(t, err)
}

type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestACallerThatLeavesDoesNotTakeTheOthersAlong(t *testing.T) {
	tk := newTokenizer(t)
	release, left := make(chan struct{}), make(chan struct{})
	tk.handle = func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-release:
		case <-r.Context().Done():
			close(left)
		}
		return false
	}
	r := newResolver(t, patient)
	q := text(t, "abcd")
	waiters := func(n int) {
		require.Eventually(t, func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			f := r.flights[q.key(q.hashing())]
			return f != nil && f.waiters == n
		}, 20*time.Second, time.Millisecond)
	}
	ask := func(ctx context.Context) chan error {
		out := make(chan error, 1)
		go func() { _, err := r.Engine(ctx, q, []worker.Endpoint{tk.ep}); out <- err }()
		return out
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := ask(ctx)
	waiters(1)
	second := ask(t.Context())
	waiters(2)
	cancel()
	requireReason(t, ReasonCancelled, <-first)
	release <- struct{}{}
	require.NoError(t, <-second)

	// When the last waiting caller leaves, the question is dropped, and the tokenizer is
	// not charged.
	q = text(t, "efgh")
	ctx, cancel = context.WithCancel(t.Context())
	third := ask(ctx)
	waiters(1)
	require.Eventually(t, func() bool { return tk.asked.Load() == 2 }, 20*time.Second, time.Millisecond)
	cancel()
	requireReason(t, ReasonCancelled, <-third)
	<-left
	r.running.Wait()
	require.Empty(t, r.asides.byEndpoint)
	require.Empty(t, r.flights)
	_, err := r.Engine(ctx, q, []worker.Endpoint{tk.ep})
	requireReason(t, ReasonCancelled, err)
}

func TestEngineSaysWhyNobodyIsAsked(t *testing.T) {
	tk := newTokenizer(t)
	from := []worker.Endpoint{tk.ep}
	r := newResolver(t, Config{MaxTokenizeBytes: 300})
	for _, tt := range []struct {
		q    Query
		from []worker.Endpoint
		want Reason
	}{
		{text(t, "a"), nil, ReasonNoTokenizer},
		{text(t, strings.Repeat("a", 300)), from, ReasonTooLarge},
		{query(t, openai.Completions, `{"model":"m","prompt":[1]}`), from, ReasonNoText},
		{query(t, openai.ChatCompletions, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`), from, ReasonMedia},
	} {
		_, err := r.Engine(t.Context(), tt.q, tt.from)
		requireReason(t, tt.want, err)
	}
	_, err := newResolver(t, Config{Mode: EstimateOnly}).Engine(t.Context(), text(t, "a"), from)
	requireReason(t, ReasonMode, err)
	r.Close()
	_, err = r.Engine(t.Context(), text(t, "a"), from)
	requireReason(t, ReasonCancelled, err)
	require.Zero(t, tk.asked.Load())
}

// The bubble makes sure that the second question waits before its time is up.
func TestQuestionsAtOnceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tk, way := newTokenizerInside(t)
		release, busy := make(chan struct{}), make(chan struct{})
		tk.handle = func(http.ResponseWriter, *http.Request) bool { busy <- struct{}{}; <-release; return false }
		r := newResolver(t, Config{Wait: time.Minute, MaxInFlight: 1, Transport: way})
		first, one := make(chan error, 1), text(t, "one")
		go func() {
			_, err := r.Engine(t.Context(), one, []worker.Endpoint{tk.ep})
			first <- err
		}()
		<-busy
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := r.Engine(ctx, text(t, "two"), []worker.Endpoint{tk.ep})
		requireReason(t, ReasonSlow, err)
		require.EqualValues(t, 1, tk.asked.Load())
		close(release)
		require.NoError(t, <-first)
	})
}

func TestATokenizerSetAsideComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep, err := worker.ParseEndpoint("127.0.0.1:1")
		require.NoError(t, err)
		other, err := worker.ParseEndpoint("127.0.0.1:2")
		require.NoError(t, err)
		a := newAsides(2 * time.Second)
		free := func() bool { _, ok := a.pick([]worker.Endpoint{ep}, time.Second); return ok }
		after := func(d time.Duration) { <-time.After(d) }

		require.True(t, free())
		a.bad(ep, true)
		a.bad(ep, true) // the failure of a request that was sent before
		require.False(t, free())
		after(2 * time.Second)
		require.True(t, free(), "one may ask again")
		require.False(t, free(), "one only")
		a.bad(ep, false)
		after(3 * time.Second)
		require.False(t, free(), "the second time is twice as long")
		after(time.Second)
		require.True(t, free())
		a.undecided(ep)
		require.True(t, free(), "a question that was dropped says nothing")
		after(time.Second)
		require.True(t, free(), "a question that never comes back blocks nobody")
		a.good(ep)
		require.True(t, free())
		require.True(t, free())

		// After late answers, a good one resets the count.
		a.bad(ep, false)
		a.bad(ep, false)
		a.good(ep)
		a.bad(ep, false)
		a.bad(ep, false)
		require.True(t, free())
		a.bad(ep, false)
		require.False(t, free())

		for range 10 {
			a.byEndpoint[ep].probing = true
			a.bad(ep, true)
		}
		require.Equal(t, maxSetAside, a.byEndpoint[ep].last)

		// Tokenizers that are not set aside are asked in turn.
		got, ok := a.pick([]worker.Endpoint{ep, other}, time.Second)
		require.True(t, ok)
		require.Equal(t, other, got)
		a.good(ep)
		x, _ := a.pick([]worker.Endpoint{ep, other}, time.Second)
		y, _ := a.pick([]worker.Endpoint{ep, other}, time.Second)
		require.NotEqual(t, x, y)
		a.bad(ep, true)
		after(time.Hour)
		a.prune(time.Now())
		require.NotEmpty(t, a.byEndpoint, "few are kept")
		for i := range 300 {
			e, err := worker.ParseEndpoint(fmt.Sprintf("127.0.0.1:%d", 1000+i))
			require.NoError(t, err)
			a.bad(e, true)
		}
		after(time.Hour)
		a.bad(other, true)
		require.Len(t, a.byEndpoint, 1)
	})
}
