package admin

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func viewsOf(ws []WorkerRow, query string) ([]poolView, int) {
	v, err := url.ParseQuery(query)
	if err != nil {
		panic(err)
	}
	return poolViews(pools(ws), newQuery(v, 50), now())
}

func TestPoolsSumUpTheirWorkers(t *testing.T) {
	views, left := viewsOf(nightState().Workers, "")
	require.Zero(t, left)
	var got []string
	for _, p := range views {
		var counts []string
		for _, c := range p.Counts {
			counts = append(counts, c.Text)
		}
		got = append(got, fmt.Sprintf("%s %s: %s; %s legs, %s tokens, %s + %s blocks, %s", p.Role, p.Name, strings.Join(counts, ", "), p.Legs, p.Prefill, p.Decode, p.Index, p.Streams))
		require.True(t, p.Open, "few workers are shown")
	}
	require.Equal(t, []string{
		"prefill llama-3.1-70b: 1 healthy, 1 aside; 3 legs, 12,480 tokens, 0 + 90,211 blocks, ",
		"decode llama-3.1-70b: 1 recovering, 1 draining; 3 legs, 0 tokens, 212 + 0 blocks, ",
		"decode llama-3.1-70b, <b>x</b> in lab: 1 healthy; 39 legs, 0 tokens, 8,311 + 98,211 blocks, 1 in trouble",
		"aggregated any model: 1 healthy; 0 legs, 0 tokens, 0 + 0 blocks, ",
	}, got)
	require.Equal(t, "10.0.0.8:8000", views[0].Workers[0].Endpoint, "trouble first")
}

func TestManyWorkersAreCutWithTroubleKept(t *testing.T) {
	views, _ := viewsOf(fleetState(now(), 2000, "a", "b").Workers, "")
	rows := 0
	for _, p := range views {
		require.False(t, p.Open)
		require.Equal(t, 500, p.All)
		require.Equal(t, p.All, len(p.Workers)+p.Left)
		rows += len(p.Workers)
	}
	require.Equal(t, maxWorkerRows, rows)
	require.Equal(t, Aside, views[0].Workers[0].Health)

	var ws []WorkerRow
	for i := range 1000 {
		ws = append(ws, WorkerRow{ID: worker.ID(i + 1), Role: worker.Decode, Models: []string{fmt.Sprintf("m%03d", i/5)}, Health: Healthy, Ranks: []RankRow{{}}})
	}
	ws[999].Health = Aside
	views, left := viewsOf(ws, "")
	require.Len(t, views, maxPools)
	require.Equal(t, 150, left)
	require.Equal(t, "m199", views[0].Name, "a pool in trouble is not left out")
	require.Len(t, views[0].Workers, minPoolRows)

	small := append(ws[:3:3], fleetState(now(), 600, "big").Workers...)
	views, _ = viewsOf(small, "")
	require.Equal(t, maxWorkerRows, len(views[0].Workers)+len(views[1].Workers)+len(views[2].Workers), "large pools get what small ones leave")
}

func TestSearchFindsByWhatAReaderKnows(t *testing.T) {
	ws := nightState().Workers
	ws[3].Models = []string{"Qwen"}
	for query, want := range map[string][]string{
		"q=10.0.0.8": {"8"}, "q=18446744073709551615": {"18446744073709551615"}, "q=ASIDE": {"8"}, "q=%3Cb%3EX": {"18446744073709551615"},
		"q=lab": {"18446744073709551615"}, "q=aggr": {"33"}, "q=qweN": {"31"}, "q=++": {"31", "32", "33", "7", "8", "18446744073709551615"}, "q=nothing": nil,
		"q=%ff8": {"8", "7", "31", "32", "33", "18446744073709551615"}, // not UTF-8
	} {
		views, _ := viewsOf(ws, query)
		var got []string
		for _, p := range views {
			for _, w := range p.Workers {
				got = append(got, w.ID)
			}
			require.True(t, p.Open || strings.HasPrefix(query, "q=+"))
		}
		require.ElementsMatch(t, want, got, query)
	}
	require.LessOrEqual(t, len(newQuery(url.Values{"q": {strings.Repeat("界", 4000)}}, 1).Text), maxQueryText)
	page := get(newServer(t, nil), "/?q="+url.QueryEscape(`"><script>x</script>`)).Body.String()
	require.NotContains(t, page, "<script>x")
	require.Contains(t, page, "None of 6 workers has “&#34;&gt;&lt;script&gt;x&lt;/script&gt;”")
}

