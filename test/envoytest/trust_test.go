//go:build e2e

package envoytest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

const forgedMark = "forged-by-the-client"

// forged is every header that only the router or Envoy may set, with a value
// that would do harm if anyone believed it.
func forged(addr string) map[string]string {
	host, port, _ := strings.Cut(addr, ":")
	early := strconv.FormatInt(time.Now().Add(-30*time.Minute).UnixMilli(), 10)
	return map[string]string{
		"x-gateway-destination-endpoint": addr, "x-gateway-destination-endpoint-subset": addr,
		"x-prefill-destination-endpoint": addr, "x-prefill-cluster": "decode", "x-prefiller-host-port": addr,
		"x-baton-leg": forgedMark, "x-baton-retry": "1", "x-baton-start": early, "x-baton-local-reply": "UF",
		"x-baton-filter": "prefill", "x-baton-decision": forgedMark, "x-baton-anything": forgedMark,
		"x-attempt-id":     "1234567",
		"x-bootstrap-host": host, "x-bootstrap-port": port, "x-bootstrap-room": "1234567",
		"x-override-bootstrap-host": host, "x-override-bootstrap-port": port, "x-override-bootstrap-room": "1234567",
		"x-override-routed-dp-rank": "63", "x-override-disagg-prefill-dp-rank": "63",
		"x-worker-instance-id": "1234567", "x-prefill-instance-id": "1234567", "x-decode-instance-id": "1234567",
		"x-instance-id": "1234567",
		"x-dp-rank":     "63", "x-prefill-dp-rank": "63", "x-data-parallel-rank": "63",
		"x-dynamo-worker-instance-id": "1234567", "x-dynamo-prefill-instance-id": "1234567",
		"x-dynamo-dp-rank": "63", "x-dynamo-prefill-dp-rank": "63",
		"x-kv-cache-source-host-port": addr, "x-encoder-hosts-ports": addr, "x-data-parallel-host-port": addr, "x-dynamo-routing-mode": forgedMark,
		"x-gateway-model-name-rewrite": forgedMark, "x-llm-d-model-name-rewrite": forgedMark, "epp-profile": forgedMark,
		"test-epp-endpoint-selection": addr, "target-pod": addr,
		"x-envoy-original-dst-host": addr, "x-envoy-retry-on": "5xx,retriable-4xx,gateway-error",
		"x-envoy-max-retries": "9", "x-envoy-upstream-rq-timeout-ms": "1", "x-envoy-upstream-rq-per-try-timeout-ms": "1",
		"x-envoy-attempt-count": "99", "x-envoy-hedge-on-per-try-timeout": "true", "x-envoy-expected-rq-timeout-ms": "1",
		"x-envoy-upstream-alt-stat-name": forgedMark, "x-envoy-decorator-operation": forgedMark,
		"x-envoy-retriable-header-names": "content-type", "x-envoy-retriable-status-codes": "200",
	}
}

// cases spells a header name in the ways that HTTP allows.
func spellings(name string) []string {
	title := http.CanonicalHeaderKey(name)
	mixed := []byte(name)
	for i := range mixed {
		if i%2 == 0 {
			mixed[i] = strings.ToUpper(name[i : i+1])[0]
		}
	}
	return []string{name, title, strings.ToUpper(name), string(mixed)}
}

// forge adds every forged header in one spelling, twice.
func forge(h http.Header, addr string, spelling int) {
	for name, v := range forged(addr) {
		h[spellings(name)[spelling]] = []string{v, v}
	}
}

// TestAClientsRoutingHeadersReachNoAddressOfItsChoosing is
// docs/behaviour.md#router-only for headers.
func TestAClientsRoutingHeadersReachNoAddressOfItsChoosing(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		c := newCanary(t)
		for spelling := range 4 {
			f.forget()
			prompt := fmt.Sprintf("spelling %d of the headers", spelling)
			h := http.Header{"Content-Type": {"application/json"}}
			forge(h, c.addr, spelling)
			r := f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion(prompt, 6, false)), h)
			requireAnswer(t, r, prompt, 6)
			prefill, decode := f.legs()
			for leg, q := range map[string]enginesim.Request{"prefill": prefill, "decode": decode} {
				requireHonest(t, leg, q, c.addr)
			}
			require.Equal(t, 1, f.decisions()[0].Attempt, "the client's attempt count is believed")
		}
		require.Zero(t, c.contacts.Load(), "the canary was contacted")
		require.Zero(t, f.metric("baton_fresh_picks_total"))
	})
}

