package enginesim

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const streamed = `,"stream":true,"max_tokens":8`

func TestFaults(t *testing.T) {
	t.Run("error before: the status at once, no room entered", func(t *testing.T) {
		p, _ := pair(t, Config{})
		require.NoError(t, p.SetFault(Fault{Mode: FaultError, Status: 503, Count: 1}))
		r := post(t.Context(), p.URL()+completions, pdBody(p, 1, "a", ""))
		require.Equal(t, 503, r.status)
		require.Equal(t, FaultError, p.Requests(0)[0].Fault)
		require.Equal(t, FaultNone, p.State(false).Fault.Mode, "it was for one request")
		requireClean(t, p)
	})
	t.Run("error mid: prefill fails with the KV half computed, decode waits on", func(t *testing.T) {
		p, d := pair(t, Config{})
		require.NoError(t, p.SetFault(Fault{Mode: FaultError, When: Mid, Count: 1}))
		dec := later(t.Context(), d.URL()+completions, pdBody(p, 1, "a", ""))
		Eventually(t, func() bool { return p.State(false).DecodeAskers == 1 }, "decode waits")
		require.Equal(t, 500, post(t.Context(), p.URL()+completions, pdBody(p, 1, "a", "")).status)
		require.Equal(t, 1, p.State(false).DecodeAskers)
		require.Equal(t, 200, post(t.Context(), p.URL()+completions, pdBody(p, 1, "a", "")).status)
		require.Equal(t, 200, (<-dec).status)
		requireClean(t, p, d)
	})
	t.Run("error after: the KV has changed hands, the answer is an error", func(t *testing.T) {
		p, d := pair(t, Config{})
		require.NoError(t, p.SetFault(Fault{Mode: FaultError, When: After}))
		pre, dec := both(t, p, d, 1, "a", "")
		require.Equal(t, 500, pre.status)
		require.Equal(t, 200, dec.status)
		requireClean(t, p, d)
	})
	for _, when := range []Moment{Before, Mid, After} {
		t.Run("hang "+string(when)+": no answer until the client leaves", func(t *testing.T) {
			p, d := pair(t, Config{})
			require.NoError(t, p.SetFault(Fault{Mode: FaultHang, When: when, Count: 1}))
			ctx, cancel := context.WithCancel(t.Context())
			dctx, dcancel := context.WithCancel(t.Context())
			pre := later(ctx, p.URL()+completions, pdBody(p, 1, "a", ""))
			Eventually(t, func() bool { return p.State(false).Running == 1 }, "prefill hangs")
			dec := later(dctx, d.URL()+completions, pdBody(p, 1, "a", ""))
			switch when {
			case After:
				require.Equal(t, 200, (<-dec).status)
				require.Equal(t, 1, p.State(false).KVHeldBlocks)
			case Mid:
				Eventually(t, func() bool { st := p.State(false); return st.PrefillMet == 1 && st.KVHeldBlocks == 1 }, "they have met")
			case Before:
				Eventually(t, func() bool { st := p.State(false); return st.DecodeAskers == 1 && st.KVHeldBlocks == 0 }, "decode is alone")
			}
			cancel()
			require.Error(t, (<-pre).err)
			dcancel()
			if when != After {
				require.Error(t, (<-dec).err)
			}
			requireClean(t, p, d)
			require.Equal(t, uint64(1), p.State(false).Canceled)
		})
		t.Run("hold "+string(when)+": it goes on when the fault is lifted", func(t *testing.T) {
			p, d := pair(t, Config{})
			require.NoError(t, p.SetFault(Fault{Mode: FaultHold, When: when, Count: 1}))
			pre := later(t.Context(), p.URL()+completions, pdBody(p, 1, "a", ""))
			Eventually(t, func() bool { return p.State(false).Running == 1 }, "prefill is held")
			dec := later(t.Context(), d.URL()+completions, pdBody(p, 1, "a", ""))
			Eventually(t, func() bool { return d.State(false).Requests == 1 }, "decode is asked")
			select {
			case r := <-pre:
				require.Fail(t, "it was not held", "%+v", r)
			default:
			}
			require.NoError(t, p.SetFault(Fault{}))
			require.Equal(t, 200, (<-pre).status)
			require.Equal(t, 200, (<-dec).status)
			requireClean(t, p, d)
		})
	}
	t.Run("slow: latencies are multiplied", func(t *testing.T) {
		a := start(t, Config{Role: worker.Aggregated, DecodePerToken: time.Millisecond})
		require.NoError(t, a.SetFault(Fault{Mode: FaultSlow, Factor: 1e6}))
		ctx, cancel := context.WithCancel(t.Context())
		out := later(ctx, a.URL()+completions, `{"prompt":"a","stream":true}`)
		Eventually(t, func() bool { return a.State(false).Running == 1 && a.Requests(0)[0].TTFTMicros > 0 }, "the first token came")
		require.Equal(t, OutcomeRunning, a.Requests(0)[0].Outcome, "the second would take 1,000 s")
		cancel()
		require.Error(t, (<-out).err)
		requireClean(t, a)
	})
	t.Run("early200: headers before the KV, then an error inside the stream", func(t *testing.T) {
		p, d := pair(t, Config{HeartbeatInterval: 20 * time.Millisecond})
		require.NoError(t, d.SetFault(Fault{Mode: FaultEarly200}))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL()+completions, strings.NewReader(pdBody(p, 1, "a", streamed)))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		resp, err := httpClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close() //nolint:errcheck // read to its end
		require.Equal(t, 200, resp.StatusCode)
		require.Contains(t, resp.Header.Get("Content-Type"), "text/event-stream")
		Eventually(t, func() bool { return p.State(false).DecodeAskers == 1 }, "no KV yet")
		p.Die()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Contains(t, string(b), `data: {"error":{`)
		requireClean(t, d)
	})
	t.Run("finish_abort: 200 with finish reason abort, no KV for decode", func(t *testing.T) {
		p, d := pair(t, Config{})
		require.NoError(t, p.SetFault(Fault{Mode: FaultFinishAbort, Count: 1}))
		o := parseOAI(t, post(t.Context(), p.URL()+completions, pdBody(p, 1, "a", "")))
		require.Equal(t, "abort", o.Choices[0].FinishReason)
		require.Equal(t, OutcomeAborted, p.Requests(0)[0].Outcome)
		requireClean(t, p, d)
	})
	t.Run("truncate: the connection closes in mid-body", func(t *testing.T) {
		p, d := pair(t, Config{})
		require.NoError(t, p.SetFault(Fault{Mode: FaultTruncate}))
		require.NoError(t, d.SetFault(Fault{Mode: FaultTruncate}))
		for i, extra := range []string{"", streamed} {
			pre, dec := both(t, p, d, int64(i), "a", extra)
			for _, r := range []reply{pre, dec} {
				require.Equal(t, 200, r.status)
				require.NotEmpty(t, r.body)
				require.Error(t, r.err)
				require.NotContains(t, r.body, "[DONE]")
			}
		}
		require.Equal(t, map[string]uint64{"fault": 2}, d.State(false).Failed)
		requireClean(t, p, d)
	})
	t.Run("truncate before: the connection closes without a byte", func(t *testing.T) {
		p, _ := pair(t, Config{})
		require.NoError(t, p.SetFault(Fault{Mode: FaultTruncate, When: Before}))
		require.Error(t, post(t.Context(), p.URL()+completions, pdBody(p, 1, "a", "")).err)
	})
}

