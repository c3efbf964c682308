package admin

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func hourServer(t *testing.T, h *hour.Hour) *Server {
	return newServer(t, func(c *Config) {
		c.Hour = func(_ time.Time, steps int) []hour.Span { return h.Spans(now(), steps) }
	})
}

// section is the part of the page with the id.
func section(t *testing.T, page, id string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `id="`+id+`"`)
	require.True(t, ok, id)
	text, _, _ := strings.Cut(rest, "</section>")
	return text
}

func TestPicturesOfTheLastHour(t *testing.T) {
	h := hour.New(now().Add(-15 * time.Minute))
	for i, outcome := range []string{"ok", "ok", "ok", "failed"} {
		h.Ended(now().Add(-time.Duration(10-i)*time.Minute), outcome)
	}
	h.Ended(now().Add(-20*time.Second), "ok")
	h.Took(now().Add(-20*time.Second), 200*time.Millisecond, 0)
	h.Prompt(now().Add(-20*time.Second), hour.Prompt{Asked: 1000, Available: 500, Predicted: 400, Told: 1000, Delivered: 250})
	h.Sample(now().Add(-20*time.Second), hour.Sample{Role: worker.Prefill, QueueSeconds: 1.5}, hour.Sample{Role: worker.Decode, DecodeBlocks: 1234})
	s := hourServer(t, h)
	part := section(t, get(s, "/").Body.String(), "p-hour")
	golden(t, "hour.html", part)
	require.Equal(t, 5, strings.Count(part, "<svg "))
	for _, want := range []string{
		"No answer has told how many tokens it has.", // nothing is drawn as if it were 0
		`ok <b>0.033/s</b>`, `failed <b>0/s</b>`, `p50 <b>195 ms</b>`, `available <b>50 %</b>`, `predicted <b>40 %</b>`, `delivered <b>25 %</b>`,
		`prefill <b>1.50 s</b>`, `decode <b>1,234</b>`, "The last hour. Now: ok 0.033/s, failed 0/s. At most 0.033/s.", "10 min ago</th>",
	} {
		require.Contains(t, part, want)
	}
	require.NotContains(t, part, "style=")
	require.NotContains(t, part, "NaN")
	require.NotContains(t, part, "client left", "what has not happened has no colour")
}

func TestAnHourInWhichNothingHasHappenedSaysSo(t *testing.T) {
	part := section(t, get(hourServer(t, hour.New(now())), "/").Body.String(), "p-hour")
	require.NotContains(t, part, "<svg ")
	require.NotContains(t, part, "<table")
	require.Equal(t, 6, strings.Count(part, `class="quiet empty"`))

	require.NotContains(t, get(newServer(t, nil), "/").Body.String(), "p-hour", "no hour is kept")
	require.Equal(t, 404, get(newServer(t, nil), "/debug/hour").Code)
}

func TestTheHourInJSON(t *testing.T) {
	h := busyHour(now())
	var got hourJSON
	require.NoError(t, json.Unmarshal(get(hourServer(t, h), "/debug/hour").Body.Bytes(), &got))
	require.Len(t, got.Steps, 58*6)
	require.Equal(t, now(), got.Steps[len(got.Steps)-1].At)
	last := got.Steps[len(got.Steps)-1]
	require.Positive(t, last.Requests["ok"])
	require.NotContains(t, last.Requests, "cut")
	require.Positive(t, last.FirstToken.P50)
	require.GreaterOrEqual(t, last.FirstToken.P99, last.FirstToken.P50)
	require.Greater(t, last.Prompt.Available, last.Prompt.Delivered)
	require.Contains(t, last.Load, "prefill")
	require.NotContains(t, last.Load, "aggregated")
	require.JSONEq(t, `{"step_seconds":10,"steps":[]}`, get(hourServer(t, hour.New(now())), "/debug/hour").Body.String())
}

func TestPathsHaveGapsWhereNothingIsKnown(t *testing.T) {
	nan := math.NaN()
	for name, c := range map[string]struct {
		values []float64
		area   bool
		want   string
	}{
		"nothing":      {[]float64{nan, nan}, false, ""},
		"a line":       {[]float64{0, 1, 1, 0.5}, false, "M0 35.5H1V1H3V18.5H4"},
		"a gap":        {[]float64{1, nan, 1}, false, "M0 1H1M2 1H3"},
		"an area":      {[]float64{nan, 1, 1, nan, 0.5}, true, "M1 36V1H3V36ZM4 36V18.5H5V36Z"},
		"all are zero": {[]float64{0, 0}, false, "M0 35.5H2"},
	} {
		most := 1.0
		if name == "all are zero" {
			most = 0
		}
		require.Equal(t, c.want, path(c.values, most, c.area), name)
	}
}

// Layers are drawn as sums, the highest first, so that each hides what is not its own.
func TestLayersLieOnEachOther(t *testing.T) {
	h := hour.New(now().Add(-30 * time.Second))
	for _, outcome := range []string{"ok", "failed"} {
		h.Ended(now().Add(-20*time.Second), outcome)
	}
	part := section(t, get(hourServer(t, h), "/").Body.String(), "hour-requests")
	require.Regexp(t, `(?s)class="k-failed" d="M119 36V1H120V36Z".*class="k-ok" d="M119 36V18.5H120V36Z"`, part)
	require.Regexp(t, `(?s)class="key k-ok".*class="key k-failed"`, part)
}