// requireHonest checks that a worker has seen nothing that the client forged
// and nothing that is between the plugin and Envoy.
func requireHonest(t *testing.T, leg string, q enginesim.Request, canary string) {
	t.Helper()
	lies := map[string]bool{canary: true, forgedMark: true, "1234567": true, "63": true}
	for name, values := range q.Headers {
		lower := strings.ToLower(name)
		require.False(t, strings.HasPrefix(lower, "x-baton-"), "%s worker sees %s", leg, name)
		require.False(t, strings.HasPrefix(lower, "x-envoy-"), "%s worker sees %s", leg, name)
		require.False(t, strings.HasPrefix(lower, "x-override-"), "%s worker sees %s", leg, name)
		require.False(t, strings.HasPrefix(lower, "x-dynamo-"), "%s worker sees %s", leg, name)
		for _, v := range values {
			require.False(t, lies[v], "%s worker sees %s: %s", leg, name, v)
		}
	}
}

// TestWithThePluginDeadNoRequestGoesAnywhere: both legs fail closed by
// destination.
func TestWithThePluginDeadNoRequestGoesAnywhere(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1, noCheck: true}, func(t *testing.T, f *fleet) {
		c := newCanary(t)
		require.NoError(t, f.plugin.Kill())
		refused := func(r *reply) {
			t.Helper()
			requireError(t, r, http.StatusServiceUnavailable, "router_unavailable")
		}
		refused(f.send(t.Context(), "/v1/completions", completion("hello", 2, false)))
		for spelling := range 4 {
			h := http.Header{"Content-Type": {"application/json"}}
			forge(h, c.addr, spelling)
			refused(f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion("hello", 2, true)), h))
			one := http.Header{"Content-Type": {"application/json"}, spellings("x-prefill-cluster")[spelling]: {"prefill_leg"}}
			refused(f.do(http.MethodPost, "/v1/completions", strings.NewReader("{}"), one))
		}
		refused(f.do(http.MethodGet, "/v1/models", nil, nil))
		require.Zero(t, c.contacts.Load(), "the canary was contacted")
		require.Empty(t, f.gotAll(f.workers))
	})
}

// TestFieldsThatOnlyTheRouterMaySetAreRefused is docs/behaviour.md#router-only for
// bodies.
func TestFieldsThatOnlyTheRouterMaySetAreRefused(t *testing.T) {
	t.Parallel()
	fields := []string{
		`"bootstrap_host":"127.0.0.1"`, `"bootstrap_port":1`, `"bootstrap_room":7`, `"bootstrap_pair_key":"x"`,
		`"kv_transfer_params":{}`, `"disaggregated_params":{}`, `"routed_dp_rank":0`, `"disagg_prefill_dp_rank":0`, `"data_parallel_rank":0`,
		`"ec_transfer_params":{"h":{"do_remote_encode":true,"remote_host":"192.0.2.1","remote_port":1}}`, `"decode_tp_size":7`,
		`"vllm_xargs":{"kv_transfer_params":"x"}`, `"vllm_xargs":{"ec_transfer\u005fparams":{}}`,
		`"bootstrap_room":null`, `"\u0062ootstrap_room":7`, `"bootstrap\u005Froom":7`, `"bootstrap_\u0072\u006f\u006f\u006d":7`,
	}
	doubles := []string{
		`"model":"m"`, `"prompt":"other"`, `"max_tokens":9`, `"stream":true`, `"n":2`,
		`"\u006dodel":"m"`, `"pr\u006fmpt":"other"`, `"max\u005ftokens":9`, `"\u0073tream":true`,
	}
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		const base = `"model":"m","prompt":"p","max_tokens":2,"stream":false,"n":1`
		for _, field := range fields {
			for _, body := range []string{"{" + field + "," + base + "}", "{" + base + "," + field + "}"} {
				r := f.send(t.Context(), "/v1/completions", body)
				requireError(t, r, http.StatusBadRequest, "forbidden_field")
			}
		}
		for _, field := range doubles {
			r := f.send(t.Context(), "/v1/completions", "{"+base+","+field+"}")
			requireError(t, r, http.StatusBadRequest, "duplicate_field")
		}
		r := f.send(t.Context(), "/v1/completions", `{`+base+`,"bootstrap_room":1,"bootstrap_room":2}`)
		requireError(t, r, http.StatusBadRequest, "forbidden_field")
		require.Empty(t, f.gotAll(f.workers), "a refused request reached a worker")
	})
}

