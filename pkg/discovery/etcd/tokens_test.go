package etcd

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// asked is an etcd that gives tokens, and when it was asked for each.
type asked struct {
	takes time.Duration
	err   error
	at    []time.Duration
	words []string
}

// tokensFrom has no jitter: each pause is as long as it may be.
func tokensFrom(t *testing.T, e *asked, word *string) *tokens {
	begun := time.Now()
	return &tokens{
		user: "user", password: func() (string, error) { return *word, nil }, ctx: t.Context(), came: make(chan struct{}),
		jitter: func(d time.Duration) time.Duration { return d },
		ask: func(ctx context.Context, _, password string) (string, error) {
			e.at, e.words = append(e.at, time.Since(begun)), append(e.words, password)
			n := len(e.at)
			select {
			case <-time.After(e.takes):
			case <-ctx.Done():
				return "", status.FromContextError(ctx.Err()).Err()
			}
			return string(rune('A' + n - 1)), e.err
		},
	}
}

// within gets the token in the time of one call.
func within(t *testing.T, tk *tokens, d time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return tk.get(ctx)
}

// A slow etcd is asked once, however many calls want the token and give up meanwhile, and
// its answer is kept.
func TestAnAnswerThatComesLateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, word := &asked{takes: 40 * time.Second}, "word"
		tk := tokensFrom(t, e, &word)
		news := tk.news()
		for range 10 {
			_, err := within(t, tk, 2*time.Second)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, `the token of user "user" has not come yet`)
		}
		for range 5 {
			go func() { _, _ = within(t, tk, time.Minute) }()
		}
		<-news
		token, err := within(t, tk, time.Nanosecond)
		require.NoError(t, err)
		require.Equal(t, "A", token)
		require.Equal(t, []time.Duration{0}, e.at)
	})
}

// The pauses after a refusal grow to half a minute. Another password is tried at once.
func TestQuestionsThatFailBecomeRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, word := &asked{err: rpctypes.ErrGRPCTimeout}, "wrong"
		tk := tokensFrom(t, e, &word)
		for range 1500 { // of a tenth of a second
			_, err := within(t, tk, time.Second)
			require.ErrorIs(t, rpctypes.Error(err), rpctypes.ErrTimeout)
			<-time.After(100 * time.Millisecond)
		}
		var seconds []float64
		for _, at := range e.at {
			seconds = append(seconds, at.Seconds())
		}
		require.Equal(t, []float64{0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5, 121.5}, seconds)
		e.err, word = nil, "right"
		token, err := within(t, tk, time.Second)
		require.NoError(t, err)
		require.Equal(t, "K", token)
		require.Equal(t, "right", e.words[10])
	})
}

// A token that is refused is asked for anew, once for all that had it; not at once if it
// has just come.
func TestASpentTokenIsAskedForAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, word := &asked{}, "word"
		tk := tokensFrom(t, e, &word)
		get := func() string {
			token, err := within(t, tk, time.Second)
			require.NoError(t, err)
			return token
		}
		require.Equal(t, "A", get())
		<-time.After(time.Hour)
		for range 3 {
			tk.spent("A", rpctypes.ErrInvalidAuthToken)
		}
		require.Equal(t, "B", get())
		tk.spent("A", rpctypes.ErrInvalidAuthToken)
		require.Equal(t, "B", get(), "an older one's end says nothing of this one")
		tk.spent("B", rpctypes.ErrInvalidAuthToken)
		_, err := within(t, tk, time.Second)
		require.ErrorIs(t, err, rpctypes.ErrInvalidAuthToken)
		<-time.After(askPause)
		require.Equal(t, "C", get())
		require.Len(t, e.at, 3)
	})
}

// A broken connection is no refusal; an etcd without users needs no token.
func TestWhatIsNoRefusalIsAskedAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, word := &asked{err: status.Error(codes.Unavailable, "gone")}, "word"
		tk := tokensFrom(t, e, &word)
		for range 3 {
			_, err := within(t, tk, time.Second)
			require.ErrorContains(t, err, "gone")
		}
		require.Len(t, e.at, 3)
		e.err, e.takes = context.DeadlineExceeded, askTime+time.Second
		for range 6 {
			_, err := within(t, tk, 2*askTime)
			require.Error(t, err)
		}
		require.Equal(t, 5*askTime, e.at[8]-e.at[3], "one after the other")
		e.takes = 0
		e.err = rpctypes.ErrGRPCAuthNotEnabled
		token, err := within(t, tk, time.Second)
		require.NoError(t, err)
		require.Empty(t, token)
		tk.password = func() (string, error) { return "", errors.New("no file") }
		<-time.After(time.Minute)
		tk.spent("", rpctypes.ErrUserEmpty)
		_, err = within(t, tk, time.Second)
		require.EqualError(t, err, "no file")
	})
}

// old is an etcd 3.4 with users: it reads the token of every call, also of one that asks
// for a token.
type old struct {
	pb.UnimplementedAuthServer
	pb.UnimplementedKVServer
	asked atomic.Int64
}

func (o *old) Authenticate(ctx context.Context, r *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md[rpctypes.TokenFieldNameGRPC]) > 0 {
		return nil, rpctypes.ErrGRPCInvalidAuthToken
	}
	if r.Name != "user" || r.Password != "word" {
		return nil, rpctypes.ErrGRPCAuthFailed
	}
	return &pb.AuthenticateResponse{Token: strconv.FormatInt(o.asked.Add(1), 10)}, nil
}

func (o *old) Range(ctx context.Context, _ *pb.RangeRequest) (*pb.RangeResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	switch token := md[rpctypes.TokenFieldNameGRPC]; {
	case len(token) == 0:
		return nil, rpctypes.ErrGRPCUserEmpty
	case len(token) > 1 || token[0] != strconv.FormatInt(o.asked.Load(), 10):
		return nil, rpctypes.ErrGRPCInvalidAuthToken
	}
	return &pb.RangeResponse{Header: new(pb.ResponseHeader)}, nil
}

func TestAnEtcdThatReadsTheTokenOfEveryCallServesUsers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var o old
	s := grpc.NewServer()
	pb.RegisterAuthServer(s, &o)
	pb.RegisterKVServer(s, &o)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	c, err := Dial(ClientConfig{Endpoints: []string{l.Addr().String()}, Username: "user", Password: "word"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	for range 3 {
		_, err = c.Get(t.Context(), "key")
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, o.asked.Load())
	tokensOf(c).mu.Lock()
	tokensOf(c).since = time.Time{}
	tokensOf(c).mu.Unlock()
	o.asked.Add(1) // it has forgotten the token
	_, err = c.Get(t.Context(), "key")
	require.NoError(t, err)
	require.EqualValues(t, 3, o.asked.Load())
}
