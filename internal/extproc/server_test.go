package extproc

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/extproctest"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fixed is a discovery source that lists its workers once and never changes.
type fixed []*worker.Worker

func (f fixed) Run(ctx context.Context, sink discovery.Sink) error {
	l := discovery.List{Revision: 1}
	for _, w := range f {
		l.Entries = append(l.Entries, discovery.Entry{Key: w.ID.String(), Worker: w, Revision: 1, Version: 1})
	}
	if err := sink.Send(discovery.Begin{}); err != nil {
		return err
	}
	if err := sink.Send(l); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// swapping is a discovery source that again and again replaces all workers at once by others
// at the same addresses.
type swapping struct {
	stop chan struct{}
	// decided has a message after a decision: so a decision meets few worlds, on however
	// busy a machine.
	decided chan struct{}
}

func (s swapping) Run(ctx context.Context, sink discovery.Sink) error {
	for revision := uint64(1); ; revision++ {
		l := discovery.List{Revision: revision}
		for _, w := range routetest.Workers() {
			w.ID += worker.ID(revision * 10)
			l.Entries = append(l.Entries, discovery.Entry{Key: w.ID.String(), Worker: w, Revision: revision, Version: 1})
		}
		if err := sink.Send(l); err != nil {
			return err
		}
		select {
		case <-s.stop:
			<-ctx.Done()
			return ctx.Err()
		case <-ctx.Done():
			return ctx.Err()
		case <-s.decided:
		}
	}
}

// Defaults are the settings of a plugin without a configuration file.
var Defaults Config

// replica is what one process of the plugin has, within the process of the test.
type replica struct {
	t    *testing.T
	srv  *Server
	book *load.Book
	addr string
	conn *grpc.ClientConn
}

func newReplica(t *testing.T, name string, change func(*Config)) *replica {
	t.Helper()
	return newReplicaOf(t, name, fixed(routetest.Workers()), change)
}

func newReplicaOf(t *testing.T, name string, source discovery.Source, change func(*Config)) *replica {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return newReplicaOn(t, l, name, source, change)
}

// newReplicaOn starts a replica that is reached through l. If l is no socket, other processes
// cannot reach the replica.
func newReplicaOn(t *testing.T, l net.Listener, name string, source discovery.Source, change func(*Config)) *replica {
	t.Helper()
	p := extproctest.NewParts(source)
	r := &replica{t: t, book: p.Book, addr: l.Addr().String()}
	cfg := Defaults
	cfg.View, cfg.Board, cfg.Index, cfg.Routes, cfg.Slots, cfg.Tokens = p.View, p.Board, p.Index, p.Routes, p.Slots, p.Tokens
	cfg.Book, cfg.Health, cfg.Journal, cfg.Telemetry, cfg.Tracer = p.Book, p.Health, p.Journal, p.Telemetry.Instruments, p.Telemetry.Tracer
	cfg.Prefill, cfg.Decode, cfg.Aggregated = picker.DefaultParams(), picker.DefaultParams(), picker.DefaultParams()
	cfg.LegKey, cfg.Instance, cfg.Advertise = []byte("a key that all of them share"), name, r.addr
	cfg.OrphanGrace, cfg.StartTimeout = 50*time.Millisecond, time.Minute // a leg that a test does not play is ended by forgetLegs
	if change != nil {
		change(&cfg)
	}
	var err error
	r.srv, err = New(cfg)
	require.NoError(t, err)
	end := p.Serve(r.srv, l)
	r.conn = dial(t, l)
	t.Cleanup(func() {
		require.NoError(t, r.conn.Close())
		end()
	})
	return r
}

// dial returns a client of the server that listens at l.
func dial(t *testing.T, l net.Listener, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if inside, ok := l.(*bufconn.Listener); ok {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return inside.DialContext(ctx) }))
	}
	conn, err := grpc.NewClient("passthrough:"+l.Addr().String(), opts...)
	require.NoError(t, err)
	return conn
}

// proxy plays Envoy on one stream.
type proxy struct {
	t      *testing.T
	s      extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

func (r *replica) open(filter string) *proxy {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), filterKey, filter), 30*time.Second)
	s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	require.NoError(r.t, err)
	return &proxy{r.t, s, cancel}
}