func TestDieClosesEverySocketInMidRequest(t *testing.T) {
	s, err := New(Config{Role: worker.Aggregated, DecodePerToken: None, PrefillPerToken: None})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	require.NoError(t, s.SetFault(Fault{Mode: FaultDie}))
	r := post(t.Context(), s.URL()+completions, `{"prompt":"a"`+streamed+`}`)
	require.Error(t, r.err)
	require.NotEmpty(t, r.body, "half of the answer had come")
	require.ErrorIs(t, <-done, ErrDied)
	for _, addr := range []string{s.Addr(), first(s.EventsAddr(0))} {
		_, err = net.Dial("tcp", addr)
		require.Error(t, err)
	}
}

func first(a, _ string) string { return a }

func TestRefuseClosesThePortUntilChanged(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, ControlListen: "127.0.0.1:0"})
	ctl := Client{BaseURL: "http://" + s.ControlAddr(), HTTP: httpClient}
	require.Equal(t, 200, post(t.Context(), s.URL()+completions, `{"prompt":"a"}`).status)
	require.NoError(t, ctl.SetFault(t.Context(), Fault{Mode: FaultRefuse}))
	_, err := net.Dial("tcp", s.Addr())
	require.Error(t, err)
	require.NoError(t, ctl.SetFault(t.Context(), Fault{}))
	Eventually(t, func() bool { return post(t.Context(), s.URL()+completions, `{"prompt":"a"}`).status == 200 }, "the port is open again")
	require.NoError(t, ctl.SetFault(t.Context(), Fault{Mode: FaultRefuse, ForMS: 20}))
	Eventually(t, func() bool { return post(t.Context(), s.URL()+completions, `{"prompt":"a"}`).status == 200 }, "it opens by itself")
}

