package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func now() time.Time { return time.Date(2025, 3, 9, 3, 12, 45, 0, time.UTC) }

func ready() (bool, string) { return true, "" }

func readyKey(worker.Key) (bool, string) { return true, "" }

func newServer(t *testing.T, change func(*Config)) *Server {
	t.Helper()
	cfg := Config{Address: "127.0.0.1:0", State: nightState, Journal: nightJournal(t), Ready: ready, ReadyKey: readyKey}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func ask(s *Server, method, target string, body io.Reader, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	r.Host = "127.0.0.1:9902"
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(w, r)
	return w
}

func get(s *Server, target string) *httptest.ResponseRecorder { return ask(s, "GET", target, nil) }

// golden compares with testdata/name; -rewrite, which the datadriven package
// declares, writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	_ = datadriven.TestData{}
	file := filepath.Join("testdata", name)
	if flag.Lookup("rewrite").Value.String() == "true" {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestTheStateInJSON(t *testing.T) {
	w := get(newServer(t, nil), "/debug/state")
	require.Equal(t, 200, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	golden(t, "state.json", w.Body.String())
}

func TestTimesOfRowsAreInUTCInJSON(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.State = func() State {
			st := Made.NightState(now().In(time.FixedZone("", 3600)))
			st.Shadow = nil // as it was made
			return st
		}
	})
	require.NotContains(t, get(s, "/debug/state").Body.String(), "+01:00")
}

func TestTheDecisionsInJSON(t *testing.T) {
	s := newServer(t, nil)
	golden(t, "decisions.json", get(s, "/debug/decisions").Body.String())

	var got struct{ Decisions []decision.Record }
	require.NoError(t, json.Unmarshal(get(s, "/debug/decisions?n=1").Body.Bytes(), &got))
	require.Len(t, got.Decisions, 1)
	require.Equal(t, "c1d2-estimate", got.Decisions[0].RequestID)
	for _, bad := range []string{"0", "-1", "x", "99999999999999999999"} {
		w := get(s, "/debug/decisions?n="+bad)
		require.Equal(t, 400, w.Code)
		require.Contains(t, w.Body.String(), "expected a number from 1")
	}
}

func TestAnEmptyStateIsEmptyListsAndNoNulls(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.State, c.Journal = func() State {
			return State{Troubles: []trouble.Trouble{{Kind: trouble.NotReady, What: "Baton is not ready: <i>"}}}
		}, nil
	})
	require.NotContains(t, get(s, "/debug/state").Body.String(), "null")
	require.JSONEq(t, `{"decisions":[]}`, get(s, "/debug/decisions").Body.String())
	page := get(s, "/").Body.String()
	for _, want := range []string{"not ready", "<strong>NOT READY</strong> Baton is not ready: &lt;i&gt;. Requests are refused.", "No request has come yet."} {
		require.Contains(t, page, want)
	}
}

func TestThePageSaysWhatIsWrong(t *testing.T) {
	w := get(newServer(t, nil), "/")
	require.Equal(t, 200, w.Code)
	golden(t, "page.html", w.Body.String())
	page := w.Body.String()
	last := 0
	for _, want := range []string{ // in this order: the worst first
		"<title>STALE · Baton</title>",
		"Model &lt;script&gt;alert(&#34;m&#34;)&lt;/script&gt; cannot be served: all its decode workers (2) are set aside: connect-failed. Its requests are refused or wait. <span class=\"quiet\" title=\"since 2025-03-09T03:11:10Z\">For 1 min 35 s.</span>",
		"<strong>STALE</strong> The view of the workers, revision 418, is no longer confirmed (the file cannot be read). The last known workers serve.",
		"KV events of 3 of 6 workers are degraded: 10.0.1.3:8000 (&lt;b&gt;x&lt;/b&gt;). Their overlap may be wrong. See &lt;b&gt;it&lt;/b&gt;.</li>",
		`<b>prefill</b> llama-3.1-70b</span>`, `<span class="bad">1 aside</span>`, `<tr class="w-aside">`, `<b>decode</b> llama-3.1-70b</span>`, `<tr class="w-recovering">`,
		`<span class="warn">1 in trouble</span>`, `<tr class="w-healthy">`, `50,000 <span class="warn">1,234 dropped</span>`,
		"byte estimate (tokenize timed out)",
		"refused: no_worker",
		"lowest cost 12.0; next best 8/0 at 15.2; it holds 12 of the prompt&#39;s 40 blocks",
	} {
		i := strings.Index(page[last:], want)
		require.GreaterOrEqual(t, i, 0, "%q is missing, or comes too early", want)
		last += i
	}
}