// TestBothLegsCarryTheClientsBytesAndTheSameRendezvous is docs/behaviour.md#one-token,
// #room and #injected.
func TestBothLegsCarryTheClientsBytesAndTheSameRendezvous(t *testing.T) {
	t.Parallel()
	both(t, layout{prefill: 1, decode: 1}, func(t *testing.T, f *fleet) {
		// Odd spacing, escapes, numbers that no float holds, a field that is not read.
		body := "{ \"model\" : \"m\",\n\t\"prompt\":\"caf\\u00e9 \\\"quoted\\\" \u00e9\" , \"max_tokens\" : 7 ,\"stream\":true, " +
			"\"seed\":9007199254740993,\"metadata\":{\"max_tokens\":3,\"bootstrap_room\":1},\"temperature\":1.0e0}"
		h := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"11111111-2222-4333-8444-555555555555"}, "X-Own": {"kept"}}
		r := f.do(http.MethodPost, "/v1/completions?a=b", strings.NewReader(body), h)
		requireAnswer(t, r, "café \"quoted\" é", 7)
		prefill, decode := f.legs()

		members := fmt.Sprintf(`,"bootstrap_host":"%s","bootstrap_port":%d,"bootstrap_room":%d}`,
			f.prefill[0].Info.Bootstrap.Host, f.prefill[0].Info.Bootstrap.Port, decode.Room)
		require.Equal(t, strings.TrimSuffix(body, "}")+members, decode.Body)
		want := strings.Replace(strings.Replace(strings.TrimSuffix(body, "}")+members, `"max_tokens" : 7`, `"max_tokens" : 1`, 1), `"stream":true`, `"stream":false`, 1)
		require.Equal(t, want, prefill.Body)
		require.Equal(t, prefill.Room, decode.Room)
		require.GreaterOrEqual(t, decode.Room, int64(0))

		for leg, q := range map[string]enginesim.Request{"prefill": prefill, "decode": decode} {
			require.Equal(t, f.prefill[0].Info.Bootstrap.Host, q.Headers.Get("X-Bootstrap-Host"), leg)
			require.Equal(t, strconv.Itoa(int(f.prefill[0].Info.Bootstrap.Port)), q.Headers.Get("X-Bootstrap-Port"), leg)
			require.Equal(t, strconv.FormatInt(decode.Room, 10), q.Headers.Get("X-Bootstrap-Room"), leg)
			require.Equal(t, "100", q.Headers.Get("X-Prefill-Instance-Id"), leg)
			require.Equal(t, "200", q.Headers.Get("X-Worker-Instance-Id"), leg)
			require.Equal(t, "0", q.Headers.Get("X-Dp-Rank"), leg)
			require.Equal(t, "0", q.Headers.Get("X-Prefill-Dp-Rank"), leg)
			require.Equal(t, "kept", q.Headers.Get("X-Own"), leg)
			require.Len(t, q.Headers.Values("X-Bootstrap-Room"), 1, leg)
			if n := q.Headers.Get("Content-Length"); n != "" || !f.duplex() { // streamed bodies go out in chunks
				require.Equal(t, strconv.Itoa(q.BodyBytes), n, leg)
			}
		}
		require.NotEmpty(t, decode.Headers.Get("X-Request-Id"))
		require.Equal(t, prefill.Headers.Get("X-Request-Id"), decode.Headers.Get("X-Request-Id"))
		require.Equal(t, f.decode[0].Info.Endpoint.String(), decode.Headers.Get("X-Gateway-Destination-Endpoint"))
		require.NotEqual(t, f.decode[0].Info.Endpoint.String(), prefill.Headers.Get("X-Gateway-Destination-Endpoint"),
			"decode's address is not prefill's business")
	})
}

