package extproc

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry"
)

// following is a context that counts the goroutines that wait for its end.
type following struct {
	context.Context //nolint:containedctx // it is one
	done            chan struct{}
	now             atomic.Int64
}

func (f *following) Done() <-chan struct{} { return f.done }
func (f *following) Value(any) any         { return nil }

func (f *following) AfterFunc(func()) (stop func() bool) {
	f.now.Add(1)
	return func() bool { f.now.Add(-1); return true }
}

func TestALegThatHasEndedLeavesNothingWithTheServer(t *testing.T) {
	legs := &following{Context: context.Background(), done: make(chan struct{})}
	client, err := newLegClient("unix:///nowhere/prefill.sock", 0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	srv := &Server{bodies: budget.New(0), legs: legs, legClient: client, cfg: Config{Telemetry: new(telemetry.Instruments)}}
	s := &mainStream{stream: stream{srv: srv}}
	answers := make(chan *leg.OwnAnswer, 1)
	s.act.handle = func(ev *notice) { answers <- ev.Answer }
	s.askPrefill(&leg.Effect{Wait: time.Minute}, false)
	require.Error(t, (<-answers).Err)
	srv.senders.close()
	require.Zero(t, legs.now.Load())
}

// TestALegThatIsNotSentForAClientThatHasLeftIsNoFailureOfTheLeg: its stream's reader may say later that it has.
func TestALegThatIsNotSentForAClientThatHasLeftIsNoFailureOfTheLeg(t *testing.T) {
	s := &mainStream{stream: stream{srv: &Server{bodies: budget.New(0), legs: context.Background(), cfg: Config{Telemetry: new(telemetry.Instruments)}}}}
	var said []leg.EventKind
	s.act.handle = func(ev *notice) { said = append(said, ev.Kind) }
	s.askPrefill(&leg.Effect{Wait: time.Minute}, true)
	require.Equal(t, []leg.EventKind{leg.EventClosed, leg.EventPrefilled}, said)
}

func TestALegsBodyIsSpentOnceItWasReadAndTheAnswerToo(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 32<<20) // more bytes than the buffers of sockets hold
	var sent chan struct{}
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		spent  bool
	}{
		"read, answered": {func(w http.ResponseWriter, r *http.Request) {
			got, _ := io.ReadAll(r.Body)
			if bytes.Equal(got, body) {
				_, _ = io.WriteString(w, "{}")
			}
		}, true},
		"answered before it was read": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "2")
			_, _ = io.WriteString(w, "{}")
			_ = http.NewResponseController(w).Flush()
			<-sent
		}, false},
		"read, and the answer breaks off": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "{}")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.ContentLength != int64(len(body)) {
					w.WriteHeader(http.StatusLengthRequired)
				}
				c.answer(w, r)
			}))
			defer srv.Close()
			sent = make(chan struct{})
			defer close(sent)
			client, err := newLegClient(srv.URL, 0, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			defer client.close()
			a := client.send(t.Context(), "/v1/completions", nil, newLegBody(body, nil), legAnswerLimit)
			require.Equal(t, c.spent, a.Spent)
			if c.spent {
				require.Equal(t, http.StatusOK, a.Status)
				require.Equal(t, "{}", string(a.Body))
			}
		})
	}
}

func TestALegsBodyThatIsSentAnewIsNeverSpent(t *testing.T) {
	began := 0
	b := newLegBody([]byte("body"), func() { began++ })
	_, err := io.ReadAll(b)
	require.NoError(t, err)
	require.True(t, b.spent())
	again, err := b.reread()
	require.NoError(t, err)
	text, err := io.ReadAll(again)
	require.NoError(t, err)
	require.Equal(t, "body", string(text))
	require.False(t, b.spent())
	require.Equal(t, 1, began, "a leg begins once")

	b = newLegBody([]byte("body"), func() { began++ }) // of which the first connection has read nothing
	again, err = b.reread()
	require.NoError(t, err)
	_, err = io.ReadAll(again)
	require.NoError(t, err)
	require.Equal(t, 2, began)
	require.True(t, b.begun.Load())
}