func TestOneRanksPortIsClosedAlone(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, DPSize: 3, PortPerRank: true})
	serves := func(rank int) bool {
		return post(t.Context(), "http://"+s.RankAddr(rank)+completions, `{"prompt":"a"}`).status == 200
	}
	require.True(t, serves(1))
	require.NoError(t, s.SetFault(Fault{Mode: FaultRefuse, Port: s.RankAddr(1)}))
	_, err := net.Dial("tcp", s.RankAddr(1))
	require.Error(t, err)
	require.True(t, serves(0) && serves(2))
	require.NoError(t, s.SetFault(Fault{}))
	Eventually(t, func() bool { return serves(1) }, "the port is open again")
}

func TestHealthFollowsTheFaultOnlyWhenTold(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated})
	get := func(ctx context.Context) int {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/health", nil)
		require.NoError(t, err)
		resp, err := httpClient.Do(req)
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	require.NoError(t, s.SetFault(Fault{Mode: FaultHang}))
	require.Equal(t, 200, get(t.Context()))
	require.NoError(t, s.SetFault(Fault{Mode: FaultError, Status: 503, Health: true}))
	require.Equal(t, 503, get(t.Context()))
	require.NoError(t, s.SetFault(Fault{Mode: FaultHang, Health: true}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	require.Zero(t, get(ctx))
	require.NoError(t, s.SetFault(Fault{Mode: FaultSlow, DelayMS: 60_000, Health: true, Only: "no request has this"}))
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	require.Zero(t, get(ctx))
	require.Equal(t, 200, post(t.Context(), s.URL()+completions, `{"prompt":"a"}`).status, "the page alone is slow")
}

func TestFaultsThatAreRefused(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated})
	for _, body := range []string{`{"mode":"explode"}`, `{"mode":"error","status":200}`, `{"when":"never"}`, `{"mode":"refuse","count":1}`, `{"mode":"hang","port":"127.0.0.1:1"}`, `{"moode":"hang"}`, `{"count":-1}`} {
		require.Equal(t, 400, post(t.Context(), s.URL()+"/sim/fault", body).status, body)
	}
}

// A peer that never finishes the ZMTP handshake must not keep other peers out.
func TestAHalfOpenSubscriberHarmsNobody(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated})
	pub, _ := s.EventsAddr(0)
	c, err := net.Dial("tcp", pub)
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // a client's end
	_, err = bufio.NewReader(c).ReadByte()
	require.NoError(t, err, "the greeting comes first")
	sub := subscribe(t, s, 0, "")
	require.Equal(t, 200, post(t.Context(), s.URL()+completions, `{"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}`).status)
	require.Len(t, receive(t, sub), 3)
}