// TestEachRequestDrawsARoomOfItsOwn is a part of docs/behaviour.md#room.
func TestEachRequestDrawsARoomOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1})
	rooms := make(map[int64]bool)
	for range 20 {
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("same", 1, false)), "same", 1)
	}
	high := false
	for _, q := range f.gotAll(f.decode) {
		require.False(t, rooms[q.Room])
		rooms[q.Room] = true
		high = high || q.Room > 1<<53
	}
	require.Len(t, rooms, 20)
	require.True(t, high, "rooms are drawn from all of 63 bits")
}

// TestAWorkersOwnHeadersCannotSteerTheRouter: a worker is trusted with prompts,
// not with retries: what it says in x-baton-… and x-envoy-… means nothing.
func TestAWorkersOwnHeadersCannotSteerTheRouter(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string]http.Header{
		"Envoy's own headers": {"X-Envoy-Upstream-Service-Time": {"1"}, "X-Envoy-Attempt-Count": {"3"}},
		"a wish for a retry":  {"X-Baton-Retry": {"1"}},
		"a lost connection":   {"X-Baton-Local-Reply": {"UF"}},
		"a time-out":          {"X-Baton-Local-Reply": {"UT"}},
		"a decision":          {"X-Baton-Decision": {"x"}, "X-Baton-Leg": {"x"}},
		"who is to serve":     {"X-Gateway-Destination-Endpoint": {"127.0.0.1:1"}, "X-Attempt-Id": {"7"}},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, layout{}, func(t *testing.T, f *fleet) {
				var calls atomic.Int64
				w := fake(t, 900, func(w http.ResponseWriter, r *http.Request) {
					if !strings.HasPrefix(r.URL.Path, "/v1/completions") {
						http.NotFound(w, r)
						return
					}
					calls.Add(1)
					maps.Copy(w.Header(), headers)
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, `{"choices":[{"text":"fake","finish_reason":"stop"}]}`)
				})
				f.publishAndWait(w)
				r := f.send(t.Context(), "/v1/completions", completion("hello", 1, false))
				require.NoError(t, r.err)
				require.Equal(t, http.StatusOK, r.status, r.body)
				require.Contains(t, r.body, "fake")
				require.EqualValues(t, 1, calls.Load(), "the worker made the router repeat the request")
				require.Zero(t, f.metric("baton_aside_transitions_total", `to="aside"`))
				for k := range headers {
					require.Empty(t, r.header.Get(k))
				}
			})
		})
	}
}

// talk is a stream to the plugin as Envoy opens it.
type talk struct {
	t      *testing.T
	stream extprocv3.ExternalProcessor_ProcessClient
}

func (f *fleet) talk(filter ...string) *talk {
	f.t.Helper()
	conn, err := grpc.NewClient("unix://"+f.plugin.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(f.ctx, 5*time.Second)
	f.t.Cleanup(cancel)
	ctx = metadata.NewOutgoingContext(ctx, metadata.MD{"x-baton-filter": filter})
	s, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	require.NoError(f.t, err)
	return &talk{t: f.t, stream: s}
}

func (k *talk) headers(h map[string]string) {
	k.t.Helper()
	m := &corev3.HeaderMap{}
	for name, v := range h {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: name, RawValue: []byte(v)})
	}
	require.NoError(k.t, k.stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: m},
	}}))
}

func (k *talk) body(b string) {
	k.t.Helper()
	require.NoError(k.t, k.stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: true},
	}}))
}

func (k *talk) recv() *extprocv3.ProcessingResponse {
	k.t.Helper()
	r, err := k.stream.Recv()
	require.NoError(k.t, err)
	return r
}

