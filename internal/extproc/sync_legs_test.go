package extproc

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	handedOver = `{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":{"remote_engine_id":"e"}}`
	nothing    = `{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":null}`
	allThereIs = `{"choices":[{"text":"a","finish_reason":"stop"}],"kv_transfer_params":null}`
)

// legs plays Envoy's listener for the plugin's own legs. Each leg gets the next answer, and
// all legs after the last answer get that one.
type legs struct {
	came    chan prefill.Leg
	tokens  chan string
	sealer  atomic.Pointer[prefill.Sealer]
	n       atomic.Int64
	answers []http.HandlerFunc
}

func newLegs(answers ...http.HandlerFunc) *legs {
	return &legs{came: make(chan prefill.Leg, 8), tokens: make(chan string, 8), answers: answers}
}

func (l *legs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	token := r.Header.Get(prefill.HeaderLeg)
	leg, err := l.sealer.Load().Open(token)
	if err != nil {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	i := int(l.n.Add(1)) - 1
	l.tokens <- token
	l.came <- leg
	l.answers[min(i, len(l.answers)-1)](w, r)
}

func saying(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }
}

// refusedLeg answers a leg as Envoy does if it cannot reach the worker.
func refusedLeg(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(prefill.HeaderLocalReply, "UF")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// until answers once the channel let is closed.
func until(let <-chan struct{}, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-let:
			answer(w, r)
		case <-r.Context().Done():
		}
	}
}

// withLegs starts a replica with workers whose decode needs prefill's answer.
func withLegs(t *testing.T, l *legs, ws []*worker.Worker, change func(*Config)) *replica {
	at := listener(t, l.ServeHTTP)
	r := newReplicaOf(t, "a", fixed(ws), func(c *Config) {
		c.PrefillListener, c.StartTimeout, c.OrphanGrace = at, time.Minute, time.Minute
		c.Prefill.Mode, c.Decode.Mode = picker.RoundRobin, picker.RoundRobin
		if change != nil {
			change(c)
		}
	})
	l.sealer.Store(r.srv.sealer)
	return r
}

// settled returns the message that ends a request: it routes the request, or is an answer of
// the plugin's.
func (p *proxy) settled() *extprocv3.ProcessingResponse {
	p.t.Helper()
	for {
		if m := p.recv(); m.GetOverrideMessageTimeout() == nil {
			return m
		}
	}
}

// The client decides how long prefill's answer is: prompt_logprobs of a long prompt must not
// set one prefill worker after the other aside.
func TestALongAnswerOfPrefillIsTheRequestsOwnDoing(t *testing.T) {
	l := newLegs(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.TrimSuffix(handedOver, "}")+`,"prompt_logprobs":["`)
		for range legAnswerLimit >> 20 {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}
		_, _ = io.WriteString(w, `"]}`)
	})
	r := withLegs(t, l, prefillFirst(t, nil), nil)
	p := r.open(filterMain)
	p.asks(eightTokens)
	im := p.settled().GetImmediateResponse()
	require.EqualValues(t, 400, im.GetStatus().GetCode())
	require.Contains(t, string(im.GetBody()), `"prefill_answer_too_large"`)
	require.Empty(t, setHeaders(im.GetHeaders())[prefill.HeaderRetry])
	require.False(t, r.srv.cfg.Health.Aside(worker.Rank{ID: 1}) || r.srv.cfg.Health.Aside(worker.Rank{ID: 2}))
	p.cancel()
	r.forgetLegs()
	r.requireIdle()
}

