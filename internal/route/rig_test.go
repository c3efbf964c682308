package route

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// rig is a router of a fleet that is known and well.
type rig struct {
	*Router
	t        *testing.T
	index    kvindex.Index
	resolver *tokens.Resolver
}

func newRig(t *testing.T, ws []*worker.Worker, change func(*Config)) *rig {
	t.Helper()
	slots := kvindex.NewSlots()
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, slots)
	require.NoError(t, err)
	r := &rig{t: t, index: tree}
	r.resolver, err = tokens.New(tokens.Config{Mode: tokens.EstimateOnly})
	require.NoError(t, err)
	t.Cleanup(r.resolver.Close)
	tracker := health.New(health.Config{})
	cfg := Config{
		Board: routetest.Board(time.Now(), ws), Book: load.New(1), Health: tracker,
		Overlap: overlap.Config{Index: r.index, Slots: slots}, Routes: overlap.NewRoutes(r.index),
		Estimate: r.resolver.Estimate, Expect: new(outlen.Lately).Expect,
		Prefill: picker.DefaultParams(), Decode: picker.DefaultParams(), Aggregated: picker.DefaultParams(),
	}
	if change != nil {
		change(&cfg)
	}
	cfg.Book.Update(cfg.Board.Load().Snapshot)
	tracker.Update(cfg.Board.Load().Snapshot, time.Now())
	r.Router, err = New(cfg)
	require.NoError(t, err)
	return r
}

// ask asks for a completion.
func (r *rig) ask(body string, change func(*Request)) (*Question, *Refusal) {
	r.t.Helper()
	req := Request{Now: time.Now(), Scan: new(openai.Request), Body: []byte(body)}
	require.NoError(r.t, openai.Scan(openai.Completions, req.Body, req.Scan))
	if change != nil {
		change(&req)
	}
	return r.Ask(req)
}

// asking asks for a completion that somebody may serve.
func (r *rig) asking(body string) *Question {
	r.t.Helper()
	q, f := r.ask(body, nil)
	require.Nil(r.t, f)
	return q
}

// tokens counts the tokens of a request that has them.
func (r *rig) tokens(q *Question) (tokens.Prompt, *Scratch) {
	r.t.Helper()
	sc := NewScratch()
	p, ok := r.resolver.Fast(q.Query(), &sc.Tokens)
	require.True(r.t, ok)
	return p, sc
}

// preview is what would be decided now.
func (r *rig) preview(body string) Decision {
	r.t.Helper()
	q, f := r.ask(body, func(r *Request) { r.Preview = true })
	require.Nil(r.t, f)
	p, sc := r.tokens(q)
	d, f := r.Decide(q, p, sc, time.Now())
	require.Nil(r.t, f)
	return d
}

// decided is the record of a decision and what it was refused for.
func (r *rig) decided(body string) (*decision.Record, *Refusal) {
	r.t.Helper()
	q := r.asking(body)
	p, sc := r.tokens(q)
	d, f := r.Decide(q, p, sc, time.Now())
	return d.Record, f
}

// holds makes a rank hold the first blocks of the prompt.
func (r *rig) holds(rank worker.Rank, body string, blocks int) {
	r.t.Helper()
	p, _ := r.tokens(r.asking(body))
	r.index.Attach(rank)
	var e kvindex.Stored
	for i, h := range p.Hashes[:blocks] {
		e.Blocks = append(e.Blocks, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: h})
	}
	require.NoError(r.t, r.index.Store(rank, e))
}

// booked books a prompt on a rank.
func (r *rig) booked(rank worker.Rank, role worker.Role, isl int) *load.Reservation {
	r.t.Helper()
	params := r.cfg.Decode
	params.BlockSize = 4
	req, held := &load.Request{Params: &params}, new(load.Reservation)
	req.Pick.Role, req.Pick.ISLTokens = role, isl
	require.NoError(r.t, r.cfg.Book.Reserve(req, rank, 0, held))
	return held
}

// asked asks a router that knows a board and nothing else.
func asked(t *testing.T, board *activation.Board, path openai.Path, body string) (*Question, *Refusal) {
	t.Helper()
	req := Request{Now: time.Now(), Scan: new(openai.Request), Body: []byte(body)}
	require.NoError(t, openai.Scan(path, req.Body, req.Scan))
	return (&Router{cfg: Config{Board: board}}).Ask(req)
}

// reasonIn is why it was refused: of what is wrong with the request, which kind of fault.
func reasonIn(f *Refusal) string {
	if f != nil && f.Body != nil {
		return f.Body.Kind.String()
	}
	if f == nil {
		return ""
	}
	return string(f.Reason)
}