func TestAQuietNightSaysSo(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.Journal = nil
		c.State = func() State {
			st := nightState()
			st.BodyBytes, st.BodiesTight, st.Troubles = 3<<20, false, nil
			st.View.Stale, st.Keys, st.Workers, st.Channels = false, nil, st.Workers[:1], st.Channels[:1]
			return st
		}
	})
	page := get(s, "/").Body.String()
	require.Contains(t, page, "<title>Baton</title>")
	require.Contains(t, page, "Nothing is wrong.")
}

func TestNothingFromOutsideReachesThePageUnescaped(t *testing.T) {
	page := get(newServer(t, nil), "/").Body.String()
	for _, bad := range []string{"<img", "<script>", "<b>x", "<loopback>"} {
		require.NotContains(t, page, bad)
	}
}

func TestReadiness(t *testing.T) {
	s := newServer(t, nil)
	w := get(s, "/readyz")
	require.Equal(t, 200, w.Code)
	require.Equal(t, "ready\n", w.Body.String())
	s = newServer(t, func(c *Config) { c.Trouble = func() []trouble.Trouble { return nightState().Troubles } })
	w = get(s, "/readyz")
	require.Equal(t, 200, w.Code)
	require.Equal(t, 2, strings.Count(w.Body.String(), "\nin trouble: "), "only that by which requests fail or wait")
	require.Contains(t, w.Body.String(), "ready\nin trouble: Model <script>")
	s = newServer(t, func(c *Config) { c.Ready = func() (bool, string) { return false, "no worker view yet" } })
	w = get(s, "/readyz")
	require.Equal(t, 503, w.Code)
	require.Equal(t, "not ready: no worker view yet\n", w.Body.String())
	require.Equal(t, "alive\n", get(s, "/healthz").Body.String())

	s = newServer(t, func(c *Config) {
		c.ReadyKey = func(k worker.Key) (bool, string) {
			return k == worker.Key{Model: "a/b c", Namespace: "lab"}, "no decode worker"
		}
	})
	require.Equal(t, 200, get(s, "/readyz?model=a%2Fb+c&namespace=lab").Code)
	w = get(s, "/readyz?model=a%2Fb+c")
	require.Equal(t, 503, w.Code)
	require.Equal(t, "not ready: no decode worker\n", w.Body.String())
}

func TestWhatIsNotConfiguredIsNotThere(t *testing.T) {
	s := newServer(t, nil)
	for _, p := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/heap", "/assets/", "/assets/page.html", "/assets/../server.go", "/x"} {
		require.Contains(t, []int{404, 307}, get(s, p).Code, p)
	}
	require.Equal(t, 404, ask(s, "POST", "/debug/explain", strings.NewReader("{}")).Code)
	require.Equal(t, 405, ask(s, "POST", "/debug/state", nil).Code)

	s = newServer(t, func(c *Config) {
		c.Pprof = true
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { text(w, 200, "m 1\n") })
	})
	require.Equal(t, 200, get(s, "/debug/pprof/").Code)
	require.Equal(t, "m 1\n", get(s, "/metrics").Body.String())
	require.Equal(t, "text/css; charset=utf-8", get(s, "/assets/page.css").Header().Get("Content-Type"))
	require.Equal(t, 200, get(s, "/assets/page.js").Code)
}

// What a screen reader alone reads has an absolute position: a box that does not hold it
// lets it stand out to the right, and a phone then scrolls the whole page sideways.
func TestATableThatScrollsHoldsAllThatIsInIt(t *testing.T) {
	require.Regexp(t, `(?m)^\.scroll \{[^}]*position: relative;`, get(newServer(t, nil), "/assets/page.css").Body.String())
}

