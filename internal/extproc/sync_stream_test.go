package extproc

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// following is a context that counts who waits for its end.
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
	client, err := newLegClient("unix:///nowhere/prefill.sock")
	require.NoError(t, err)
	srv := &Server{legs: legs, legClient: client}
	s := &mainStream{wire: wire{srv: srv}}
	answers := make(chan *legAnswer, 1)
	s.act.handle = func(ev *event) { answers <- ev.answer }
	s.askPrefill(&effect{wait: time.Minute})
	require.Error(t, (<-answers).err)
	srv.senders.Wait()
	require.Zero(t, legs.now.Load())
}
