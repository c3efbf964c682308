package sglang

import (
	"encoding/json"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// A prefill process that is stopped and continued keeps its connections. It must not wait
// on for decode halves that have given up.
func TestADecodeThatGivesUpOnAStoppedPrefillTakesItsAskBack(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	w := &waiter{ask: linkMessage{Type: msgAsk, Room: 7, Call: 3}, done: make(chan linkMessage, 1)}
	out := core.NewOutbox()
	l := &link{all: &links{}, conn: here, out: &out, waiting: map[uint64]*waiter{3: w}}
	l.fail()
	require.Equal(t, msgFailed, (<-w.done).Type)
	require.Empty(t, l.waiting)
	require.Len(t, out.Queue, 1)
	var m linkMessage
	require.NoError(t, json.Unmarshal(out.Queue[0], &m))
	require.Equal(t, linkMessage{Type: msgCancel, Room: 7, Call: 3}, m)
}