func TestALegsAnswerIsReadUpToItsLimit(t *testing.T) {
	var size atomic.Int64
	client, err := newLegClient(listener(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("length") != "" {
			w.Header().Set("Content-Length", strconv.FormatInt(size.Load(), 10))
		}
		_, _ = io.CopyN(w, zeros{}, size.Load())
	}), 0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer client.close()
	for _, set := range [][]wire.Header{nil, {{Name: "length", Value: "told"}}} {
		size.Store(legAnswerLimit)
		a := client.send(t.Context(), "/v1/completions", set, newLegBody([]byte("{}"), nil), legAnswerLimit)
		require.NoError(t, a.Err)
		require.Len(t, a.Body, legAnswerLimit)
		size.Store(legAnswerLimit + 1)
		a = client.send(t.Context(), "/v1/completions", set, newLegBody([]byte("{}"), nil), legAnswerLimit)
		require.ErrorIs(t, a.Err, leg.ErrLong)
		require.Empty(t, a.Body)
		require.Equal(t, 200, a.Status)
	}
}

// A leg that is too old from its start opens no connection: the transport would send its head, and
// Envoy may ask a worker by that alone.
func TestALegThatIsTooOldIsNotBegun(t *testing.T) {
	client, err := newLegClient("unix://"+t.TempDir()+"/nobody", 0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	body := newLegBody([]byte("{}"), nil)
	body.until = time.Now().Add(-time.Nanosecond)
	a := client.send(t.Context(), "/v1/completions", nil, body, legAnswerLimit)
	require.ErrorIs(t, a.Err, errTooOld)
	require.False(t, a.Sent)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// An answer of an engine is read as it is. To follow a redirect could send a request anywhere,
// and the client has not asked for a compressed body.
func TestALegFollowsNoRedirectAndAsksForNoCompression(t *testing.T) {
	var encodings []string
	client, err := newLegClient(listener(t, func(w http.ResponseWriter, r *http.Request) {
		encodings = append(encodings, r.Header.Get("Accept-Encoding"))
		w.Header().Set("Content-Encoding", "gzip")
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		_, _ = io.WriteString(w, "packed all the same")
	}), 0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer client.close()
	a := client.send(t.Context(), "/v1/completions", nil, newLegBody([]byte("{}"), nil), legAnswerLimit)
	require.NoError(t, a.Err)
	require.Equal(t, http.StatusTemporaryRedirect, a.Status)
	require.Empty(t, a.Body, "what cannot be read is no text for a client")
	require.Equal(t, []string{""}, encodings)
}

// A leg that was never sent is told from a leg that a worker may have seen.
func TestALegThatWasNeverSentIsTakenByNobody(t *testing.T) {
	send := func(at string, body string) *leg.OwnAnswer {
		client, err := newLegClient(at, 0, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer client.close()
		return client.send(t.Context(), "/v1/completions", nil, newLegBody([]byte(body), nil), legAnswerLimit)
	}
	nobody := send("unix:///nowhere/prefill.sock", "{}")
	require.Error(t, nobody.Err)
	require.False(t, nobody.Sent || nobody.Taken())
	cut := send(listener(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	}), "{}")
	require.Error(t, cut.Err)
	require.True(t, cut.Sent && cut.Taken())
	require.True(t, send(listener(t, refusing(500)), "{}").Taken())
	require.False(t, send(listener(t, refusedLeg), "{}").Taken())
	require.Equal(t, "dial unix /nowhere/prefill.sock: connect: no such file or directory", nobody.Why)
	require.Equal(t, "the connection was closed", cut.Why)
	noHTTP := listener(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the request may not have been written
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, "a secret\r\n\r\n")
		_ = conn.Close()
	})
	require.Equal(t, "what came is no HTTP answer", send(noHTTP, "{}").Why, "it may hold a prompt")
}

// The log is told once that the listener for the plugin's own legs is not there, and once
// that it is.
func TestAListenerThatIsNotThereIsToldOfOnce(t *testing.T) {
	var b bytes.Buffer
	at := filepath.Join(t.TempDir(), "x.sock")
	client, err := newLegClient("unix://"+at, 0, slog.New(slog.NewTextHandler(&b, nil)))
	require.NoError(t, err)
	defer client.close()
	send := func() {
		client.send(t.Context(), "/v1/completions", nil, newLegBody([]byte("{}"), nil), legAnswerLimit)
	}
	send()
	send()
	l, err := net.Listen("unix", at)
	require.NoError(t, err)
	srv := &http.Server{Handler: refusing(500), ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	send()
	send()
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 2)
	require.Regexp(t, `level=WARN .* address=`+at+` err="dial unix `+at+`: connect: no such file or directory"`, lines[0])
	require.Contains(t, lines[1], "level=INFO")
}

// If prefill has ended the text, or has failed, decode is not picked again.
func TestDecodeIsPickedAgainOnlyWhereItGetsTheRequest(t *testing.T) {
	for name, row := range map[string]struct {
		answer http.HandlerFunc
		way    []string
		able   bool   // decode workers can serve without prefill
		want   string // worker that gets the request; "": the plugin answers
		next   string // worker whose turn is next
	}{
		"a hand-off": {answer: saying(handedOver), want: "4", next: "3"},
		"no hand-off, and decode does without it": {answer: saying(nothing), able: true, want: "4", next: "3"},
		"the text is over":                        {answer: saying(allThereIs), next: "4"},
		"prefill has aborted":                     {answer: saying(`{"choices":[{"text":"","finish_reason":"abort"}]}`), next: "4"},
		"a spoiled hand-off":                      {answer: saying(strings.Replace(handedOver, "{\"remote", "[{\"remote", 1)), next: "4"},
		"an error":                                {answer: refusing(500), next: "4"},
		"decode is named": {
			answer: saying(handedOver), way: []string{routingKey, "prerouted"}, want: "3", next: "3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			let := make(chan struct{})
			l := newLegs(until(let, row.answer), saying(handedOver))
			r := withLegs(t, l, prefillFirst(t, func(w *worker.Worker) { w.AcceptsAggregated = row.able && w.Role == worker.Decode }), nil)
			p := r.through(row.way...)
			var names []string
			if row.way != nil {
				names = []string{"x-worker-instance-id", "3"}
			}
			p.asks(eightTokens, names...)
			<-l.came
			require.Equal(t, worker.ID(3), r.srv.cfg.Journal.Recent(nil, 1)[0].Decode.Rank.ID)
			r.srv.cfg.Health.Report(worker.Rank{ID: 3}, health.Report{Outcome: health.ConnectFailed}, time.Now())
			require.True(t, r.srv.cfg.Health.Aside(worker.Rank{ID: 3}))
			close(let)
			m := p.settled()
			if row.want == "" {
				require.NotNil(t, m.GetImmediateResponse(), "%v", m)
			} else {
				set, _ := routed(t, m)
				require.Equal(t, row.want, set["x-worker-instance-id"])
				require.Equal(t, fmt.Sprintf("127.0.0.1:%s", map[string]string{"3": "40002", "4": "40003"}[row.want]), set[prefill.HeaderDestination])
				rank := worker.Rank{ID: 7 - worker.ID(row.want[0]-'0')}
				other, _ := r.book.Load(rank)
				require.Zero(t, other.DecodeRequests, "the old booking is given back")
				rank.ID = 7 - rank.ID
				booked, _ := r.book.Load(rank)
				held, _ := r.book.DecodingBlocks(rank, time.Now().Add(time.Hour))
				require.Greater(t, held, booked.DecodeBlocks, "its answer will grow")
			}
			p.cancel()
			r.accessLog()
			r.forgetLegs()
			r.requireIdle()
			require.Equal(t, row.next, r.nextDecode())
		})
	}
}

