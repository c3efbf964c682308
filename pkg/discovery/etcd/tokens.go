package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// askTime bounds one question for a token. It is long: many that ask at once are
	// answered together, at the end, and an answer that is not waited for is computed in
	// vain, so a thousand would never have one from a slow etcd. A member that hangs is
	// left after askSign without a sign of life.
	askTime, askSign = 10 * time.Minute, time.Minute
	// askConnect bounds an attempt to connect for a question.
	askConnect = 10 * time.Second
	// A token that is refused so soon was no better than none: the next one is not asked
	// for at once.
	soonSpent = time.Second
	// Pauses between questions for a token that fail double from the first to the longest.
	askPause, longestPause = 500 * time.Millisecond, 30 * time.Second
)

// tokens has the token that tells etcd a client's user. For each token etcd computes a
// hash of the password, which takes 40 to 200 ms of a processor: as many clients as start
// at once keep etcd busy for a while. clientv3 asks for a token with each stream and within
// the time for each call, and asks anew if that is over. So tokens asks in its place: one
// question at a time, which no call's end takes back, and whose answer is kept.
//
// A question goes over a connection of its own, without a token: etcd 3.4 refuses one with
// a wrong token, as it refuses everything else; and while etcd is busy with passwords it
// answers the pings too late by which dead connections are found.
//
// Safe for concurrent use.
type tokens struct {
	// Set at construction, read-only.
	user     string
	password func() (string, error)
	jitter   func(time.Duration) time.Duration
	ask      func(ctx context.Context, user, password string) (token string, err error)
	ctx      context.Context //nolint:containedctx // of all questions: it ends with the client

	mu        sync.Mutex // guards the fields below
	token     string
	known     bool // there is a token; it is empty if etcd asks for no user
	since     time.Time
	question  *question // that is under way; nil: none is
	fails     int       // questions that failed, and tokens that were soon spent, in a row
	notBefore time.Time // when the next question may be asked with the password refused
	refused   string    // the password with which the last question failed
	last      error     // why it failed
	came      chan struct{}
}

// question is one question for a token. Its answer may be read once done is closed.
type question struct {
	done  chan struct{}
	token string
	err   error
}

// get returns the token, and asks for one if there is none. If ctx ends first, the
// question goes on.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	if t.known {
		defer t.mu.Unlock()
		return t.token, nil
	}
	q, err := t.question, error(nil)
	if q == nil {
		q, err = t.beginLocked(time.Now())
	}
	t.mu.Unlock()
	if err != nil {
		return "", err
	}
	select {
	case <-q.done:
		return q.token, q.err
	case <-ctx.Done():
		return "", fmt.Errorf("the token of user %q has not come yet: %w", t.user, ctx.Err())
	}
}

// beginLocked begins a question.
func (t *tokens) beginLocked(now time.Time) (*question, error) {
	word, err := t.password()
	if err != nil {
		return nil, err
	}
	if wait := t.notBefore.Sub(now); wait > 0 && word == t.refused {
		return nil, t.last
	}
	q := &question{done: make(chan struct{})}
	t.question = q
	go func() {
		ctx, cancel := context.WithTimeout(t.ctx, askTime)
		defer cancel()
		token, err := t.ask(ctx, t.user, word)
		t.end(q, word, token, err)
	}()
	return q, nil
}

// end takes the answer to a question.
func (t *tokens) end(q *question, word, token string, err error) {
	if errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled) {
		token, err = "", nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	q.token, q.err = token, err
	t.question = nil
	close(q.done)
	now := time.Now()
	switch {
	case err == nil:
		t.token, t.known, t.since = token, true, now
		close(t.came)
		t.came = make(chan struct{})
	case answered(err):
		t.failedLocked(now, word, err)
	}
}

// answered reports whether an error is etcd's own. Without a word from it the next question
// waits for a connection, and needs no pause.
func answered(err error) bool {
	if _, own := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err)); own {
		return true
	}
	code := status.Code(err)
	return !errors.Is(err, context.DeadlineExceeded) && code != codes.Unavailable && code != codes.DeadlineExceeded
}

func (t *tokens) failedLocked(now time.Time, word string, err error) {
	t.fails++
	t.notBefore, t.refused, t.last = now.Add(t.jitter(pauseAfter(t.fails, askPause, longestPause))), word, err
}

// spent says that etcd has refused a token.
func (t *tokens) spent(token string, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known || t.token != token {
		return // another call has said so before
	}
	t.known = false
	now := time.Now()
	if now.Sub(t.since) >= soonSpent {
		t.fails, t.notBefore = 0, time.Time{}
		return
	}
	if word, err := t.password(); err == nil {
		t.failedLocked(now, word, why)
	}
}

// news returns a channel that is closed when a token has come.
func (t *tokens) news() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.came
}

// refuses reports whether a call has failed for its token.
func refuses(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// unsigned is the key of contexts whose calls go without a token.
type unsigned struct{}

// with returns the context of a call with the token.
func with(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

// sign puts the token into calls, and asks for another one if it is refused.
func (t *tokens) sign(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if ctx.Value(unsigned{}) != nil {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	for again := true; ; again = false {
		token, err := t.get(ctx)
		if err != nil {
			return err
		}
		err = invoke(with(ctx, token), method, req, reply, cc, opts...)
		if !refuses(err) {
			return err
		}
		t.spent(token, err)
		if !again {
			return err
		}
	}
}

// signStream puts the token into streams. One whose token is refused ends; the next has
// another one.
func (t *tokens) signStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	token, err := t.get(ctx)
	if err != nil {
		return nil, err
	}
	s, err := open(with(ctx, token), desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &signed{s, t, token}, nil
}

// signed is a stream with a token.
type signed struct {
	grpc.ClientStream
	tokens *tokens
	token  string
}

// RecvMsg implements grpc.ClientStream.
func (s *signed) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if refuses(err) {
		s.tokens.spent(s.token, err)
	}
	return err
}

// known is the part Auth of a client that has tokens, by which they are found.
type known struct {
	clientv3.Auth
	tokens *tokens
}

// tokensOf returns the tokens of a client; nil: it has no user, or is not Dial's.
func tokensOf(client *clientv3.Client) *tokens {
	if k, ok := client.Auth.(known); ok {
		return k.tokens
	}
	return nil
}
