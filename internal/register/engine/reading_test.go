package engine

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// What could not be read is not what was not told: 503 is the first, 404 the
// second.
func TestAPageThatFailsIsNamedAndOneThatIsMissingIsNot(t *testing.T) {
	sglang := func(models, metrics string) engine {
		return engine{"/server_info": sglang0523, "/v1/models": models, "/metrics": metrics}
	}
	vllm := func(metrics string) engine {
		return engine{"/version": `{"version":"0.33.0"}`, "/v1/models": models, "/metrics": metrics}
	}
	sources := func(page string) engine {
		e := vllm("up 1\n")
		e["/kv_event_sources"] = page
		return e
	}
	for _, c := range []struct {
		name string
		engine
		want string
	}{
		{"SGLang with neither page", engine{"/server_info": sglang0523}, ""},
		{"SGLang whose models fail", sglang("503!", "up 1\n"), "/v1/models: status 503"},
		{"SGLang whose models are no list", sglang("<html>", "up 1\n"), "/v1/models: expected a JSON list"},
		{"SGLang whose metrics fail", sglang(models, "500!"), "/metrics: status 500"},
		{"SGLang with metrics for GET of others", sglang(models, "405!"), ""},
		{"SGLang where both fail", sglang("503!", "503!"), "/v1/models: status 503\n/metrics: status 503"},
		{"vLLM whose metrics fail", vllm("503!"), "/metrics: status 503"},
		{"vLLM without metrics", vllm("404!"), ""},
		{"vLLM that cannot tell where its KV events are", sources("500!"), "/kv_event_sources: status 500"},
		{"vLLM that tells it in another way", sources(`[]`), "/kv_event_sources: expected a JSON object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := client(t, pages(c.engine), Config{}).Facts(t.Context())
			require.NoError(t, err)
			if c.want == "" {
				require.NoError(t, f.Unread.Err())
				return
			}
			require.ErrorContains(t, f.Unread.Err(), c.want)
		})
	}
}

func TestAPageThatTakesTooLongIsUnread(t *testing.T) {
	p := pages{"/version": `{"version":"0.33.0"}`, "/v1/models": models}
	cl := client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			<-r.Context().Done()
			return
		}
		p.ServeHTTP(w, r)
	}), Config{Kind: VLLM, Timeout: 200 * time.Millisecond})
	f, err := cl.Facts(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, f.Unread.Metrics, "/metrics: ")
}

func TestWhatIsKeptOfAPageThatFails(t *testing.T) {
	down := errors.New("503")
	before := Facts{
		Engine: worker.VLLM, Version: "1", Models: []string{"m", "lora"}, DPSize: 2, BlockSize: 16, CapacityBlocks: 9, Mark: Mark{Start: "1"},
	}
	now := Facts{Engine: worker.VLLM, Version: "1", Models: []string{"m"}}
	require.Equal(t, now, now.Keeping(before, engines.Of(now.Engine).RanksInMetrics), "everything was read")
	now.Unread.Metrics = down
	want := before
	want.Models, want.Unread = now.Models, now.Unread
	require.Equal(t, want, now.Keeping(before, engines.Of(now.Engine).RanksInMetrics))

	before.KV.Port, now.Unread = 5557, Unread{Events: down}
	require.Equal(t, before.KV, now.Keeping(before, engines.Of(now.Engine).RanksInMetrics).KV)

	before.Engine, now.Engine = worker.SGLang, worker.SGLang
	now.DPSize, now.Unread = 1, Unread{Metrics: down, Models: down}
	got := now.Keeping(before, engines.Of(now.Engine).RanksInMetrics)
	require.Equal(t, uint32(1), got.DPSize, "SGLang tells it elsewhere")
	require.Equal(t, "1", got.Mark.Start)
	require.Equal(t, []string{"m", "lora"}, got.Models)
	now.Models = []string{"n"}
	require.Equal(t, []string{"n"}, now.Keeping(before, engines.Of(now.Engine).RanksInMetrics).Models, "another model has other adapters")
	now.Models = nil
	require.Equal(t, []string{"m", "lora"}, now.Keeping(before, engines.Of(now.Engine).RanksInMetrics).Models)

	before.Engine = worker.VLLM
	require.Equal(t, now, now.Keeping(before, engines.Of(now.Engine).RanksInMetrics), "another engine")
}

func TestCountsThatFailAreNotZeros(t *testing.T) {
	const idle = "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n"
	p := pages{"/v1/loads": "503!", "/metrics": idle}
	n, err := client(t, p, Config{Kind: SGLang}).InFlight(t.Context())
	require.ErrorContains(t, err, "/v1/loads?include=core,disagg: status 503", "%d", n)

	cl := client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/loads" {
			<-r.Context().Done()
			return
		}
		p.ServeHTTP(w, r)
	}), Config{Kind: SGLang, Timeout: 200 * time.Millisecond})
	n, err = cl.InFlight(t.Context())
	require.Error(t, err, "%d", n)
	require.NotErrorIs(t, err, ErrNotCounted, "it may be told the next time")
}

// A draining worker is counted by the engine's own page although its facts could
// not be read since.
func TestTheKindIsKeptForCounting(t *testing.T) {
	p := pages{"/server_info": sglang0523, "/v1/loads": `{"loads":[{"num_running_reqs":7}]}`}
	cl := client(t, p, Config{})
	_, err := cl.Facts(t.Context())
	require.NoError(t, err)
	p["/server_info"] = "503!"
	_, err = cl.Facts(t.Context())
	require.Error(t, err)
	n, err := cl.InFlight(t.Context())
	require.NoError(t, err)
	require.Equal(t, 7, n)

	// Another engine at the address is found, and counted its own way.
	delete(p, "/server_info")
	p["/version"], p["/v1/models"], p["/metrics"] = `{"version":"1"}`, models, vllmMetrics
	_, err = cl.Facts(t.Context())
	require.NoError(t, err)
	n, err = cl.InFlight(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n)
}

// The connection closes after each answer, and has said so: that is no loss. It
// is the transport that closes it, while the answer is read or after; a client
// that took it for idle would be told each time.
func TestAnAnswerThatClosesIsNoLoss(t *testing.T) {
	cl := client(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = w.Write([]byte(strings.Repeat("x", 100)))
	}), Config{})
	_, err := cl.Health(t.Context())
	require.NoError(t, err)
	require.False(t, cl.watch.idle.Load(), "nothing is promised")
}
