package extproc

import (
	"context"
	"io"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"

	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// left sends a request whose stream the plugin leaves once the answer has begun, and returns
// the number of its attempt.
func (r *replica) left() string {
	r.t.Helper()
	p := r.open(filterMain)
	r.t.Cleanup(p.cancel)
	require.NoError(r.t, p.s.Send(&extprocv3.ProcessingRequest{
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED},
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: wiretest.HeaderMap(":method", "POST", ":path", "/v1/completions"),
		}},
	}))
	p.requestBody(someBody)
	set := setHeaders(p.recv().GetRequestHeaders().GetResponse().GetHeaderMutation())
	require.NotNil(r.t, p.recv().GetRequestBody())
	p.responseHeaders("200")
	require.NotNil(r.t, p.recv().GetResponseHeaders())
	_, err := p.s.Recv()
	require.ErrorIs(r.t, err, io.EOF)
	return set[prefill.HeaderAttempt]
}

// logStream is one stream of Envoy's access log.
type logStream struct {
	t      *testing.T
	s      accesslogv3.AccessLogService_StreamAccessLogsClient
	cancel context.CancelFunc
}

func (r *replica) logStream() *logStream {
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	s, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(ctx)
	require.NoError(r.t, err)
	return &logStream{r.t, s, cancel}
}

// tell sends an entry about each attempt, and waits until the plugin has read it.
func (l *logStream) tell(of datav3.AccessLogType, attempts ...string) {
	l.t.Helper()
	entries := make([]*datav3.HTTPAccessLogEntry, len(attempts))
	for i, a := range attempts {
		entries[i] = wiretest.Entry(of, a)
	}
	require.NoError(l.t, l.s.Send(wiretest.Logs(entries...)))
	synctest.Wait()
}

const (
	runs = datav3.AccessLogType_DownstreamPeriodic
	ends = datav3.AccessLogType_DownstreamEnd
)

// docs/behaviour.md#lost-ends: of two answers whose streams the plugin has left, the end of
// one is lost with a stream of the access log. The other one still runs.
func TestAnEndThatIsLostWithTheLogEndsItsBooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := aloneOn(t)
		lost, running := r.left(), r.left()
		first := r.logStream()
		first.tell(runs, lost, running)
		require.Equal(t, 2, r.srv.Attempts())
		first.cancel()
		second := r.logStream()
		for range 4 {
			<-time.After(5 * time.Second)
			second.tell(runs, running)
		}
		require.Nil(t, r.attempt(lost))
		require.NotNil(t, r.attempt(running), "somebody tells of it")
		require.Equal(t, 1, r.book.Totals().Held)
		second.tell(ends, running)
		r.requireIdle()
	})
}

// A log that is not heard to tell which answers run, or one that Envoy ends in order, says
// nothing of answers that it does not mention.
func TestALogThatTellsNothingOfRunningAnswersEndsNoBooking(t *testing.T) {
	for name, end := range map[string]func(l *logStream, attempt string){
		"it never told":     func(l *logStream, _ string) { l.cancel() },
		"it ended in order": func(l *logStream, a string) { l.tell(runs, a); require.NoError(l.t, l.s.CloseSend()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := aloneOn(t)
				a := r.left()
				l := r.logStream()
				l.tell(runs)
				end(l, a)
				<-time.After(time.Minute)
				synctest.Wait()
				require.NotNil(t, r.attempt(a))
				r.logStream().tell(ends, a)
				r.requireIdle()
			})
		})
	}
}

// aloneOn is a replica, the only one, with a worker that serves alone.
func aloneOn(t *testing.T) *replica {
	w := routetest.Workers()[0]
	w.Role, w.Bootstrap = worker.Aggregated, worker.Bootstrap{}
	return newReplicaOn(t, bufconn.Listen(pipeSize), "a", fixed{w}, func(c *Config) { c.Advertise = "" })
}

// attempt finds an attempt by its number as the access log has it.
func (r *replica) attempt(number string) *mainStream {
	nonce, err := strconv.ParseUint(number, 10, 64)
	require.NoError(r.t, err)
	return r.srv.attempts.find(nonce)
}