func (p *proxy) requestHeaders(pairs ...string) {
	require.NoError(p.t, p.s.Send(wiretest.Post("/v1/completions", pairs...)))
}

func (p *proxy) requestBody(body string) {
	require.NoError(p.t, p.s.Send(wiretest.RequestBody(body)))
}

func (p *proxy) responseHeaders(status string, more ...string) {
	require.NoError(p.t, p.s.Send(wiretest.ResponseHeaders(status, more...)))
}

func (p *proxy) responseBody(body string) {
	require.NoError(p.t, p.s.Send(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: true}},
	}))
}

func (p *proxy) recv() *extprocv3.ProcessingResponse {
	p.t.Helper()
	m, err := p.s.Recv()
	require.NoError(p.t, err)
	return m
}

// route sends a whole request and returns the headers that were set on it.
func (p *proxy) route(body string) map[string]string {
	p.t.Helper()
	p.requestHeaders()
	require.NotNil(p.t, p.recv().GetRequestHeaders())
	p.requestBody(body)
	m := p.recv()
	require.NotNil(p.t, m.GetRequestBody(), "%v", m)
	return setHeaders(m.GetRequestBody().GetResponse().GetHeaderMutation())
}

func setHeaders(m *extprocv3.HeaderMutation) map[string]string { return wiretest.SetHeaders(m) }

func (r *replica) requireIdle() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		t := r.book.Totals()
		return t.Held == 0 && t.DoubleReleases == 0 && r.srv.Attempts() == 0 && r.srv.bodies.Used() == 0
	}, 20*time.Second, 5*time.Millisecond, "nothing is booked, no attempt is open and no body is in flight")
}

// forgetLegs ends the attempts that wait for legs which the test does not play.
func (r *replica) forgetLegs() {
	r.srv.OnChange(nil, discovery.Change{Left: []worker.ID{1, 2, 3, 4}})
}

// accessLog plays Envoy's access log of answers that have ended, for which attempts wait.
func (r *replica) accessLog() {
	for _, s := range r.srv.attempts.all() {
		s.post(just(leg.Event{Kind: leg.EventLogged, Seen: blame.Served, Reached: true}))
	}
}

const someBody = `{"model":"m","prompt":"hello there, how are you","max_tokens":4}`

// TestALegAtAnotherReplicaReportsToItsOwner is docs/behaviour.md#one-decision: the
// decision travels with the request, and any replica can serve the prefill leg.
func TestALegAtAnotherReplicaReportsToItsOwner(t *testing.T) {
	owner, other := newReplica(t, "owner", nil), newReplica(t, "other", nil)
	main := owner.open(filterMain)
	defer main.cancel()
	set := main.route(someBody)
	leg := other.open(filterPrefill)
	defer leg.cancel()
	legSet := func() map[string]string {
		leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
		require.NotNil(t, leg.recv().GetRequestHeaders())
		leg.requestBody(someBody)
		m := leg.recv().GetRequestBody().GetResponse()
		require.JSONEq(t, `{"model":"m","prompt":"hello there, how are you","max_tokens":1,"stream":false}`, string(m.GetBodyMutation().GetBody()))
		return setHeaders(m.GetHeaderMutation())
	}()
	require.True(t, strings.HasPrefix(legSet[prefill.HeaderPrefillEndpoint], "127.0.0.1:4000"))
	require.Equal(t, legSet[prefill.HeaderPrefillEndpoint], set[prefill.HeaderPrefillEndpoint], "a leg that finds no plugin goes there, too")
	// Decode answers early: its headers are held until the other replica says
	// that prefill is well.
	main.responseHeaders("200")
	leg.responseHeaders("200")
	require.NotNil(t, leg.recv().GetResponseHeaders())
	leg.responseBody(`{"choices":[{"finish_reason":"length"}]}`)
	require.NotNil(t, leg.recv().GetResponseBody())
	require.NotNil(t, main.recv().GetResponseHeaders(), "relayed once prefill is well")
	leg.cancel()
	main.cancel()
	owner.accessLog()
	owner.requireIdle()
	require.Zero(t, other.book.Totals().Held, "the other has booked nothing")
}

