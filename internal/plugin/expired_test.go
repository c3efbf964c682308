package plugin

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAWorkerWhoseRecordExpiredIsAskedForItsModels: any answer shows that it is there, a
// refusal that it is not, and silence counts double only when its health has seen it, too.
func TestAWorkerWhoseRecordExpiredIsAskedForItsModels(t *testing.T) {
	x := newTold(t)
	var answer http.HandlerFunc
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer engine.Close()
	at := func(url string) *worker.Worker {
		return testWorker(t, 7, worker.Decode, url[strings.LastIndexByte(url, ':')+1:])
	}
	for body, models := range map[string][]string{
		`{"data":[{"id":"m"},{"id":"n"}]}`: {"m", "n"}, `{"data":[]}`: nil, "no list": nil,
	} {
		answer = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				_, _ = w.Write([]byte(body))
			}
		}
		require.Equal(t, discovery.Answer{Kind: discovery.Heard, Models: models}, x.expired.ask(t.Context(), at(engine.URL)))
	}
	answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }
	require.Equal(t, discovery.Heard, x.expired.ask(t.Context(), at(engine.URL)).Kind)

	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	require.Equal(t, discovery.Refused, x.expired.ask(t.Context(), at(free.Addr().String())).Kind)

	answer = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	mute := at(engine.URL)
	snap, err := worker.NewSnapshot(1, []*worker.Worker{mute})
	require.NoError(t, err)
	x.plugin.health.Update(snap, time.Now())
	hurried := func() discovery.AnswerKind {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return x.expired.ask(ctx, mute).Kind
	}
	require.Equal(t, discovery.Doubtful, hurried())
	h, _ := x.plugin.health.Lookup(worker.Rank{ID: 7})
	require.True(t, h.Suspected, "it is looked into")
	x.plugin.health.Report(worker.Rank{ID: 7}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.Equal(t, discovery.Silent, hurried())
}

func TestExpiredRecordsAreToldTogetherAndShown(t *testing.T) {
	x := newTold(t)
	one, two := testWorker(t, 1, worker.Decode, "1001"), testWorker(t, 2, worker.Decode, "1002")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	x.expired.told([]discovery.Expired{{Worker: one, Since: at, Stale: true}, {Worker: two, Since: at, Stale: true}})
	require.Contains(t, x.log.String(), `msg="records of workers: stale" workers=2 expired="1 (decode 127.0.0.1:1001), 2 (decode 127.0.0.1:1002)" from=registered since=2026-01-02T03:04:05.000Z why="half or more`)
	x.expired.told([]discovery.Expired{
		{Worker: one, Since: at, Stale: true, Over: "registered again", Back: true}, {Worker: two, Since: at, Stale: true, Over: "it refuses connections"},
	})
	require.Contains(t, x.log.String(), `msg="records of workers: registered" workers=1 expired="1 (decode 127.0.0.1:1001)" from=stale since=2026-01-02T03:04:05.000Z why="registered again"`)
	require.Contains(t, x.log.String(), `msg="records of workers: left" workers=1 expired="2 (decode 127.0.0.1:1002)" from=stale since=2026-01-02T03:04:05.000Z why="it refuses connections"`)
	require.Len(t, x.plugin.history.list(), 3)
}