// nextDecode returns the decode worker whose turn it is, if none is set aside.
func (r *replica) nextDecode() string {
	params := r.srv.cfg.Decode
	pool := r.srv.cfg.Board.Load().Pool(worker.Key{Model: "m"})
	req := load.Request{Key: pool.Key, Ranks: pool.DecodeRanksOf(pool.Decode[0].Fit()), Params: &params, Now: time.Now()}
	req.Pick.Role, req.Pick.ISLTokens = worker.Decode, 8
	d, err := r.book.Preview(&req)
	require.NoError(r.t, err)
	return d.Rank.ID.String()
}

// With enforced disaggregation a request without a hand-off is served by no decode worker
// alone, whether that worker was picked at first or while prefill ran.
func TestEnforcedNothingIsServedByDecodeAlone(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		for _, enforced := range []bool{false, true} {
			let := make(chan struct{})
			l := newLegs(until(let, saying(nothing)))
			ws := prefillFirst(t, func(w *worker.Worker) { w.AcceptsAggregated = w.Role == worker.Decode })
			r := withLegs(t, l, ws, func(c *Config) { c.EnforceDisagg = enforced })
			p := r.open(filterMain)
			p.asks(eightTokens)
			<-l.came
			if replaced {
				r.srv.cfg.Health.Report(worker.Rank{ID: 3}, health.Report{Outcome: health.ConnectFailed}, time.Now())
			}
			close(let)
			im := p.settled().GetImmediateResponse()
			require.Equal(t, enforced, im != nil, "%v", im)
			if enforced {
				require.Contains(t, string(im.GetBody()), `"prefill_failed"`)
			}
			p.cancel()
			r.forgetLegs()
			r.requireIdle()
		}
	}
}

