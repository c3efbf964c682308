package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

func TestModesAndRowsOfTheDrillAreChosenByName(t *testing.T) {
	o, err := chosenDrill("", "")
	require.NoError(t, err)
	require.Len(t, o.rows, 4)
	require.Len(t, o.modes, len(drillModes()))

	o, err = chosenDrill("smg,kv", "burst")
	require.NoError(t, err)
	require.Equal(t, []string{"smg", "kv"}, []string{o.modes[0].name, o.modes[1].name})
	require.Equal(t, rowBurst, o.rows[0].name)

	_, err = chosenDrill("", "flood")
	require.ErrorContains(t, err, `drill row "flood": expected death, slow-health, standstill, burst`)
	_, err = chosenDrill("nobody", "")
	require.ErrorContains(t, err, `drill mode "nobody": expected kv, kv-apart`)
}

// The flag's text names what can be chosen.
func TestTheDrillsFlagsNameEachModeAndRow(t *testing.T) {
	var said strings.Builder
	_, err := parse([]string{"-h"}, &said)
	require.Error(t, err)
	for _, m := range drillModes() {
		require.Contains(t, said.String(), m.name)
	}
	for _, r := range drillRows() {
		require.Contains(t, said.String(), r.name)
	}
	o, err := parse([]string{"-drill-rows", "burst"}, io.Discard)
	require.NoError(t, err)
	require.Nil(t, o.drilled, "without -drill there is none")
	o, err = parse([]string{"-drill", "-drill-rows", "burst"}, io.Discard)
	require.NoError(t, err)
	require.Len(t, o.drilled.rows, 1)
	_, err = parse([]string{"-drill", "-drill-rows", "flood"}, io.Discard)
	require.ErrorContains(t, err, "flood")
}

func TestWhatARivalCannotDoNamesARow(t *testing.T) {
	rows := map[string]bool{}
	for _, r := range drillRows() {
		rows[r.name] = true
	}
	for _, m := range drillModes() {
		for row, why := range m.cannot {
			require.True(t, rows[row], row)
			require.NotEmpty(t, why)
		}
	}
}

func TestABurstHasItsRateAndThenTheOldOne(t *testing.T) {
	shots := drillShots(20, 4*time.Second, time.Second, 2*time.Second, 5)
	in := func(from, to time.Duration) (n int) {
		for _, s := range shots {
			if s.at >= from && s.at < to {
				n++
			}
		}
		return n
	}
	require.Equal(t, []int{20, 100, 20, 20}, []int{in(0, time.Second), in(time.Second, 2*time.Second), in(2*time.Second, 3*time.Second), in(3*time.Second, 4*time.Second)})
}

func TestPromptsOfTheDrillShareTheirBeginningsAndNothingElse(t *testing.T) {
	tokens := func(n int) []uint32 { return promptOf(t, drillShot(n, 0).body) }
	a, b, c := tokens(0), tokens(beginnings), tokens(1)
	require.Len(t, a, begins+own)
	require.Equal(t, a[:begins], b[:begins])
	require.NotEqual(t, a[begins], b[begins])
	require.NotEqual(t, a[0], c[0])
	require.NotContains(t, string(drillShot(0, 0).body), "stream")
	require.Contains(t, string(drillShot(1, 0).body), `"stream":true`)
}

func TestAWholeAnswerHasAllItsTokensAndItsEnd(t *testing.T) {
	chunk := `data: {"choices":[{"text":" a"}]}` + "\n\n"
	usage := fmt.Sprintf(`{"choices":[],"usage":{"completion_tokens":%d}}`, drillTokens)
	for text, want := range map[string]error{
		usage: nil,
		chunk + "data: " + usage + "\n\ndata: [DONE]\n\n": nil,
		chunk + "data: " + usage + "\n\n":                 errMidStream,
		chunk:                                             errMidStream,
		chunk + "data: [DONE]\n\n":                        errCut,
		chunk + `data: {"error":{"code":503}}` + "\n\ndata: [DONE]\n\n": errMidStream,
		`data: {"error":{"code":503}}` + "\n\ndata: [DONE]\n\n":         errEvent,
		`{"error":{"code":503}}`:                                        errEvent,
		`{"usage":{"completion_tokens":1}}`:                             errCut,
		`{"usage":`:                                                     errCut,
		"":                                                              errCut,
	} {
		require.Equal(t, want, wholeAnswer(strings.NewReader(text)), text)
	}
}

func TestAClientTellsHowARequestFailed(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/refused", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"usage"`)
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	ask := func(path string) string {
		c := newClient(s.URL + path)
		defer c.close()
		return c.ask(t.Context(), drillShot(0, 0), time.Now()).Failure
	}
	require.Equal(t, "status 503", ask("/refused"))
	require.Equal(t, "cut", ask("/cut"))
	s.Close()
	require.Equal(t, "no connection", ask("/cut"))
}

func TestAClientWaitsNoLongerThanItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{url: "http://nobody", http: &http.Client{Transport: never{}}}
		a := c.ask(t.Context(), drillShot(0, 0), time.Now())
		require.Equal(t, "none in 20s", a.Failure)
		require.Equal(t, drillLimit, a.Took)
	})
}