func TestSortTurnsRoundAndEnds(t *testing.T) {
	ws := fleetState(now(), 60, "m").Workers
	legs := func(query string) (out []string) {
		views, _ := viewsOf(ws, query)
		for _, w := range views[0].Workers {
			out = append(out, fmt.Sprintf("%3s", w.Total.Requests))
		}
		return out
	}
	require.IsNonIncreasing(t, legs("sort=-legs"))
	require.IsNonDecreasing(t, legs("sort=legs"))
	require.False(t, slices.IsSorted(legs("sort=nonsense")))
	href := func(query string, key string) (string, string) {
		v, _ := url.ParseQuery(query)
		for _, c := range columnViews(newQuery(v, 50)) {
			if c.Key == key {
				return c.Href, c.Sorted
			}
		}
		return "", ""
	}
	for _, c := range [][4]string{
		{"q=a%26b", "legs", "?q=a%26b&sort=-legs", ""}, {"sort=-legs", "legs", "?sort=legs", "descending"}, {"sort=legs", "legs", "?", "ascending"},
		{"sort=-legs", "state", "?sort=state", ""}, {"sort=state", "state", "?sort=-state", "ascending"}, {"sort=-state", "state", "?", "descending"},
	} {
		link, sorted := href(c[0], c[1])
		require.Equal(t, c[2], link, c)
		require.Equal(t, c[3], sorted, c)
	}
}

// A state that the page does not know yet is counted and shown like the others.
func TestAnotherStateIsCountedToo(t *testing.T) {
	ws := []WorkerRow{{ID: 1, Role: worker.Decode, Health: "not heard from yet", Ranks: []RankRow{{}}}, {ID: 2, Role: worker.Decode, Health: Healthy, Ranks: []RankRow{{}}}}
	views, _ := viewsOf(ws, "")
	require.Equal(t, []countView{{"1 healthy", false}, {"1 not heard from yet", false}}, views[0].Counts)
	require.Equal(t, []countView{{"1 decode healthy", false}, {"1 decode not heard from yet", false}}, counts(ws))
	require.Equal(t, "not-heard-from-yet", views[0].Workers[0].Health.Class()+views[0].Workers[1].Health.Class()[len("healthy"):])
}

// However many read the page, it is built once a second at most, and less often if that
// takes long.
func TestManyReadersShareAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		built := 0
		slow := time.Duration(0)
		s := newServer(t, func(c *Config) {
			c.State = func() State {
				built++
				<-time.After(slow) // in the time of the test
				st := nightState()
				st.Version = fmt.Sprint("build ", built)
				return st
			}
		})
		read := func(target string) string {
			_, version, _ := strings.Cut(get(s, target).Body.String(), "<dt>version</dt><dd>")
			version, _, _ = strings.Cut(version, "</dd>")
			return version
		}
		for range 10 {
			require.Equal(t, "build 1", read("/"))
		}
		require.Equal(t, "build 1", read("/?q=10.0.0.8"), "another query is answered from the same state")
		<-time.After(freshFor)
		require.Equal(t, "build 2", read("/"))
		for i := range 2 * maxBuilt {
			read(fmt.Sprintf("/?q=%d", i))
		}
		require.LessOrEqual(t, len(s.built.pages), maxBuilt)
		require.Equal(t, 2, built)

		slow = 10 * time.Millisecond
		<-time.After(freshFor)
		read("/")
		<-time.After(freshFor)
		require.Equal(t, "build 3", read("/"))
		<-time.After(2 * freshFor)
		require.Equal(t, "build 4", read("/"), "300 times 10 ms after the third")
		slow = time.Second
		<-time.After(3 * freshFor)
		read("/")
		<-time.After(staleFor)
		slow = 0
		require.Equal(t, "build 6", read("/"), "it is never older than that")
	})
}

func TestOneDecisionWithAllCandidates(t *testing.T) {
	s := newServer(t, nil)
	page := get(s, "/decision/2").Body.String()
	golden(t, "decision.html", page)
	for _, want := range []string{"lowest cost 12.0; next best 8/0 at 15.2", "out: recovering", "<b>picked</b>", "5f0c-lost"} {
		require.Contains(t, page, want)
	}
	for _, gone := range []string{"/decision/99", "/decision/x", "/decision/-1", "/decision/02"} {
		require.Equal(t, 404, get(s, gone).Code, gone)
	}
	require.NotContains(t, get(s, "/").Body.String(), "out: recovering", "the page has only the picked ones")
}