// A later pick of decode has the constraints of the first one: the domain of prefill's KV, and
// those that the request sets.
func TestADecodeThatIsPickedAgainIsBoundAsTheFirst(t *testing.T) {
	fleet := func(zone string) []*worker.Worker {
		ws := prefillFirst(t, nil)
		third := *ws[3]
		third.ID = 5
		third.Endpoint, _ = worker.ParseEndpoint("127.0.0.1:40004")
		ws = append(ws, &third)
		for i, z := range []string{"a", "a", "a", "a", zone} {
			ws[i].TopologyDomains = map[string]string{"zone": z}
			if ws[i].Role == worker.Prefill {
				ws[i].KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: worker.Required}
			}
		}
		return ws
	}
	for zone, want := range map[string]string{"a": "5", "b": "4"} {
		let := make(chan struct{})
		l := newLegs(until(let, saying(handedOver)))
		r := withLegs(t, l, fleet(zone), nil)
		p := r.open(filterMain)
		p.asks(eightTokens)
		<-l.came
		r.srv.cfg.Health.Report(worker.Rank{ID: 3}, health.Report{Outcome: health.ConnectFailed}, time.Now())
		close(let)
		set, _ := routed(t, p.settled())
		require.Equal(t, want, set["x-worker-instance-id"], "5 is in zone %s", zone)
		p.cancel()
		r.accessLog()
		r.forgetLegs()
		r.requireIdle()
	}
}

// A fresh attempt avoids the workers that have failed the request, also in a later pick of
// decode. If there is no other, a worker that has failed before is picked.
func TestADecodeThatIsPickedAgainIsNoneThatHasFailedBefore(t *testing.T) {
	t.Parallel()
	for _, others := range []bool{false, true} {
		ws := prefillFirst(t, nil)
		if others {
			fifth := *ws[3]
			fifth.ID = 5
			fifth.Endpoint, _ = worker.ParseEndpoint("127.0.0.1:40004")
			ws = append(ws, &fifth)
		}
		let := make(chan struct{})
		l := newLegs(until(let, saying(handedOver)))
		r := withLegs(t, l, ws, func(c *Config) { c.Decode.Mode = picker.DefaultParams().Mode })
		var busy []*load.Reservation
		for _, w := range ws[2:] { // worker 4 would be the cheapest
			if w.ID != 4 {
				busy = append(busy, r.load(w.ID, worker.Decode, 400))
			}
		}
		failed := &leg.Request{Headers: wire.Headers{RequestID: "again", Start: "1800000000000"}, Attempt: 1}
		r.srv.avoid.add(failed, leg.Lesson{Avoid: []worker.Rank{{ID: 4}}}, time.Now())
		p := r.open(filterMain)
		p.ask(eightTokens, "x-request-id", "again", wire.HeaderAttemptCount, "2", prefill.HeaderStart, "1800000000000")
		<-l.came
		first := r.srv.cfg.Journal.Recent(nil, 1)[0].Decode.Rank.ID
		require.NotEqual(t, worker.ID(4), first)
		r.srv.cfg.Health.Report(worker.Rank{ID: first}, health.Report{Outcome: health.ConnectFailed}, time.Now())
		close(let)
		set, _ := routed(t, p.settled())
		if others {
			require.Equal(t, map[worker.ID]string{3: "5", 5: "3"}[first], set["x-worker-instance-id"])
		} else {
			require.Equal(t, "4", set["x-worker-instance-id"])
		}
		for _, b := range busy {
			b.Release(time.Now())
		}
		p.cancel()
		r.accessLog()
		r.forgetLegs()
		r.requireIdle()
	}
}