// never answers.
type never struct{}

func (never) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// steady are answers of 100 ms each, 10 a second, until some time.
func steady(until time.Duration) (out []answer) {
	for at := time.Duration(0); at < until; at += 100 * time.Millisecond {
		out = append(out, answer{At: at, Took: 100 * time.Millisecond})
	}
	return out
}

func TestACellTellsTheTimesOverThoseBefore(t *testing.T) {
	begins, end := 6*time.Second, 16*time.Second
	c := drillCell{}
	c.judge(steady(end), begins, end)
	require.Equal(t, []float64{1, 1, 1, 0}, []float64{c.P50, c.P95, c.Worst, c.Back})
	require.Zero(t, c.Fault.Failed)
	require.Equal(t, 101, c.Fault.Sent, "the one that was under way when it began is among them")

	// In the third and fourth second requests are late, in the fifth one fails.
	answers := steady(end)
	for i := range answers {
		switch at := answers[i].At; {
		case at >= 8*time.Second && at < 10*time.Second:
			answers[i].Took = time.Second
		case at == 10*time.Second:
			answers[i].Failure = "cut"
		}
	}
	c = drillCell{}
	c.judge(answers, begins, end)
	require.Equal(t, []float64{1, 10, 10, 5}, []float64{c.P50, c.P95, c.Worst, c.Back})
	require.Equal(t, map[string]int{"cut": 1}, c.Fault.Failures)

	// One that was sent before, and ends after it began, is not of the quiet time.
	answers = steady(end)
	answers[59] = answer{At: 5900 * time.Millisecond, Took: time.Second, Failure: errMidStream.Error()}
	c = drillCell{}
	c.judge(answers, begins, end)
	require.Zero(t, c.Quiet.Failed)
	require.Equal(t, []int{101, 1, 1}, []int{c.Requests, c.Failed, c.Begun})
	require.InDelta(t, 1, c.Back, 0)

	// They fail to the end.
	answers = steady(end)
	answers[len(answers)-1].Failure = "status 503"
	c = drillCell{}
	c.judge(answers, begins, end)
	require.InDelta(t, -1, c.Back, 0)
}

func TestNothingIsToldOfAModeThatAnsweredNothingBefore(t *testing.T) {
	begins, end := 6*time.Second, 16*time.Second
	answers := steady(end)
	for i := range answers {
		answers[i].Failure = "status 500"
	}
	c := drillCell{}
	c.judge(answers, begins, end)
	require.Zero(t, c.P50)
	require.InDelta(t, -1, c.Back, 0)
	_, err := json.Marshal(c)
	require.NoError(t, err, "no figure is a division by zero")
	require.Contains(t, c.line(), "| – | – | – | not in this time |")
}

func TestTheDrillsTableTellsWhatFailedAndWhatWasNotRun(t *testing.T) {
	r := drillReport{Machine: "m", Load: "1 2 3", Rate: drillRate, Cells: []drillCell{
		{Row: rowDeath, Mode: "kv", Quiet: drillWindow{P50: 100, P95: 110, Worst: 120}, Fault: drillWindow{Sent: 300}, P50: 1, P95: 1.5, Worst: 2, Back: 1},
		{Row: rowDeath, Mode: "smg", Fault: drillWindow{Sent: 300, Failed: 3, Failures: map[string]int{"cut": 1, "status 503": 2}}, Back: -1},
		{Row: rowDeath, Mode: dynamoName, NotRun: "it cannot"},
		{Row: rowBurst, Mode: "kv", Fault: drillWindow{Sent: 7, Late: drillLate + 1}},
	}}
	o, err := chosenDrill("kv,smg,dynamo", "death")
	require.NoError(t, err)
	text := r.markdown(o)
	require.Contains(t, text, "| kv | 300 | 0 | 1.00 | 1.50 | 2.00 | 1 s | 100, 110, 120 | 0.0 |")
	require.Contains(t, text, "| smg | 300 | 3 (2 × status 503, 1 × cut) |")
	require.Contains(t, text, "| dynamo | not run: it cannot |")
	require.NotContains(t, text, "## burst")
	require.NotContains(t, text, "| kv | 7 |")
	require.Contains(t, text, "more than 50 ms late (p99) with their requests: burst, kv.")
	r.Cells = r.Cells[:3]
	require.NotContains(t, r.markdown(o), "Not to be believed")
}

// The page of health is late, and requests are not.
func TestASlowPageOfHealthSlowsNoRequest(t *testing.T) {
	_, sim := engine(t, enginesim.Config{Role: worker.Aggregated, Engine: worker.VLLM, PrefillBase: enginesim.None, PrefillPerToken: enginesim.None, DecodePerToken: enginesim.None})
	require.NoError(t, sim.SetFault(t.Context(), enginesim.Fault{Mode: enginesim.FaultSlow, DelayMS: 60_000, Health: true, Only: "(no request)"}))
	c := newClient(sim.BaseURL + drillPath)
	defer c.close()
	a := c.ask(t.Context(), drillShot(0, 0), time.Now())
	require.Empty(t, a.Failure)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, sim.BaseURL+"/health", nil)
	require.NoError(t, err)
	_, err = c.http.Do(req)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