// TestALegAtAnotherReplicaEndsIfItsAttemptIsOver: Envoy was late to reach the other replica,
// and the owner has given the attempt up meanwhile. The half that the worker has begun would
// wait for a decode that never comes.
func TestALegAtAnotherReplicaEndsIfItsAttemptIsOver(t *testing.T) {
	owner, other := newReplica(t, "owner", nil), newReplica(t, "other", nil)
	main := owner.open(filterMain)
	set := main.route(someBody)
	main.cancel()
	owner.forgetLegs()
	owner.requireIdle()
	leg := other.open(filterPrefill)
	defer leg.cancel()
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	require.NotNil(t, leg.recv().GetRequestHeaders(), "this replica knows nothing of the attempt")
	leg.requestBody(someBody)
	m := leg.recv()
	if m.GetRequestBody() != nil {
		m = leg.recv()
	}
	require.NotNil(t, m.GetImmediateResponse(), "%v", m)
}

func TestAFailureAtAnotherReplicaEndsDecode(t *testing.T) {
	owner, other := newReplica(t, "owner", nil), newReplica(t, "other", nil)
	main := owner.open(filterMain)
	defer main.cancel()
	set := main.route(someBody)
	leg := other.open(filterPrefill)
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	leg.recv()
	leg.requestBody(someBody)
	leg.recv()
	leg.cancel() // Envoy resets the leg: the worker has died
	im := main.recv().GetImmediateResponse()
	require.EqualValues(t, 503, im.GetStatus().GetCode())
	require.Equal(t, "1", setHeaders(im.GetHeaders())[prefill.HeaderRetry])
	main.cancel()
	owner.requireIdle()
}

// A redirect of a prefill worker reaches the client from another replica, too, with the place.
func TestARedirectAtAnotherReplicaIsTheClients(t *testing.T) {
	owner, other := newReplica(t, "owner", nil), newReplica(t, "other", nil)
	main := owner.open(filterMain)
	set := main.route(someBody)
	leg := other.open(filterPrefill)
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	leg.recv()
	leg.requestBody(someBody)
	leg.recv()
	leg.responseHeaders("307", "location", "https://elsewhere.example/v1")
	leg.recv()
	leg.responseBody("moved")
	leg.recv()
	im := main.recv().GetImmediateResponse()
	require.EqualValues(t, 307, im.GetStatus().GetCode())
	require.Equal(t, "https://elsewhere.example/v1", setHeaders(im.GetHeaders())["location"])
	leg.cancel()
	main.cancel()
	owner.requireIdle()
}

// TestALegOfAnEndedProcessRunsOnItsOwn: the leg has no owner to report to, and the decode
// worker still gets its KV after the plugin has died.
func TestALegOfAnEndedProcessRunsOnItsOwn(t *testing.T) {
	gone := newReplica(t, "gone", func(c *Config) { c.Advertise = "" })
	main := gone.open(filterMain)
	defer main.cancel()
	set := main.route(someBody)
	next := newReplica(t, "next", nil)
	leg := next.open(filterPrefill)
	defer leg.cancel()
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	require.NotNil(t, leg.recv().GetRequestHeaders(), "it is served")
}

func TestALegIsServedOnceAndOnlyWhileItsAttemptLives(t *testing.T) {
	r := newReplica(t, "a", nil)
	main := r.open(filterMain)
	set := main.route(someBody)
	open := func() *extprocv3.ProcessingResponse {
		leg := r.open(filterPrefill)
		t.Cleanup(leg.cancel)
		leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
		return leg.recv()
	}
	first := r.open(filterPrefill)
	first.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	require.NotNil(t, first.recv().GetRequestHeaders())
	require.EqualValues(t, 410, open().GetImmediateResponse().GetStatus().GetCode(), "the token is used up")
	first.cancel()
	require.NotNil(t, main.recv().GetImmediateResponse())
	main.cancel()
	r.requireIdle()
	require.EqualValues(t, 410, open().GetImmediateResponse().GetStatus().GetCode(), "the attempt is over")
	stranger := newReplica(t, "a", func(c *Config) { c.LegKey = []byte("another key altogether") })
	leg := stranger.open(filterPrefill)
	defer leg.cancel()
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	require.EqualValues(t, 403, leg.recv().GetImmediateResponse().GetStatus().GetCode(), "sealed with another key")
}

// panicky is an index that panics on demand.
type panicky struct{ kvindex.Index }