// collectors lets a client leave while prefill runs. It returns the workers to which collecting
// legs then went, for the KV that prefill held.
func collectors(t *testing.T, ws []*worker.Worker, way, names []string, change func(*Config), aside worker.ID, answers ...http.HandlerFunc) (ids []worker.ID) {
	t.Helper()
	let := make(chan struct{})
	l := newLegs(append([]http.HandlerFunc{until(let, saying(handedOver))}, answers...)...)
	r := withLegs(t, l, ws, change)
	p := r.through(way...)
	p.ask(eightTokens, names...)
	require.Equal(t, prefill.SyncLeg, (<-l.came).Kind)
	p.cancel()
	require.Eventually(t, func() bool { return r.srv.Streams() == 0 }, 20*time.Second, time.Millisecond)
	if aside != 0 {
		r.srv.cfg.Health.Report(worker.Rank{ID: aside}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	}
	close(let)
	r.requireIdle()
	for {
		select {
		case leg := <-l.came:
			require.Equal(t, prefill.CollectLeg, leg.Kind)
			ids = append(ids, leg.Prefill.ID)
		default:
			return ids
		}
	}
}

func TestWhatPrefillHoldsIsCollectedByWhoCanBeReached(t *testing.T) {
	t.Parallel()
	ws := prefillFirst(t, nil)
	require.Equal(t, []worker.ID{3}, collectors(t, ws, nil, nil, nil, 0, saying("{}")))
	require.Equal(t, []worker.ID{3}, collectors(t, ws, nil, nil, nil, 0, refusing(500)), "it has seen the hand-off")
	require.Equal(t, []worker.ID{3, 4}, collectors(t, ws, nil, nil, nil, 0, refusedLeg, saying("{}")))
	require.Equal(t, []worker.ID{4}, collectors(t, ws, nil, nil, nil, 3, saying("{}")), "the booked one is set aside")
}

// doc.go: a synchronous hand-off goes to no other decode worker than the named one.
func TestWhatPrefillHoldsIsCollectedByNoOtherThanTheNamed(t *testing.T) {
	t.Parallel()
	ws, names := prefillFirst(t, nil), []string{"x-prefill-instance-id", "2", "x-worker-instance-id", "4"}
	require.Equal(t, []worker.ID{4}, collectors(t, ws, direct(), names, nil, 0, refusedLeg))
	require.Equal(t, []worker.ID{4}, collectors(t, ws, direct(), names, nil, 4, saying("{}")), "who named it may know better than we")
}

// Only workers of the same engine and domain can read the KV.
func TestWhatPrefillHoldsIsCollectedWhereItCanBeRead(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(w *worker.Worker){
		"another domain": func(w *worker.Worker) { w.TopologyDomains = map[string]string{"zone": "b"} },
		"another engine": func(w *worker.Worker) {
			w.Engine, w.Bootstrap = worker.SGLang, worker.Bootstrap{Host: "127.0.0.1", Port: 8998}
		},
		"none": nil,
	} {
		t.Run(name, func(t *testing.T) {
			ws := prefillFirst(t, func(w *worker.Worker) {
				w.TopologyDomains = map[string]string{"zone": "a"}
				if w.Role == worker.Prefill {
					w.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: worker.Required}
				}
			})
			want := []worker.ID{3, 4}
			if spoil != nil {
				spoil(ws[3])
				want = want[:1]
			}
			require.Equal(t, want, collectors(t, ws, nil, nil, nil, 0, refusedLeg))
		})
	}
}

