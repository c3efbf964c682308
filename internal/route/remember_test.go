package route

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Of a prompt that begins with a picture no block is known: it is remembered by what it is
// taken to be, and found by that.
func TestAPromptWithoutABlockBeforeItsPictureIsRemembered(t *testing.T) {
	t.Parallel()
	r := newRig(t, routetest.Workers(), func(c *Config) { c.Prefill.EstimatedOverlapWeight = 1 })
	decide := func() (rank worker.Rank, overlap int64) {
		req := Request{
			Now: time.Now(), Scan: new(openai.Request),
			Body: []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://pictures/one"}}]}]}`),
		}
		require.NoError(t, openai.Scan(openai.ChatCompletions, req.Body, req.Scan))
		q, f := r.Ask(req)
		require.Nil(t, f)
		p := tokens.Prompt{Source: tokens.FromEngine, Reason: tokens.ReasonBefore, Partial: true, ISLTokens: 256}
		d, f := r.Decide(q, p, NewScratch(), time.Now())
		require.Nil(t, f)
		d.Cancel(time.Now())
		return d.Record.Prefill.Rank, d.Record.Prefill.OverlapBlocks
	}
	at, overlap := decide()
	require.Zero(t, overlap)
	again, overlap := decide()
	require.Equal(t, at, again)
	require.EqualValues(t, 64, overlap)
}