func (k *talk) requireRefused(status int, code string) {
	k.t.Helper()
	im := k.recv().GetImmediateResponse()
	require.NotNil(k.t, im, "expected an immediate response")
	require.EqualValues(k.t, status, im.GetStatus().GetCode())
	var e errorShape
	require.NoError(k.t, json.Unmarshal(im.GetBody(), &e))
	require.Equal(k.t, code, *e.Error.Code)
	for _, h := range im.GetHeaders().GetSetHeaders() {
		require.NotEqual(k.t, "x-baton-retry", h.GetHeader().GetKey())
	}
}

func injected(r *extprocv3.ProcessingResponse) map[string]string {
	out := make(map[string]string)
	for _, o := range r.GetRequestBody().GetResponse().GetHeaderMutation().GetSetHeaders() {
		out[o.GetHeader().GetKey()] = string(o.GetHeader().GetRawValue())
	}
	return out
}

// TestALegThatTheRouterDidNotSealReachesNoWorker is docs/behaviour.md#seal. The prefill
// listener is internal to Envoy, so the plugin is asked as Envoy would.
func TestALegThatTheRouterDidNotSealReachesNoWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, config: "prefill: {start_timeout: 60s}\n"})
	body := completion("hello", 2, false)
	ask := map[string]string{":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
	main := f.talk("main")
	main.headers(ask)
	require.NotNil(t, main.recv().GetRequestHeaders())
	main.body(body)
	set := injected(main.recv())
	token := set["x-baton-leg"]
	require.NotEmpty(t, token)
	require.Equal(t, f.prefill[0].Info.Endpoint.String(), set["x-prefill-destination-endpoint"], "for a leg that finds no plugin")

	leg := func(token string) *talk {
		k := f.talk("prefill")
		h := map[string]string{"x-prefill-destination-endpoint": "127.0.0.1:1", "x-gateway-destination-endpoint": "127.0.0.1:1"}
		maps.Copy(h, ask)
		if token != "" {
			h["x-baton-leg"] = token
		}
		k.headers(h)
		return k
	}
	flip := func(i int) string {
		b := []byte(token)
		b[i] = map[bool]byte{true: 'B', false: 'A'}[b[i] == 'A']
		return string(b)
	}
	for name, bad := range map[string]string{
		"no token": "", "not base64": "%%%", "a text": forgedMark, "cut short": token[:len(token)-1], "a byte more": token + "A",
		"another version": flip(0), "another attempt": flip(5), "another worker": flip(20), "another deadline": flip(50),
		"another seal": flip(len(token) - 3), "far too long": strings.Repeat("A", 4000), "a line end": token + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			k := leg(bad)
			k.t = t
			k.requireRefused(http.StatusForbidden, "leg_refused")
		})
	}
	require.InDelta(t, 12, f.metric("baton_failures_total", `code="leg_refused"`), 0)

	t.Run("the sealed token opens the way once", func(t *testing.T) {
		k := leg(token)
		require.NotNil(t, k.recv().GetRequestHeaders())
		again := leg(token)
		again.requireRefused(http.StatusGone, "leg_late")
		k.body(body)
		got := injected(k.recv())
		require.Equal(t, f.prefill[0].Info.Endpoint.String(), got["x-prefill-destination-endpoint"])
		require.NoError(t, k.stream.CloseSend())
	})
	require.NoError(t, main.stream.CloseSend())
	require.Empty(t, f.gotAll(f.workers))
}

// TestAStreamThatSaysNoLegIsRefused: the filter's own metadata says the leg,
// and a configuration that lacks it is told so.
func TestAStreamThatSaysNoLegIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{noCheck: true})
	for name, filter := range map[string][]string{
		"nothing": nil, "another word": {"decode"}, "empty": {""}, "two words": {"main", "prefill"}, "upper case": {"MAIN"},
	} {
		t.Run(name, func(t *testing.T) {
			k := f.talk(filter...)
			_, err := k.stream.Recv()
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			require.ErrorContains(t, err, "x-baton-filter")
		})
	}
}