// admitted opens a sync leg with a token. It returns the headers that are set on the leg, or
// the status of the plugin's answer.
func (r *replica) admitted(token string) (set map[string]string, status int) {
	r.t.Helper()
	p := r.open(filterSync)
	defer p.cancel()
	p.requestHeaders(prefill.HeaderLeg, token)
	m := p.recv()
	if im := m.GetImmediateResponse(); im != nil {
		require.Equal(r.t, "-", setHeaders(im.GetHeaders())[prefill.HeaderLocalReply], "its sender must not take it for a worker's")
		return nil, int(im.GetStatus().GetCode())
	}
	return setHeaders(m.GetRequestHeaders().GetResponse().GetHeaderMutation()), 0
}

// TestASyncLegIsAdmittedOnceAndOnlyWhileItsAttemptLives: the rule for mirrored legs holds for
// the plugin's own legs.
func TestASyncLegIsAdmittedOnceAndOnlyWhileItsAttemptLives(t *testing.T) {
	t.Parallel()
	l := newLegs(until(nil, nil))
	r := withLegs(t, l, prefillFirst(t, nil), func(c *Config) { c.PrefillTimeout = 5 * time.Minute })
	ask := func() (*proxy, string) {
		p := r.open(filterMain)
		p.ask(eightTokens)
		return p, <-l.tokens
	}
	p, token := ask()
	set, status := r.admitted(token)
	require.Zero(t, status)
	require.Equal(t, "127.0.0.1:40000", set[prefill.HeaderPrefillEndpoint])
	timeout, err := strconv.Atoi(set["x-envoy-upstream-rq-timeout-ms"])
	require.NoError(t, err)
	most := (r.srv.cfg.PrefillTimeout + r.srv.cfg.OrphanGrace).Milliseconds()
	require.True(t, int64(timeout) <= most && int64(timeout) > most/2, "%d ms of %d", timeout, most)
	_, status = r.admitted(token)
	require.Equal(t, 410, status, "a token is good for one leg")
	p.cancel()

	p, token = ask()
	p.cancel()
	require.Eventually(t, func() bool { return r.srv.Streams() == 0 }, 20*time.Second, time.Millisecond)
	r.srv.OnChange(r.srv.cfg.Board.Load().Snapshot, discovery.Change{Left: []worker.ID{1, 2}})
	_, status = r.admitted(token)
	require.Equal(t, 410, status, "its attempt is over")
	r.requireIdle()
}

// A leg that comes too late is refused, although its request is still here.
func TestASyncLegThatComesTooLateIsNotAdmitted(t *testing.T) {
	t.Parallel()
	l := newLegs(until(nil, nil))
	r := withLegs(t, l, prefillFirst(t, nil), func(c *Config) { c.StartTimeout = 20 * time.Millisecond })
	var p *proxy
	var token string
	for token == "" {
		p = r.open(filterMain)
		p.asks(eightTokens)
		require.Contains(t, string(p.settled().GetImmediateResponse().GetBody()), `"prefill_failed"`)
		select {
		case token = <-l.tokens:
		case <-time.After(time.Second): // on a busy machine the leg was given up before it was sent
			p.cancel()
		}
	}
	require.Equal(t, 1, r.srv.Attempts())
	_, status := r.admitted(token)
	require.Equal(t, 410, status)
	p.cancel()
	r.requireIdle()
}