func (panicky) Overlap([]kvindex.LocalHash, *kvindex.Overlap) { panic("the index is broken") }

// TestAPanicEndsItsOwnStreamOnly: the client gets a 500, another stream gets its answer, and
// nothing stays booked.
func TestAPanicEndsItsOwnStreamOnly(t *testing.T) {
	t.Parallel()
	r := newReplica(t, "a", func(c *Config) { c.Index = panicky{c.Index} })
	well := r.open(filterMain)
	defer well.cancel()
	well.route(someBody) // the tokens are estimated, so this index is not asked
	bad := r.open(filterMain)
	defer bad.cancel()
	bad.requestHeaders()
	bad.recv()
	bad.requestBody(`{"model":"m","prompt":[1,2,3,4,5,6,7,8],"max_tokens":4}`)
	require.EqualValues(t, 500, bad.recv().GetImmediateResponse().GetStatus().GetCode())
	well.responseHeaders("200")
	require.NotNil(t, well.recv().GetOverrideMessageTimeout(), "the other stream goes on: its head waits for prefill")
	well.cancel()
	bad.cancel()
	r.forgetLegs()
	r.requireIdle()
}

// TestExplainingLeavesNoTrace: only routed prompts are noted.
func TestExplainingLeavesNoTrace(t *testing.T) {
	long := `{"model":"m","prompt":"` + strings.Repeat("a long prompt ", 40) + `","max_tokens":4}`
	for _, aggregated := range []bool{false, true} {
		var index kvindex.Index
		r := newReplica(t, "a", func(c *Config) {
			index = c.Index
			if aggregated {
				c.Board = aggregatedBoard(t)
			}
		})
		remembered := func() (n int) {
			for id := worker.ID(1); id <= 4; id++ {
				st, _ := index.Stats(worker.Rank{ID: id})
				n += st.Routed
			}
			return n
		}
		if aggregated {
			r.book.Update(r.srv.view.Load())
		}
		_, err := r.srv.Explain(t.Context(), "/v1/completions", []byte(long))
		require.NoError(t, err)
		require.Zero(t, remembered())
		require.Zero(t, r.book.Totals().Held)
		main := r.open(filterMain)
		main.route(long)
		require.Positive(t, remembered())
		main.cancel()
		r.forgetLegs()
		r.requireIdle()
	}
}

// TestAWorkerWhoseEventsArriveIsJudgedByThem, although it names no address for them. Prompts
// that are routed to it need not be noted.
func TestAWorkerWhoseEventsArriveIsJudgedByThem(t *testing.T) {
	long := `{"model":"m","prompt":[1` + strings.Repeat(",7", 300) + `],"max_tokens":4}`
	for name, tells := range map[string]func(worker.Rank) bool{
		"nobody tells": nil,
		"not yet":      func(worker.Rank) bool { return false },
		"events come":  func(worker.Rank) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			var index kvindex.Index
			silent := routetest.Workers()
			for _, w := range silent {
				w.KVEvents = worker.KVEvents{}
			}
			r := newReplicaOf(t, "a", fixed(silent), func(c *Config) { index, c.Tells, c.Predicts = c.Index, tells, false })
			blocks := kvindex.AppendLocalHashes(nil, []uint32{1, 7, 7, 7, 7, 7, 7, 7}, 4, kvindex.Salt{}.Seed())
			for id := worker.ID(1); id <= 2; id++ {
				index.Attach(worker.Rank{ID: id})
				require.NoError(t, index.Store(worker.Rank{ID: id}, kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: blocks[0]}, {Engine: 2, Local: blocks[1]}}}))
			}
			require.Equal(t, name == "events come", r.explain(long).Prefill.OverlapBlocks == 2)
			main := r.open(filterMain)
			main.route(long)
			n := 0
			for id := worker.ID(1); id <= 4; id++ {
				st, _ := index.Stats(worker.Rank{ID: id})
				n += st.Routed
			}
			require.Equal(t, name != "events come", n > 0)
			main.cancel()
			r.forgetLegs()
			r.requireIdle()
		})
	}
}

// aggregatedBoard returns a board of decode workers that can serve without prefill.
func aggregatedBoard(t *testing.T) *activation.Board {
	workers := routetest.Workers()[2:]
	for _, w := range workers {
		w.AcceptsAggregated = true
	}
	return routetest.Board(time.Now(), workers)
}