func TestBarsOfARequest(t *testing.T) {
	ms := time.Millisecond
	for name, c := range map[string]struct {
		rec  decision.Record
		want string
	}{
		"nothing is known": {decision.Record{}, ""},
		"refused":          {decision.Record{DecisionIn: 1 * ms, Timings: decision.Timings{End: 2 * ms}}, "decided: in 1.0 ms [0.0+500.0 b-decide] answer: end at 2.0 ms [500.0+500.0 b-wait] "},
		"whole": {
			decision.Record{DecisionIn: 1 * ms, Timings: decision.Timings{PrefillStarted: 10 * ms, PrefillWell: 40 * ms, PrefillEnded: 50 * ms, ResponseHeaders: 50 * ms, FirstToken: 60 * ms, End: 100 * ms}},
			"decided: in 1.0 ms [0.0+10.0 b-decide] prefill: started at 10.0 ms, well at 40.0 ms, ended at 50.0 ms [100.0+300.0 b-work 400.0+100.0 b-out] " +
				"answer: response headers at 50.0 ms, first token at 60.0 ms, end at 100 ms [10.0+490.0 b-wait 500.0+100.0 b-work 600.0+400.0 b-out] ",
		},
		"in prefill": {decision.Record{DecisionIn: 1, Timings: decision.Timings{PrefillStarted: 10 * ms}}, "decided: in 0 µs [0.0+2.0 b-decide] prefill: started at 10.0 ms [] answer: nothing yet [] "},
		"late report": {
			decision.Record{DecisionIn: 1 * ms, Timings: decision.Timings{ResponseHeaders: 40 * ms, FirstToken: 20 * ms, End: 30 * ms}},
			"decided: in 1.0 ms [0.0+25.0 b-decide] answer: response headers at 40.0 ms, first token at 20.0 ms, end at 30.0 ms [25.0+975.0 b-wait] ",
		},
	} {
		var got strings.Builder
		for _, b := range bars(&c.rec) {
			var pieces []string
			for _, p := range b.Pieces {
				pieces = append(pieces, p.X+"+"+p.Width+" "+p.Class)
			}
			fmt.Fprintf(&got, "%s: %s %s ", b.Name, b.Words, pieces)
		}
		require.Equal(t, c.want, got.String(), name)
	}
}

// markup lists the elements of a page, each with the names of its attributes.
func markup(t *testing.T, page string) (out []string) {
	t.Helper()
	z := html.NewTokenizer(strings.NewReader(page))
	for {
		switch z.Next() {
		case html.ErrorToken:
			require.ErrorIs(t, z.Err(), io.EOF)
			slices.Sort(out)
			return slices.Compact(out)
		case html.StartTagToken, html.SelfClosingTagToken:
			tok := z.Token()
			for _, a := range tok.Attr {
				out = append(out, tok.Data+" "+a.Key)
				require.False(t, strings.HasPrefix(a.Val, "javascript:") && slices.Contains([]string{"href", "src", "action"}, a.Key), tok)
			}
			out = append(out, tok.Data)
		default:
		}
	}
}

// Whatever a model, a host or an engine's words are, they are text on the page: it has no
// element and no attribute that it would not have with honest names.
func TestHostileNamesAreText(t *testing.T) {
	honest := markup(t, get(newServer(t, func(c *Config) { c.Hour = hour.New(now()).Spans }), "/?q=8").Body.String()+get(newServer(t, nil), "/decision/2").Body.String())
	require.Contains(t, markup(t, `<p title="a" onclick="b">`), "p onclick")
	for _, name := range []string{`<script>alert(1)</script>`, `" onmouseover="alert(1)`, `' autofocus onfocus=alert(1) '`, "`${alert(1)}`", "javascript:alert(1)", "]]><svg onload=alert(1)>", "\u202ereversed\u2066", "\x00\x1b[2J\xff", strings.Repeat("long/", 2000), "</details></section></main>"} {
		s := newServer(t, func(c *Config) {
			c.Hour = hour.New(now()).Spans
			c.State = func() State {
				st := nightState()
				for i := range st.Workers {
					w := &st.Workers[i]
					w.Endpoint, w.Models, w.Namespace, w.Reason = name, []string{name, name}, name, name
					w.Pair, w.Ranks[0].Events.Reason, w.Ranks[0].Events.Via = worker.PairFacts{name}, name, name
				}
				for i := range st.Keys {
					k := &st.Keys[i]
					k.Model, k.Namespace, k.Reason, k.How = name, name, name, name
				}
				st.View.Source, st.View.StaleReason, st.Config = name, name, name
				st.Problems = []Problem{{Text: name}}
				return st
			}
			h := c.Journal.Add(func(r *decision.Record) {
				r.RequestID, r.Model, r.Namespace, r.Path = name, name, name, name
				r.Decode.Rank, r.Decode.Endpoint = worker.Rank{ID: 1}, name
				r.Decode.Offer(&decision.Row{Rank: worker.Rank{ID: 1}, Endpoint: name, Note: name})
			})
			c.Journal.End(h, decision.Failed, name, 502, now())
		})
		for _, target := range []string{"/", "/decision/6", "/?q=" + url.QueryEscape(name)} {
			page := get(s, target).Body.String()
			for _, bad := range []string{"<script>alert", "<svg onload", `"alert(1)`, "\u202e", "\u2066", "\x00"} {
				require.NotContains(t, page, bad, "%s of %q", target, name)
			}
			for _, m := range markup(t, page) {
				require.True(t, slices.Contains(honest, m), "%s of %q has %s", target, name, m)
			}
		}
	}
}

func TestWhoTakesItGetsThePageCompressed(t *testing.T) {
	s := newServer(t, nil)
	plain := get(s, "/").Body.String()
	w := ask(s, "GET", "/", nil, func(r *http.Request) { r.Header.Set("Accept-Encoding", "br, gzip") })
	require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
	require.Less(t, w.Body.Len(), len(plain)/3)
	z, err := gzip.NewReader(w.Body)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	require.Equal(t, plain, string(b))
}
