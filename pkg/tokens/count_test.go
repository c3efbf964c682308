package tokens

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// countsThree is a tokenizer of three tokens.
type countsThree struct{ asked string }

func (c *countsThree) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	c.asked = req.URL.Path + " " + string(body)
	if strings.Contains(c.asked, "broken") {
		return answered(http.StatusInternalServerError, "")
	}
	return answered(http.StatusOK, `{"tokens":[1,2,3]}`)
}

func TestATokenizerIsAskedForACountThatCertainlyIsTheEngines(t *testing.T) {
	const chat = `{"model":"m","messages":[{"role":"user","content":"hi"}]`
	for body, tt := range map[string]struct {
		path openai.Path
		want int // -1: it is not asked
	}{
		`{"model":"m","prompt":"hi"}`:                                       {openai.Completions, 3},
		chat + `}`:                                                          {openai.ChatCompletions, 3},
		`{"model":"m","prompt":"broken"}`:                                   {openai.Completions, 0},
		chat + `,"reasoning_effort":"low"}`:                                 {openai.ChatCompletions, -1},
		`{"model":"m","prompt":"hi","add_special_tokens":false}`:            {openai.Completions, -1},
		`{"model":"m","prompt":[1,2]}`:                                      {openai.Completions, -1},
		`{"model":"m","prompt":["a","b"]}`:                                  {openai.Completions, -1},
		`{"model":"m","prompt":"` + strings.Repeat("a", sampleBytes) + `"}`: {openai.Completions, -1},
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}`: {openai.ChatCompletions, -1},
	} {
		synctest.Test(t, func(t *testing.T) {
			engine := new(countsThree)
			r := newResolver(t, Config{Transport: engine})
			defer r.Close()
			got := -1
			asked := r.Count(query(t, tt.path, body), worker.Endpoint{}, func(n int) { got = n })
			synctest.Wait()
			require.Equal(t, tt.want >= 0, asked, body)
			require.Equal(t, tt.want, got, body)
			require.Equal(t, asked, strings.HasPrefix(engine.asked, "/tokenize "), engine.asked)
		})
	}
	q := query(t, openai.Completions, `{"model":"m","prompt":"hi"}`)
	synctest.Test(t, func(t *testing.T) {
		long := q
		long.MaxModelLen = 3
		got := -1
		r := newResolver(t, Config{Transport: new(countsThree)})
		require.True(t, r.Count(long, worker.Endpoint{}, func(n int) { got = n }))
		synctest.Wait()
		require.Zero(t, got, "the engine may cut it")
		r.Close()
		require.False(t, r.Count(q, worker.Endpoint{}, nil))
	})
	require.False(t, newResolver(t, Config{Mode: EstimateOnly}).Count(q, worker.Endpoint{}, nil))
}
