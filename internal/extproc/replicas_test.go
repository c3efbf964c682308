package extproc

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAReplicaThatDoesNotAnswerIsToldOfOnce: once when it has missed two questions in a row, and
// once when it answers again, or has had no part in anything for so long that it may be gone.
func TestAReplicaThatDoesNotAnswerIsToldOfOnce(t *testing.T) {
	var log bytes.Buffer
	srv := &Server{peers: newPeers("", "", slog.New(slog.NewTextHandler(&log, nil)), nil, func() {})}
	p := srv.peers
	defer p.close()
	began := time.Now()
	p.meet("other@a:1")
	p.meet("other@b:1")
	p.meet("a process without an address")
	require.Len(t, p.known(began), 2)

	p.heard("a:1", false, began)
	p.heard("b:1", true, began)
	require.Empty(t, srv.SilentReplicas(), "one question proves nothing")
	for range 3 {
		p.heard("a:1", false, began.Add(time.Second))
	}
	require.Equal(t, []SilentReplica{{"a:1", began}}, srv.SilentReplicas())
	require.Equal(t, 1, strings.Count(log.String(), "does not answer: "))
	p.heard("a:1", true, began)
	require.Empty(t, srv.SilentReplicas())
	require.Equal(t, 1, strings.Count(log.String(), "answers again"))

	for range 2 {
		p.heard("b:1", false, began)
	}
	require.Len(t, srv.SilentReplicas(), 1)
	for range 2 {
		require.Empty(t, p.known(began.Add(replicaKept+time.Minute)))
	}
	require.Empty(t, srv.SilentReplicas())
	require.Equal(t, 1, strings.Count(log.String(), "asked no more"))
	p.heard("c:1", false, began)
}
