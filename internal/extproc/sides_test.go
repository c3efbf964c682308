package extproc

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// sided is a replica whose workers' lives are known, and its log.
func sided(t *testing.T) (*replica, *bytes.Buffer) {
	log := new(bytes.Buffer)
	r := newReplica(t, "a", func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	r.srv.OnChange(nil, discovery.Change{Joined: []worker.ID{1, 2, 3, 4}})
	return r, log
}

// between is the comparison of an attempt at these two.
func (r *replica) between(prefill, decode worker.ID) *comparison {
	c := &comparison{by: &r.srv.pairs, model: "m"}
	c.by.do(func(b *sides.Book) { c.pair = b.Begin(prefill, decode) })
	return c
}

// TestWhatBothWorkersTellIsCompared: prefill's usage with decode's, wherever that passes, and with what
// decode's tokenizer tells.
func TestWhatBothWorkersTellIsCompared(t *testing.T) {
	report := func(n int64) *notice {
		return just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Well, Told: leg.Told{Reading: leg.ReadUsage, Prompt: n}}})
	}
	prefilled := func(body string) *notice {
		return just(leg.Event{Kind: leg.EventPrefilled, Answer: &leg.OwnAnswer{Body: []byte(body)}})
	}
	piece := func(body string) *notice { return just(leg.Event{Kind: leg.EventResponseBody, Body: []byte(body)}) }
	logged := func(n int64) *notice {
		return &notice{Event: leg.Event{Kind: leg.EventLogged}, usage: openai.Usage{Prompt: n, Output: 1}}
	}
	const nine = `{"usage":{"prompt_tokens":9,"completion_tokens":1}}`
	for name, tt := range map[string]struct {
		events    []*notice
		tokenizer int64 // has told so many by then
		apart     bool
	}{
		"a mirrored leg, and the access log":            {[]*notice{report(9), logged(10)}, 0, true},
		"a leg of the plugin's own, and a whole answer": {[]*notice{prefilled(nine), piece(`{"usage":{"prompt_tokens":8,"completion_tokens":4}}`)}, 0, true},
		"all alike":                       {[]*notice{prefilled(nine), piece(nine), logged(9)}, 9, false},
		"no usage passes":                 {[]*notice{prefilled(nine), piece(`{"choices":[]}`), logged(0)}, 0, false},
		"the tokenizer, before prefill":   {[]*notice{prefilled(nine)}, 10, true},
		"cut where it is computed":        {[]*notice{prefilled(nine), logged(5)}, 9, true},
		"prefill has told nothing":        {[]*notice{prefilled(`{}`), logged(5)}, 5, false},
		"decode's count before prefill's": {[]*notice{piece(`{"usage":{"prompt_tokens":8,"completion_tokens":4}}`), report(9)}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			r, log := sided(t)
			c, counts := r.between(1, 3), tokenCounts{}
			c.told(byTokenizer, tt.tokenizer)
			for _, ev := range tt.events {
				counts.hear(ev)
				c.hear(ev, &counts)
			}
			require.Equal(t, tt.apart, r.srv.pairs.apart.Load().Keeps(1, 3))
			require.Equal(t, tt.apart, bytes.Contains(log.Bytes(), []byte("prefill=1 decode=3 prefill_tokens=9")), log)
			require.Len(t, Differences(r.srv), map[bool]int{true: 1}[tt.apart])
		})
	}
}

func TestADifferenceIsToldOnceAndEndsWithAWorkersLife(t *testing.T) {
	for name, end := range map[string]func(*Server){
		"found dead": func(s *Server) {
			s.Away(&health.Transition{Rank: worker.Rank{ID: 3}, To: health.Aside, Reason: "connect-failed"})
		},
		"its record change": func(s *Server) { s.OnChange(nil, discovery.Change{Changed: []worker.ID{1}}) },
	} {
		t.Run(name, func(t *testing.T) {
			r, log := sided(t)
			for range 3 {
				c := r.between(1, 3)
				c.computed(9)
				c.told(byUsage, 10)
			}
			require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("count the tokens of one prompt differently")))
			r.srv.Away(&health.Transition{Rank: worker.Rank{ID: 3}, To: health.Aside, Reason: "server-errors"})
			require.True(t, r.srv.pairs.apart.Load().Keeps(1, 3), "the same process goes on")
			end(r.srv)
			require.Nil(t, Differences(r.srv))
		})
	}
	var none *comparison
	none.computed(9)
	none.told(byUsage, 9)
}

// TestWhatIsAddedUpIsNotCompared: several prompts and several generations.
func TestWhatIsAddedUpIsNotCompared(t *testing.T) {
	r, _ := sided(t)
	d := route.Decision{Apart: true, Prefill: route.Pick{Worker: &worker.Worker{}}, Decode: route.Pick{Worker: &worker.Worker{}}}
	for body, want := range map[string]bool{
		`{"model":"m","prompt":"a"}`:         true,
		`{"model":"m","prompt":[1,2]}`:       true,
		`{"model":"m","prompt":["a","b"]}`:   false,
		`{"model":"m","prompt":[[1,2],[3]]}`: false,
		`{"model":"m","prompt":"a","n":2}`:   false,
	} {
		q := tokens.Query{Request: new(openai.Request), Body: []byte(body)}
		require.NoError(t, openai.Scan(openai.Completions, q.Body, q.Request))
		require.Equal(t, want, r.srv.pairs.compare(&d, q, r.srv.cfg.Tokens) != nil, body)
	}
	d.Apart = false
	require.Nil(t, r.srv.pairs.compare(&d, tokens.Query{}, r.srv.cfg.Tokens))
}