func TestAStreamWithoutAKnownFilterIsRefused(t *testing.T) {
	r := newReplica(t, "a", nil)
	p := r.open("mian")
	defer p.cancel()
	_, err := p.s.Recv()
	require.ErrorContains(t, err, "InvalidArgument")
	require.ErrorContains(t, err, filterKey)
}

// TestManyStreamsAtOnceLeaveNothingBooked ends streams of both legs at all moments. Run it
// with -race.
func TestManyStreamsAtOnceLeaveNothingBooked(t *testing.T) {
	t.Parallel()
	r := newReplica(t, "a", func(c *Config) { c.StartTimeout = 20 * time.Millisecond })
	done := make(chan struct{})
	const clients, each = 16, 24
	for c := range clients {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range each {
				r.stumble((c + i) % 8)
			}
		}()
	}
	for range clients {
		<-done
	}
	r.requireIdle()
}

// stumble plays one request that ends at the given step.
func (r *replica) stumble(step int) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), filterKey, filterMain), 10*time.Second)
	defer cancel()
	s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	if err != nil {
		return
	}
	p := &proxy{r.t, s, cancel}
	if step == 0 {
		return
	}
	p.requestHeaders()
	if step == 1 {
		return
	}
	if _, err := s.Recv(); err != nil {
		return
	}
	p.requestBody(someBody)
	if step == 2 {
		return
	}
	m, err := s.Recv()
	if err != nil || step == 3 {
		return
	}
	set := setHeaders(m.GetRequestBody().GetResponse().GetHeaderMutation())
	leg := r.open(filterPrefill)
	defer leg.cancel()
	leg.requestHeaders(prefill.HeaderLeg, set[prefill.HeaderLeg])
	// After an answer of the plugin's own, for example to a late leg, Envoy ends the stream.
	over := func() bool { m, err := leg.s.Recv(); return err != nil || m.GetImmediateResponse() != nil }
	if over() || step == 4 {
		return
	}
	_ = leg.s.Send(wiretest.RequestBody(someBody))
	if over() || step == 5 {
		return
	}
	_ = leg.s.Send(wiretest.ResponseHeaders("200"))
	if step == 6 {
		return
	}
	_ = leg.s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(`{"choices":[{"finish_reason":"length"}]}`), EndOfStream: true}}})
	over()
}

// TestAMessageThatCannotBeReadIsAnswered: if the plugin ended the stream in order instead,
// Envoy would let the request through, with the headers that the client has set. If the
// stream ended with an error, a filter that fails open would do the same.
func TestAMessageThatCannotBeReadIsAnswered(t *testing.T) {
	r := newReplica(t, "a", nil)
	for _, leg := range []string{filterMain, filterPrefill, filterSync} {
		p := r.open(leg)
		// request headers whose map is no valid message
		bad := &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{}}
		bad.Headers.ProtoReflect().SetUnknown([]byte{0x0a, 0x7f})
		require.NoError(t, p.s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: bad}}))
		status, code, _ := codeOf(t, p.recv())
		p.cancel()
		require.Equal(t, []any{500, "protocol_violation"}, []any{status, code}, leg)
	}
	r.requireIdle()
}

// TestALegWhoseEndWasNotReportedIsAskedFor: the other replica's report was lost. Whoever aborts the leg
// learns that it has ended, and its booking does not stay to the request's deadline.
func TestALegWhoseEndWasNotReportedIsAskedFor(t *testing.T) {
	t.Parallel()
	owner, other := newReplica(t, "owner", func(c *Config) { c.OrphanGrace = time.Millisecond }), newReplica(t, "other", nil)
	main := owner.open(filterMain)
	set := main.route(someBody)
	token := set[prefill.HeaderLeg]
	leg := other.open(filterPrefill)
	defer leg.cancel()
	leg.requestHeaders(prefill.HeaderLeg, token)
	leg.recv()
	leg.requestBody(someBody)
	leg.recv()
	carried := func() bool {
		for _, s := range owner.srv.attempts.all() {
			if s.far.at().addr != "" {
				return true
			}
		}
		return false
	}
	require.Eventually(t, carried, 20*time.Second, time.Millisecond)
	other.srv.guests.remove(token)
	main.cancel()
	owner.requireIdle()
}