func TestExplain(t *testing.T) {
	j := nightJournal(t)
	s := newServer(t, func(c *Config) {
		c.Trouble = func() []trouble.Trouble { return nightState().Troubles }
		c.Explain = func(_ context.Context, path string, body []byte) (any, error) {
			switch string(body) {
			case "record":
				return &j.Recent(nil, 1)[0], nil
			case "bad":
				return nil, errors.New("body: expected JSON")
			case "panic":
				panic("boom")
			case "nan":
				return map[string]float64{"x": math.NaN()}, nil
			}
			return map[string]string{"path": path, "body": string(body)}, nil
		}
	})
	post := func(target, body string) *httptest.ResponseRecorder {
		return ask(s, "POST", target, strings.NewReader(body))
	}
	require.JSONEq(t, `{"path":"/v1/chat/completions","body":"a"}`, post("/debug/explain", "a").Body.String())
	require.JSONEq(t, `{"path":"/v1/completions","body":""}`, post("/debug/explain?path=/v1/completions", "").Body.String())
	require.Contains(t, post("/debug/explain", "record").Body.String(), `"why": "lowest cost 12.0; next best 8/0 at 15.2`)
	require.Contains(t, post("/debug/explain", "record").Body.String(), `"known_seconds_ago": 1`)
	require.Contains(t, post("/debug/explain", "record").Body.String(), `"trouble": [`)
	w := post("/debug/explain", "bad")
	require.Equal(t, 400, w.Code)
	require.JSONEq(t, `{"error":{"message":"body: expected JSON"}}`, w.Body.String())
	require.Equal(t, 413, post("/debug/explain", strings.Repeat("x", maxBody+1)).Code)
	require.Equal(t, 500, post("/debug/explain", "nan").Code)
	w = post("/debug/explain", "panic")
	require.Equal(t, 500, w.Code)
	require.NotContains(t, w.Body.String(), "boom")
	require.Equal(t, 405, get(s, "/debug/explain").Code)
}

func TestAnotherSitesPageMayNotAsk(t *testing.T) {
	s := newServer(t, func(c *Config) {
		c.Explain = func(context.Context, string, []byte) (any, error) { t.Error("asked"); return nil, nil }
	})
	w := ask(s, "POST", "/debug/explain", nil, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
	require.Equal(t, 403, w.Code)
}

func TestOnlyKnownHostsAreAnswered(t *testing.T) {
	s := newServer(t, func(c *Config) { c.AllowedHosts = []string{"Baton.example."} })
	for host, want := range map[string]int{
		"127.0.0.1:9902": 200, "127.0.0.1": 200, "[::1]:80": 200, "[::1]": 200, "LocalHost:1": 200, "localhost.": 200,
		"a.localhost": 200, "baton.example:9902": 200,
		"evil.example": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example:9902": 403, "10.0.0.1:9902": 403, "": 403,
	} {
		w := ask(s, "GET", "/debug/state", nil, func(r *http.Request) { r.Host = host })
		require.Equal(t, want, w.Code, host)
		require.NotEmpty(t, w.Header().Get("Content-Security-Policy"))
	}
	wide := newHostRule(nil, &net.TCPAddr{IP: net.IPv4zero, Port: 1})
	require.True(t, wide.allows("10.0.0.1:9902"))
	require.False(t, wide.allows("evil.example:9902"))
}

func TestConfigNamesItsFaults(t *testing.T) {
	_, err := New(Config{Address: "nowhere", AllowedHosts: []string{"a:1"}})
	require.ErrorContains(t, err, `admin address "nowhere": expected ip:port`)
	require.ErrorContains(t, err, `admin allowed host "a:1": expected a name without port`)
	require.ErrorContains(t, err, "admin: a function that is required is missing")

	s := newServer(t, nil)
	_, err = New(Config{Address: s.Addr().String(), State: nightState, Ready: ready, ReadyKey: readyKey})
	require.ErrorContains(t, err, "admin: listen on")
}

func TestRunServesUntilItsContextEnds(t *testing.T) {
	var b bytes.Buffer
	s := newServer(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&b, nil)) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c := http.Client{Transport: &http.Transport{}}
	resp, err := c.Get("http://" + s.Addr().String() + "/healthz")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
	cancel()
	require.NoError(t, <-done)
	c.CloseIdleConnections()
	_, err = c.Get("http://" + s.Addr().String() + "/healthz")
	require.Error(t, err)
	require.Empty(t, b.String())
}

func TestRunReturnsTheErrorThatStoppedIt(t *testing.T) {
	s := newServer(t, nil)
	require.NoError(t, s.Close())
	require.ErrorContains(t, s.Run(context.Background()), "admin: serve")
}

func TestDurationsReadAsPeopleSayThem(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-1: "0 s", 0: "0 µs", 84 * time.Microsecond: "84 µs", 1200 * time.Microsecond: "1.2 ms", 181 * time.Millisecond: "181 ms",
		4200 * time.Millisecond: "4.20 s", 59900 * time.Millisecond: "59 s", 251 * time.Second: "4 min 11 s",
		26*time.Hour + 3*time.Minute: "26 h 03 min", 75 * time.Hour: "3 d 3 h",
	} {
		require.Equal(t, want, duration(d))
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		require.Equal(t, want, grouped(n))
	}
}