// A leg may wait in Envoy. After its deadline its answer would not be read.
func TestASyncLegIsNotAdmittedAfterItsDeadline(t *testing.T) {
	r := withLegs(t, newLegs(refusedLeg), prefillFirst(t, nil), nil)
	for _, kind := range []prefill.LegKind{prefill.SyncLeg, prefill.CollectLeg} {
		leg := prefill.Leg{Kind: kind, Owner: "another", Nonce: 9, Prefill: worker.Rank{ID: 1}, Deadline: time.Now().Add(time.Minute)}
		token, err := r.srv.sealer.Seal(leg)
		require.NoError(t, err)
		_, status := r.admitted(token)
		require.Zero(t, status)
		leg.Deadline = time.Now().Add(-time.Second)
		token, err = r.srv.sealer.Seal(leg)
		require.NoError(t, err)
		_, status = r.admitted(token)
		require.Equal(t, 410, status)
	}
}

// A leg of the plugin's own takes an open file. Beyond the bound a request is refused at once, and
// nothing stays booked.
func TestBeyondTheBoundOfLegsARequestIsRefused(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	l := newLegs(until(let, saying(handedOver)))
	r := withLegs(t, l, prefillFirst(t, nil), func(c *Config) { c.MaxLegs = 1 })
	first := r.open(filterMain)
	first.asks(eightTokens)
	<-l.came
	second := r.open(filterMain)
	second.asks(eightTokens)
	im := second.settled().GetImmediateResponse()
	require.EqualValues(t, 503, im.GetStatus().GetCode())
	require.Contains(t, string(im.GetBody()), `"legs_full"`)
	close(let)
	routed(t, first.settled())
	third := r.open(filterMain)
	third.asks(eightTokens)
	routed(t, third.settled())
	for _, p := range []*proxy{first, second, third} {
		p.cancel()
	}
	r.forgetLegs()
	r.requireIdle()
}

// The worker is not charged with a fault of the plugin or of Envoy.
func TestAFaultOfASyncStreamIsNoWorkers(t *testing.T) {
	t.Run("a message out of order", func(t *testing.T) {
		r := withLegs(t, newLegs(refusedLeg), prefillFirst(t, nil), nil)
		p := r.open(filterSync)
		defer p.cancel()
		p.requestBody("{}")
		im := p.recv().GetImmediateResponse()
		require.EqualValues(t, 500, im.GetStatus().GetCode())
		require.Contains(t, string(im.GetBody()), `"protocol_violation"`)
		require.Equal(t, "-", setHeaders(im.GetHeaders())[prefill.HeaderLocalReply])
	})
	t.Run("a panic", func(t *testing.T) {
		r := withLegs(t, newLegs(refusedLeg), prefillFirst(t, nil), nil)
		token, err := r.srv.sealer.Seal(prefill.Leg{Kind: prefill.SyncLeg, Deadline: time.Now().Add(time.Minute), Prefill: worker.Rank{ID: 1}})
		require.NoError(t, err)
		r.srv.view = nil
		_, status := r.admitted(token)
		require.Equal(t, 500, status)
	})
}

// A main leg is noted by its name from its headers to its end, whatever the engine.
func TestARequestBearsItsNameAsLongAsItIsHere(t *testing.T) {
	r := withLegs(t, newLegs(saying(handedOver)), prefillFirst(t, nil), nil)
	believed := func() bool { return r.srv.unrouted.find("same", "1") != nil }
	first := r.open(filterMain)
	first.asks(eightTokens, "x-request-id", "same", wire.HeaderAttemptCount, "1")
	routed(t, first.settled())
	require.True(t, believed())
	second := r.open(filterMain)
	second.requestHeaders("x-request-id", "same", wire.HeaderAttemptCount, "1")
	second.recv()
	require.False(t, believed(), "whose log comes without an attempt is not known any more")
	second.cancel()
	require.Eventually(t, func() bool { return r.srv.Streams() == 1 }, 20*time.Second, time.Millisecond)
	require.False(t, believed(), "and it may come late")
	first.cancel()
	r.accessLog()
	require.Eventually(t, func() bool {
		r.srv.unrouted.mu.Lock()
		defer r.srv.unrouted.mu.Unlock()
		return len(r.srv.unrouted.m) == 0
	}, 20*time.Second, time.Millisecond)
	r.requireIdle()
}
